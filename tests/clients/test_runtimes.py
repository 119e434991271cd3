"""Tests of a model's `runtime`: the library of its backend."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from conftest import StartServer
from events import EventModel
from server import Server

LIBRARY = "libtriton_m.so"


def load_with(start_server: StartServer, folder: pathlib.Path, runtime: str) -> str | None:
    """Loads a model with this runtime; returns the error without the directory's name."""
    repository, backends = folder / "models", folder / "backends"
    for name in ("b/inside", "elsewhere"):
        (backends / name).mkdir(parents=True)
    repository.mkdir()
    model = EventModel(repository, "m", f'runtime: "{runtime}"', backend="b")
    library = model.folder / LIBRARY
    for place in ("b/inside", "elsewhere"):
        shutil.copy(library, backends / place / LIBRARY)
    library.unlink()
    flags = ["--model-control-mode=explicit", f"--backend-directory={backends}"]
    with start_server(repository, *flags) as server:
        server.wait_until_ready()
        reply = server.request("POST", "/v2/repository/models/m/load", b"{}")
        if reply.status == 200:
            check_serves(server, model)
            return None
        assert reply.status == 400
        return reply.error().replace(str(folder), "FOLDER")


def check_serves(server: Server, model: EventModel) -> None:
    """The library is the given one, and it responds."""
    reply = server.infer("m", model.request(5))
    assert reply.json()["outputs"][0]["data"] == [5]
    assert len(model.events("execute")) == 1


@pytest.mark.parametrize("runtime", [f"inside/{LIBRARY}", f"inside/../inside/{LIBRARY}"])
def test_a_runtime_may_be_in_a_folder(
    start_server: StartServer, tmp_path: pathlib.Path, runtime: str
) -> None:
    """It is below the backend's directory."""
    assert load_with(start_server, tmp_path, runtime) is None


BEGIN = "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: "


@pytest.mark.parametrize(
    ("runtime", "directory"), [(f"../elsewhere/{LIBRARY}", "backends/b"), ("..", "models/m/1")]
)
def test_a_runtime_that_exists_outside_is_refused(
    start_server: StartServer, tmp_path: pathlib.Path, runtime: str, directory: str
) -> None:
    """It leads out of a directory that is searched."""
    assert load_with(start_server, tmp_path, runtime) == (
        f"{BEGIN}backend library name '{runtime}' escapes backend directory 'FOLDER/{directory}', "
        "for model 'm', check model config runtime field;\n"
    )


@pytest.mark.parametrize("runtime", ["../elsewhere/libx.so", f"/{LIBRARY}", "inside/libx.so"])
def test_a_runtime_that_does_not_exist_is_not_found(
    start_server: StartServer, tmp_path: pathlib.Path, runtime: str
) -> None:
    """This holds wherever it would lead."""
    assert load_with(start_server, tmp_path, runtime) == (
        f"{BEGIN}unable to find backend library '{runtime}' for model 'm', searched: "
        "'FOLDER/models/m/1' 'FOLDER/models/m' 'FOLDER/backends/b' ;\n"
    )
