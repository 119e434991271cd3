"""Tests of repositories with invalid models: each has one clear reason, and the other models are
served."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable

import pytest
import tritonclient.grpc

from conftest import StartServer
from constant_models import added_value, constant_model, replace_file, write_model
from server import Program, Server, wait_until

ONNX = 'backend: "onnxruntime"'
ADDS_NOTHING = constant_model(0)

ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
ensemble_scheduling {{ step [ {{
  model_name: "{model}" model_version: -1
  input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }}
}} ] }}
"""

TENSOR = """\
backend: "identity"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ {dims} ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ {dims} ] }} ]
"""


@dataclasses.dataclass(frozen=True)
class BadModel:
    """How to create a model's directory, and the expected reason."""

    make: Callable[[pathlib.Path], None]
    reason: str
    #: Its name in the log, if it isn't the directory's.
    shown: str = ""
    #: Only a load finds it, so that the server knows the model.
    is_known: bool = False


def files(**contents: bytes | str) -> Callable[[pathlib.Path], None]:
    """Writes files, given as `VERSION_NAME` or, without a version, `NAME`."""

    def make(model: pathlib.Path) -> None:
        for place, content in contents.items():
            version, _, name = place.rpartition("__")
            path = model / version.lstrip("v") / name.replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def config(text: str) -> Callable[[pathlib.Path], None]:
    """A configuration, and a version with a model file."""
    return files(config_pbtxt=text, v1__model_onnx=ADDS_NOTHING)


def directories(*names: str) -> Callable[[pathlib.Path], None]:
    """Empty directories."""

    def make(model: pathlib.Path) -> None:
        for name in names:
            (model / name).mkdir(parents=True)

    return make


def link(place: str, target: str) -> Callable[[pathlib.Path], None]:
    """A symbolic link in the directory, or instead of the directory if `place` is empty."""

    def make(model: pathlib.Path) -> None:
        path = model / place if place else model
        path.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, path)

    return make


def pipe(place: str) -> Callable[[pathlib.Path], None]:
    """A named pipe without a writer."""

    def make(model: pathlib.Path) -> None:
        path = model / place
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)

    return make


BAD_MODELS = {
    "no_model_file": BadModel(
        files(config_pbtxt=ONNX, v1__notes=b""), "there is no '", is_known=True
    ),
    "nothing_that_tells_the_backend": BadModel(files(v1__notes=b""), "Could not determine backend"),
    "empty_version": BadModel(directories("1"), "Its newest version is empty."),
    "empty_version_of_onnx": BadModel(
        files(config_pbtxt=ONNX, v1__model_onnx=ADDS_NOTHING, v2__notes=b""),
        "'2/model.onnx'",
        is_known=True,
    ),
    "no_version": BadModel(directories(), "Could not determine backend"),
    "versions_without_numbers": BadModel(
        files(vone__model_onnx=ADDS_NOTHING, v02__model_onnx=ADDS_NOTHING),
        "Could not determine backend",
    ),
    "pipe_as_model": BadModel(
        pipe("1/model.onnx"), "neither a file nor a directory", is_known=True
    ),
    "pipe_as_configuration": BadModel(pipe("config.pbtxt"), "not a regular file"),
    "directory_as_configuration": BadModel(directories("config.pbtxt", "1"), "not a regular file"),
    "link_to_itself_as_model": BadModel(
        link("1/model.onnx", "model.onnx"), "Too many levels of symbolic links", is_known=True
    ),
    "link_to_itself_as_configuration": BadModel(
        link("config.pbtxt", "config.pbtxt"), "Too many levels of symbolic links"
    ),
    "link_to_itself": BadModel(link("", "link_to_itself"), "Too many levels of symbolic links"),
    "link_to_nothing": BadModel(link("", "not_there"), "link_to_nothing': No such file"),
    "another_name": BadModel(
        config('name: "good" ' + ONNX), "directory name must equal model name"
    ),
    "name_with_a_slash": BadModel(config('name: "../good" ' + ONNX), "directory name must equal"),
    "line\nbreak": BadModel(config(ONNX), "it contains a control character", "line\\nbreak"),
    "unknown_backend": BadModel(
        config('backend: "nothing"'), "unable to find backend library", is_known=True
    ),
    "backend_elsewhere": BadModel(
        config('backend: "../../x"'), "unable to find backend library", is_known=True
    ),
    "unknown_field": BadModel(config(ONNX + " max_batchsize: 1"), "config.pbtxt:1:24"),
    "wrong_enumeration": BadModel(
        config(ONNX + " instance_group { kind: KIND_TPU }"), "config.pbtxt:1:47"
    ),
    "dim_beyond_64_bits": BadModel(
        config(TENSOR.format(dims="9223372036854775808")), "config.pbtxt:2"
    ),
    "dims_that_overflow": BadModel(
        config(TENSOR.format(dims="4611686018427387904, 4")),
        "more elements than any tensor",
        is_known=True,
    ),
    "ensemble_of_itself": BadModel(
        config(ENSEMBLE.format(model="ensemble_of_itself")), "circular dependency"
    ),
    "circle_a": BadModel(config(ENSEMBLE.format(model="circle_b")), "circular dependency"),
    "circle_b": BadModel(config(ENSEMBLE.format(model="circle_a")), "circular dependency"),
    "ensemble_of_a_path": BadModel(
        config(ENSEMBLE.format(model="../repository/good")), "not available or ambiguous"
    ),
    "ensemble_of_a_bad_one": BadModel(
        config(ENSEMBLE.format(model="unknown_field")), "not available or ambiguous"
    ),
    "file_elsewhere": BadModel(
        config(ONNX + ' default_model_filename: "../../good/1/model.onnx"'),
        "must stay inside the model's directory",
        is_known=True,
    ),
}


@pytest.fixture(scope="module")
def bad_repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A valid model among all the invalid ones."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "outside.onnx").write_bytes(ADDS_NOTHING)
    repository = folder / "repository"
    write_model(repository, "good", 7)
    (repository / "README").write_text("no model at all")
    for name, bad in BAD_MODELS.items():
        model = repository / name
        bad.make(model)
        if not model.is_symlink():
            model.mkdir(exist_ok=True)
    return repository


@pytest.fixture(scope="module")
def bad_server(start_server: StartServer, bad_repository: pathlib.Path) -> Server:
    """A server over it that has attempted every load."""
    with start_server(bad_repository, "--exit-on-error=false") as server:
        server.wait_until_live()
        wait_until(lambda: "Started HTTPService" in server.log(), 60, "all models were tried")
        wait_until(lambda: added_value_or_none(server) == 7, 60, "the good model serves")
        yield server


def added_value_or_none(server: Server) -> int | None:
    """The value that the good model adds, once it is served."""
    ready = server.get("/v2/models/good/ready").status == 200
    return added_value(server, "good") if ready else None


@pytest.mark.galatea_only
@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_bad_model_has_one_reason(bad_server: Server, name: str) -> None:
    """It is in the log. The index contains it too if the server knows the model."""
    bad = BAD_MODELS[name]
    shown = bad.shown or name
    entries = bad_server.request("POST", "/v2/repository/index", b"").json()
    (entry,) = (entry for entry in entries if entry["name"] == shown)
    with tritonclient.grpc.InferenceServerClient(bad_server.grpc_url) as client:
        index = client.get_model_repository_index()
    (over_grpc,) = (entry for entry in index.models if entry.name == shown)
    assert (over_grpc.state, over_grpc.reason) == (entry.get("state", ""), entry.get("reason", ""))
    if bad.is_known:
        assert entry["state"] == "UNAVAILABLE"
        assert bad.reason in entry["reason"]
    else:
        assert entry == {"name": shown}
    errors = [line for line in bad_server.log().splitlines() if line.startswith("E")]
    # Quotes and backslashes of a message are escaped in the log.
    quoted = shown.replace("\\", "\\\\")
    about = [line for line in errors if f"'{quoted}'" in line and bad.reason in line]
    assert about, errors


@pytest.mark.galatea_only
def test_check_finds_every_bad_model(program: Program, bad_repository: pathlib.Path) -> None:
    """`galatea check` serves no model, and reports nothing about the good one."""
    path, *library = program.command([])
    command = [path, "check", "--json", *library, str(bad_repository)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert done.returncode == 1, done
    errors = {one["name"]: one["errors"] for one in json.loads(done.stdout)["models"]}
    assert set(errors) == {"good", *(bad.shown or name for name, bad in BAD_MODELS.items())}
    assert [name for name, found in errors.items() if not found] == ["good"]


@pytest.mark.galatea_only
def test_good_models_serve_despite_bad_ones(bad_server: Server) -> None:
    """The server isn't ready, because some models failed to load."""
    assert added_value(bad_server, "good") == 7
    assert bad_server.get("/v2/health/live").status == 200
    assert bad_server.get("/v2/health/ready").status == 400
    ready = bad_server.request("POST", "/v2/repository/index", b'{"ready":true}').json()
    assert [entry["name"] for entry in ready] == ["good"]


def without_root_capabilities() -> list[str]:
    """A command that starts another one without root's right to read every file.

    It keeps the root user but drops the capabilities that bypass permissions, because the program
    and its libraries may be where only root can read them.
    """
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, because root can read every file")
    taken = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={taken}", f"--inh-caps={taken}"]


def test_unreadable_files(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """If the server's user may not read a file, its model fails with an error."""
    write_model(tmp_path, "good", 7)
    write_model(tmp_path, "closed_model", 1)
    (tmp_path / "closed_model" / "1" / "model.onnx").chmod(0)
    write_model(tmp_path, "closed_config", 1, config=ONNX)
    (tmp_path / "closed_config" / "config.pbtxt").chmod(0)
    write_model(tmp_path, "closed_version", 1)
    (tmp_path / "closed_version" / "1").chmod(0)
    try:
        launcher = without_root_capabilities()
        with start_server(tmp_path, "--exit-on-error=false", launcher=launcher) as server:
            server.wait_until_live()
            wait_until(lambda: added_value_or_none(server) == 7, 60, "the good model serves")
            lines = server.log().splitlines()
            for name, why in (
                ("closed_model", "system error number 13"),
                ("closed_config", "Permission denied"),
                ("closed_version", "Permission denied"),
            ):
                assert server.get(f"/v2/models/{name}/ready").status == 400
                assert any(name in line and why in line for line in lines), name
    finally:
        (tmp_path / "closed_version" / "1").chmod(0o700)


def test_one_bad_model_among_two_hundred(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The other models are ready and respond."""
    for number in range(200):
        directory = tmp_path / f"m{number}"
        (directory / "1").mkdir(parents=True)
        text = TENSOR.format(dims="-1")
        (directory / "config.pbtxt").write_text(text)
    replace_file(tmp_path / "m77" / "config.pbtxt", b'backend: "identity" max_batch_size: -1')
    replace_file(tmp_path / "m78" / "config.pbtxt", b'backend: "onnxruntime"')
    replace_file(tmp_path / "m78" / "1" / "model.onnx", b"this is no model")
    with start_server(tmp_path, "--exit-on-error=false") as server:
        server.wait_until_live()

        def states() -> dict[str, str]:
            entries = server.request("POST", "/v2/repository/index", b"").json()
            return {entry["name"]: entry.get("state", "") for entry in entries}

        wait_until(lambda: list(states().values()).count("READY") == 198, 60, "198 are ready")
        bad = {"m77", "m78"}
        assert {name for name, state in states().items() if state != "READY"} == bad
        tensor = {"name": "INPUT0", "shape": [2], "datatype": "FP32", "data": [1, 2]}
        for number in range(200):
            reply = server.infer(f"m{number}", {"inputs": [tensor]})
            assert (reply.status == 200) == (f"m{number}" not in bad), reply


@pytest.mark.galatea_only
def test_links_into_the_kernel_or_back_up_end_no_walk(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Such links lead to every file on the machine, many times over."""
    repository = tmp_path / "models"
    write_model(repository, "good", 7)
    for name, target in {
        "good/1/process": "/proc/self",
        "good/1/all": "/",
        "good/2": "1",
        "process": "/proc/self",
        "up": "..",
    }.items():
        (repository / name).symlink_to(target)
    with start_server(repository, "--exit-on-error=false") as server:
        server.wait_until_live()
        wait_until(lambda: added_value_or_none(server) == 7, 60, "the good model serves")
    command = program.command([])
    checked = subprocess.run(
        [command[0], "check", "--json", *command[1:], repository],
        capture_output=True, timeout=60, check=False,
    )
    models = json.loads(checked.stdout)["models"]
    assert {model["name"] for model in models if model["errors"]} == {"process", "up"}
