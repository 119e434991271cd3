"""Tests of paths in errors: absolute as in Triton, or relative to the repository if a flag is
set."""

from __future__ import annotations

import base64
import dataclasses
import json
import pathlib
from collections.abc import Iterator

import pytest
import tritonclient.grpc as client_grpc
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from python_backend import interpreter_flag, tensors
from server import Server

RELATIVE = "--error-paths=relative"
CONFIG = "backend: 'python' max_batch_size: 0 " + tensors("IN:FP32:1", "OUT:FP32:1")
RAISES = """
class TritonPythonModel:
    def {method}(self, argument):
        raise ValueError("no")
    def execute(self, requests):
        raise ValueError("no")
"""
#: The last line of a traceback, where line 6 is that of `execute`.
IN_EXECUTE = "model.py(6): execute"
IN_INITIALIZE = "model.py(4): initialize"
BODY = json.dumps(
    {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
).encode()


def write(repository: pathlib.Path, name: str, file: str, content: str, config: str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / file).write_text(content)
    (version.parent / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Models that fail when they are loaded, and some that fail when they execute."""
    made = tmp_path_factory.mktemp("models")
    write(made, "starts", "model.py", RAISES.format(method="finalize_"), CONFIG)
    decoupled = CONFIG + " model_transaction_policy { decoupled: true }"
    write(made, "streams", "model.py", RAISES.format(method="finalize_"), decoupled)
    write(made, "fails", "model.py", RAISES.format(method="initialize"), CONFIG)
    write(made, "broken", "model.onnx", "nonsense", "backend: 'onnxruntime'")
    return made


@dataclasses.dataclass
class Form:
    """A form of paths, and a server that was started with this form."""

    name: str
    repository: pathlib.Path
    server: Server

    def check(self, text: str, path: str) -> None:
        """The text names the path in the server's form."""
        absolute = f"{self.repository}/{path}"
        if self.name == "absolute":
            assert absolute in text, text
        else:
            assert path in text and f"/{path}" not in text, text


@pytest.fixture(scope="module", params=["absolute", "relative"])
def form(
    start_server: StartServer, repository: pathlib.Path, request: pytest.FixtureRequest
) -> Iterator[Form]:
    flags = [f"--error-paths={request.param}", "--model-control-mode=explicit"]
    loads = ["--load-model=starts", "--load-model=streams"]
    with start_server(repository, *flags, *loads, interpreter_flag()) as server:
        yield Form(request.param, repository, server.wait_until_ready())


@pytest.mark.galatea_only
# row: SEC-04
def test_errors_of_loads(form: Form) -> None:
    server = form.server
    for model, path in [("fails", f"fails/1/{IN_INITIALIZE}"), ("broken", "broken/1/model.onnx")]:
        reply = server.request("POST", f"/v2/repository/models/{model}/load", b"{}")
        form.check(reply.error(), path)
        index = server.request("POST", "/v2/repository/index", b"").json()
        reasons = [entry["reason"] for entry in index if entry["name"] == model]
        form.check(reasons[0], path)
        with client_grpc.InferenceServerClient(server.grpc_url) as client:
            with pytest.raises(InferenceServerException) as refused:
                client.load_model(model)
            form.check(refused.value.message() or "", path)
    # The log tells the operator where the file is.
    assert f"{form.repository}/fails/1/{IN_INITIALIZE}" in server.log()


@pytest.mark.galatea_only
def test_errors_of_executions(form: Form) -> None:
    server = form.server
    path = f"starts/1/{IN_EXECUTE}"
    reply = server.request("POST", "/v2/models/starts/infer", BODY)
    form.check(reply.error(), path)
    generate = json.dumps({"IN": [1.0]}).encode()
    reply = server.request("POST", "/v2/models/starts/generate", generate)
    form.check(reply.error(), path)
    reply = server.request("POST", "/v2/models/streams/generate_stream", generate)
    form.check(reply.body.decode(), f"streams/1/{IN_EXECUTE}")
    with client_grpc.InferenceServerClient(server.grpc_url) as client:
        given = client_grpc.InferInput("IN", [1], "FP32")
        given._raw_content = b"\0\0\0\0"
        with pytest.raises(InferenceServerException) as refused:
            client.infer("starts", [given])
        form.check(refused.value.message() or "", path)
        errors = list(client_stream(client, "streams", given))
        form.check(errors[0], f"streams/1/{IN_EXECUTE}")


def client_stream(
    client: client_grpc.InferenceServerClient, model: str, given: client_grpc.InferInput
) -> Iterator[str]:
    """The errors of one request in a stream."""
    errors: list[str] = []
    client.start_stream(lambda result, error: errors.append(str(error)))
    client.async_stream_infer(model, [given])
    # Waits for the last reply.
    client.stop_stream()
    yield from errors


@pytest.mark.galatea_only
def test_files_of_a_load(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Files that come with a load are in a temporary directory, whose path is hidden too."""
    code = RAISES.format(method="initialize")
    with start_server(
        tmp_path, RELATIVE, "--model-control-mode=explicit", interpreter_flag()
    ) as server:
        server.wait_until_ready()
        config = {
            "backend": "python",
            "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
        }
        parameters = {
            "config": json.dumps(config),
            "file:1/model.py": base64.b64encode(code.encode()).decode(),
        }
        body = json.dumps({"parameters": parameters}).encode()
        error = server.request("POST", "/v2/repository/models/m/load", body).error()
        assert f" 1/{IN_INITIALIZE}" in error and "galatea-" not in error, error


@pytest.mark.galatea_only
def test_another_form_is_refused(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    with start_server(tmp_path, "--error-paths=short") as server:
        assert server.wait_for_exit() == 1
        assert "expected 'absolute' or 'relative'. Got short" in server.log()
