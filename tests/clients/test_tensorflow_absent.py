"""Tests of TensorFlow models when its library isn't installed, or when another backend serves
them."""

from __future__ import annotations

import base64
import json
import pathlib
import shutil
import subprocess

import numpy
import pytest

from compiling import ROOT, compile_library
from conftest import StartServer
from server import Program, Server
from transports import TRANSPORTS

pytestmark = pytest.mark.galatea_only

MODELS = ROOT / "tests" / "tensorflow" / "models"
SAVED_MODEL = MODELS / "identity" / "1" / "model.savedmodel"
EXPLICIT = "--model-control-mode=explicit"
ADVICE = "Install it with `pip install --no-deps tensorflow-cpu`"


def nowhere(folder: pathlib.Path) -> dict[str, str]:
    """Variables with which no Python package is found."""
    return {"PATH": str(folder), "HOME": str(folder), "VIRTUAL_ENV": ""}


def load_error(server: Server, model: str, **parameters: str) -> str:
    """The error of a load."""
    body = json.dumps({"parameters": parameters}).encode()
    reply = server.request("POST", f"/v2/repository/models/{model}/load", body)
    assert reply.status != 200
    return reply.error()


# row: BE-05
def test_the_error_says_what_to_install(
    start_server: StartServer, program: Program, tmp_path: pathlib.Path
) -> None:
    """The errors of the server and of `check`, for both formats."""
    for model in ("identity", "graph"):
        shutil.copytree(MODELS / model, tmp_path / "models" / model)
    with start_server(
        tmp_path / "models", EXPLICIT, environment=nowhere(tmp_path)
    ) as running:
        running.wait_until_ready()
        for model in ("identity", "graph"):
            assert ADVICE in load_error(running, model)
    command = [program.command([])[0], "check", str(SAVED_MODEL)]
    checked = subprocess.run(
        command, env=nowhere(tmp_path), capture_output=True, text=True, check=False
    )
    assert checked.returncode == 1
    assert ADVICE in checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("name", "advice"),
    [("net.keras", "model.export"), ("net.graphdef", "save it as a SavedModel")],
)
def test_files_that_say_too_little_get_advice(
    program: Program, tmp_path: pathlib.Path, name: str, advice: str
) -> None:
    """Both can be converted to a SavedModel."""
    (tmp_path / name).touch()
    command = [program.command([])[0], "serve", str(tmp_path / name)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and advice in refused.stderr


# row: BE-05 CLI-23
def test_an_installed_library_is_used(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """A library in the backend directory, as with other backends."""
    backend = tmp_path / "backends" / "tensorflow"
    source = ROOT / "examples" / "backends" / "identity.c"
    compile_library(source, backend / "libtriton_tensorflow.so")
    model = tmp_path / "models" / "identity"
    shutil.copytree(MODELS / "identity", model)
    tensor = '{ name: "%s" data_type: TYPE_FP32 dims: [ 16 ] }'
    (model / "config.pbtxt").write_text(
        f'platform: "tensorflow_savedmodel" max_batch_size: 4 input {tensor % "x"} '
        f'output {tensor % "OUTPUT0"}'
    )
    flag = f"--backend-directory={tmp_path / 'backends'}"
    with start_server(tmp_path / "models", flag, environment=nowhere(tmp_path)) as running:
        running.wait_until_ready()
        client = TRANSPORTS["http"](running)
        row = numpy.ones((1, 16), numpy.float32)
        assert client.infer("identity", {"x": row})["OUTPUT0"].tolist() == row.tolist()
        client.close()
        assert f"backend 'tensorflow' is that in '{backend}', not the built-in one" in running.log()


def test_loads_without_code_bring_no_model(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A graph may write files."""
    (tmp_path / "models").mkdir()
    forbidden = "--allow-model-code-from-loads=false"
    content = base64.b64encode((SAVED_MODEL / "saved_model.pb").read_bytes()).decode()
    parameters = {
        "config": json.dumps({"platform": "tensorflow_savedmodel"}),
        "file:1/model.savedmodel/saved_model.pb": content,
    }
    with start_server(tmp_path / "models", EXPLICIT, forbidden) as running:
        running.wait_until_ready()
        load_error(running, "sent", **parameters)
        assert "'tensorflow'" in running.log() and forbidden in running.log()
