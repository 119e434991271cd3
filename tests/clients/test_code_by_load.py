"""Tests of code that comes with a load request: it is accepted, as in Triton, unless a flag
forbids it."""

from __future__ import annotations

import base64
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import StartServer
from constant_models import added_value, constant_model
from constant_models import write_model as write_onnx
from python_backend import interpreter_flag, tensors, write_model
from server import Reply, Server, wait_until

EXPLICIT = "--model-control-mode=explicit"
FORBIDDEN = "--allow-model-code-from-loads=false"
IN_AND_OUT = tensors("IN:FP32:1", "OUT:FP32:1")
TENSORS = {
    "max_batch_size": 0,
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
}
#: Leaves a trace of its execution.
CODE = """
import pathlib
pathlib.Path({trace!r}).touch()
class TritonPythonModel:
    def execute(self, requests):
        raise RuntimeError("not called")
"""


def load(
    server: Server, model: str, config: dict[str, Any] | None, **files: bytes
) -> Reply:
    """Loads a model. In the name of a file, `__` stands for `/`, and a `_` after it stands
    for a dot."""
    parameters: dict[str, str] = {}
    if config is not None:
        parameters["config"] = json.dumps(config)
    for name, content in files.items():
        path = name.replace("__", "/").replace("_", ".").lstrip("v")
        parameters[f"file:{path}"] = base64.b64encode(content).decode()
    body = json.dumps({"parameters": parameters}).encode()
    return server.request("POST", f"/v2/repository/models/{model}/load", body)


def refused(
    server: Server, model: str, config: dict[str, Any], reason: str, **files: bytes
) -> None:
    """A load that fails with Triton's error, and logs which code was refused."""
    before = len(server.log())
    reply = load(server, model, config, **files)
    expected = f"failed to load '{model}', failed to poll from model repository"
    assert (reply.status, reply.error()) == (500, expected)
    line = server.log()[before:]
    assert reason in line and FORBIDDEN in line, line


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Python model, and a model that consists of data."""
    made = tmp_path_factory.mktemp("models")
    write_model(made, "own", IN_AND_OUT, "echo")
    (made / "own" / "1" / "other.py").write_text(CODE.format(trace=str(made / "other_trace")))
    write_onnx(made, "data", 7)
    return made


@pytest.fixture(scope="module")
def strict(start_server: StartServer, repository: pathlib.Path) -> Iterator[Server]:
    """A server that doesn't allow load requests to bring code."""
    with start_server(repository, EXPLICIT, FORBIDDEN, interpreter_flag()) as server:
        yield server.wait_until_ready()


def code(repository: pathlib.Path) -> bytes:
    """A model that leaves a trace when its code runs."""
    return CODE.format(trace=str(repository / "trace")).encode()


def test_a_load_brings_code_by_default(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """As in Triton."""
    repository = tmp_path / "models"
    repository.mkdir()
    with start_server(repository, EXPLICIT, interpreter_flag()) as server:
        server.wait_until_ready()
        config = {**TENSORS, "backend": "python"}
        reply = load(server, "m", config, v1__model_py=code(repository))
        assert reply.status == 200, reply
        assert (repository / "trace").exists()


@pytest.mark.galatea_only
@pytest.mark.parametrize(
    ("config", "names", "reason"),
    [
        ({"backend": "python"}, ["v1__model_py"], "file '1/model.py' is code"),
        ({}, ["v1__model_py"], "file '1/model.py' is code"),
        ({"backend": "python"}, ["v1__model"], "backend: models of 'python' may be code"),
        (
            {"backend": "python", "default_model_filename": "data"},
            ["v1__data"],
            "backend: models of 'python' may be code",
        ),
        ({"backend": "mine"}, ["v1__libtriton_mine_so"], "is code"),
        ({"backend": "mine"}, ["v1__model"], "backend: models of 'mine' may be code"),
        ({"platform": "pytorch_libtorch"}, ["v1__model_pt"], "models of 'pytorch' may be code"),
        ({"backend": "identity"}, ["batchstrategy_so"], "is code"),
        (
            {"backend": "identity", "model_repository_agents": {"agents": [{"name": "a"}]}},
            ["v1__model"],
            "model_repository_agents: 'a' is code",
        ),
        (
            {"backend": "onnxruntime", "model_operations": {"op_library_filename": ["a"]}},
            ["v1__model_onnx"],
            "model_operations.op_library_filename",
        ),
        ({"backend": "identity", "runtime": "other"}, ["v1__model"], "runtime: 'other' is code"),
    ],
)
def test_files_that_are_code(
    strict: Server,
    repository: pathlib.Path,
    config: dict[str, Any],
    names: list[str],
    reason: str,
) -> None:
    content = dict.fromkeys(names, code(repository))
    refused(strict, "brought", {**TENSORS, **config}, reason, **content)
    assert not (repository / "trace").exists()
    assert strict.get("/v2/models/brought/ready").status == 400


@pytest.mark.galatea_only
@pytest.mark.parametrize(
    ("model", "config", "reason"),
    [
        ("data", {"backend": "python"}, "backend: models of 'python' may be code"),
        ("data", {"backend": "python", "default_model_filename": "model.onnx"}, "backend"),
        ("own", {"backend": "mine"}, "backend: models of 'mine' may be code"),
        ("own", {"backend": "python", "default_model_filename": "other.py"},
         "default_model_filename: another file than the repository's may be code"),
        ("own", {"backend": "python", "parameters": {
            "EXECUTION_ENV_PATH": {"string_value": "/tmp/environment.tar.gz"}}},
         "parameters: another 'EXECUTION_ENV_PATH' than the repository's may name code"),
        ("own", {"backend": "python", "parameters": {
            "TRITON_BATCH_STRATEGY_PATH": {"string_value": "1/other.so"}}},
         "parameters.TRITON_BATCH_STRATEGY_PATH: '1/other.so' is code"),
        ("own", {"backend": "python", "runtime": "libother.so"},
         "runtime: 'libother.so' is code"),
        ("own", {"backend": "python", "model_repository_agents": {"agents": [{"name": "a"}]}},
         "model_repository_agents: 'a' is code"),
    ],
)  # fmt: skip
def test_configurations_that_name_code(
    strict: Server, repository: pathlib.Path, model: str, config: dict[str, Any], reason: str
) -> None:
    refused(strict, model, {**TENSORS, **config}, reason)
    assert not (repository / "other_trace").exists()


@pytest.mark.galatea_only
def test_data_and_code_of_the_repository_are_loaded(strict: Server) -> None:
    assert load(strict, "own", None).status == 200
    config = {**TENSORS, "backend": "python", "instance_group": [{"count": 2}]}
    assert load(strict, "own", config).status == 200
    sent = {"backend": "onnxruntime"}
    assert load(strict, "sent", sent, v1__model_onnx=constant_model(5)).status == 200
    assert added_value(strict, "sent") == 5
    step = {"model_name": "own", "model_version": -1,
            "input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}  # fmt: skip
    ensemble = {**TENSORS, "platform": "ensemble", "ensemble_scheduling": {"step": [step]}}
    reply = load(strict, "steps", ensemble, v1__empty=b"")
    assert reply.status == 200, reply
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [3]}
    reply = strict.infer("steps", {"inputs": [tensor]})
    assert reply.json()["outputs"][0]["data"] == [3]


@pytest.mark.galatea_only
@pytest.mark.parametrize(
    ("flags", "is_warned"),
    [
        (["--http-address=0.0.0.0", "--allow-grpc=false"], True),
        (["--http-address=127.0.0.1", "--allow-grpc=false"], False),
        (["--allow-http=false", "--grpc-address=0.0.0.0"], True),
        (["--http-address=0.0.0.0", "--allow-grpc=false", FORBIDDEN], False),
        (["--http-address=0.0.0.0", "--allow-grpc=false",
          "--http-restricted-api=model-repository:key=value"], False),
        (["--http-address=0.0.0.0", "--allow-grpc=false",
          "--http-restricted-api=metadata:key=value"], True),
    ],
)  # fmt: skip
def test_a_line_at_start_warns_of_open_loads(
    start_server: StartServer, tmp_path: pathlib.Path, flags: list[str], is_warned: bool
) -> None:
    with start_server(tmp_path, EXPLICIT, *flags) as server:
        wait_until(lambda: "Started" in server.log(), 60, "it serves")
        lines = [line for line in server.log().splitlines() if FORBIDDEN.split("=")[0] in line]
    assert [line[0] for line in lines] == (["W"] if is_warned else [])
