"""Tests of models on demand that other models call or load, and of explicit loads that bring a
configuration and files."""

from __future__ import annotations

import base64
import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import StartServer
from constant_models import added_value, constant_model, write_model
from demand_models import (
    BUDGET,
    MODEL_BYTES,
    PYTHON,
    index,
    infer,
    make_heavy,
    memory,
    metric,
    order,
    resident,
    serving,
    value_of,
    wait_for_waiting,
    write_gated,
    write_identity,
)
from server import Reply, Server

pytestmark = pytest.mark.galatea_only

#: A model that does what its file `target` says: it calls, loads or unloads the named models.
CALLER = """
import os
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.target = os.path.join(args["model_repository"], "target")

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        for line in open(self.target).read().splitlines():
            way, model = line.split()
            try:
                tensor = getattr(self, way)(model, tensor)
            except pb_utils.TritonModelException as error:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])

    def call(self, model, tensor):
        request = pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=["OUTPUT0"],
            inputs=[pb_utils.Tensor("INPUT0", tensor.as_numpy())],
        )
        response = request.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return response.output_tensors()[0]

    def load(self, model, tensor):
        pb_utils.load_model(model)
        return tensor

    def unload(self, model, tensor):
        pb_utils.unload_model(model)
        return tensor
"""
WOULD_DEADLOCK = '{reason="would_deadlock"}'


def write_caller(repository: pathlib.Path, name: str, instances: int = 1) -> pathlib.Path:
    """Writes a model that calls others. Returns the file that names them."""
    make_heavy(repository, name)
    group = f"instance_group {{ kind: KIND_CPU count: {instances} }}\n"
    (repository / name / "config.pbtxt").write_text(PYTHON + group)
    (repository / name / "1" / "model.py").write_text(CALLER)
    return repository / name / "target"


def write_adding(repository: pathlib.Path, name: str, value: int) -> None:
    write_model(repository, name, value)
    make_heavy(repository, name)


def test_models_call_models_that_are_not_in_memory(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    target = write_caller(tmp_path, "caller")
    for number in range(4):
        write_adding(tmp_path, f"m{number}", 10**number)
    target.write_text("".join(f"call m{number}\n" for number in range(4)))
    with serving(start_server, tmp_path) as server:
        # Two of the four fit beside their caller, so they replace each other.
        for _ in range(3):
            assert value_of(infer(server, "caller")) == 7 + 1111
            assert "caller" in resident(server)
        assert metric(server, "galatea_model_evictions_total") >= 2
        assert metric(server, "galatea_model_refusals_total", WOULD_DEADLOCK) == 0


def test_nested_requests_share_a_load(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    target = write_caller(tmp_path, "caller", instances=3)
    gate = write_gated(tmp_path, "gated")
    target.write_text("call gated\n")
    with serving(start_server, tmp_path) as server, ThreadPoolExecutor(4) as pool:
        assert order(server, "caller", "load").status == 200
        bodies = range(3)
        nested = [pool.submit(infer, server, "caller", value) for value in bodies]
        direct = pool.submit(infer, server, "gated", 9)
        wait_for_waiting(server, 4)
        assert memory(server, "caller")["in_use"]
        gate.write_text("")
        assert [value_of(reply.result()) for reply in nested] == list(bodies)
        assert value_of(direct.result()) == 9
        assert metric(server, "galatea_model_loads_total") == 2


@pytest.mark.parametrize("way", ["call", "load"])
def test_a_nested_request_that_would_wait_for_its_sender_is_refused(
    start_server: StartServer, tmp_path: pathlib.Path, way: str
) -> None:
    """The model fits, but not beside the model that calls it, which can't be unloaded now."""
    target = write_caller(tmp_path, "caller")
    write_identity(tmp_path, "wide", size=BUDGET - MODEL_BYTES // 2)
    write_identity(tmp_path, "net")
    target.write_text(f"{way} wide\n")
    with serving(start_server, tmp_path) as server:
        refused = infer(server, "caller")
        assert refused.status == 500, refused
        assert "'wide' can't be loaded for a request of another model" in refused.error()
        assert metric(server, "galatea_model_refusals_total", WOULD_DEADLOCK) == 1
        # Nothing was unloaded or pinned for it, and the caller serves on.
        assert resident(server) == {"caller"}
        assert not memory(server, "wide")["pinned"]
        target.write_text(f"{way} net\n")
        assert value_of(infer(server, "caller")) == 7
        assert memory(server, "net")["pinned"] == (way == "load")
        if way == "load":
            assert order(server, "net", "unload").status == 200
        # A client's request waits until the caller is idle.
        assert value_of(infer(server, "wide")) == 7
        assert resident(server) == {"wide"}


def test_models_load_and_unload_others(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    target = write_caller(tmp_path, "caller")
    write_adding(tmp_path, "net", 3)
    with serving(start_server, tmp_path) as server:
        target.write_text("load net\ncall net\n")
        assert value_of(infer(server, "caller")) == 10
        assert memory(server, "net")["pinned"]
        target.write_text("unload net\n")
        assert value_of(infer(server, "caller")) == 7
        assert memory(server, "net")["unloaded_by_client"]
        target.write_text("call net\n")
        assert "Model 'net' is not ready." in infer(server, "caller").error()
        target.write_text("load net\ncall net\n")
        assert value_of(infer(server, "caller")) == 10


def load_with(server: Server, model: str, config: str, files: dict[str, bytes]) -> Reply:
    """Loads a model with a configuration and files."""
    encoded = {path: base64.b64encode(content).decode() for path, content in files.items()}
    parameters = {"config": config, **encoded}
    return order(server, model, "load", json.dumps({"parameters": parameters}).encode())


def test_explicit_loads_bring_a_configuration(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    write_adding(tmp_path, "net", 3)
    batched = json.dumps({"backend": "onnxruntime", "max_batch_size": 4})
    with serving(start_server, tmp_path) as server:

        def batch_size() -> int:
            return server.get("/v2/models/net/config").json()["max_batch_size"]

        assert load_with(server, "net", batched, {}).status == 200
        assert (added_value(server, "net"), batch_size()) == (3, 4)
        assert memory(server, "net")["pinned"]
        # A resident model is loaded again.
        batched = batched.replace("4", "5")
        assert load_with(server, "net", batched, {}).status == 200
        assert (added_value(server, "net"), batch_size()) == (3, 5)
        assert metric(server, "galatea_model_loads_total") == 1
        refused = load_with(server, "net", '{"backend": "nothing"}', {})
        assert refused.status >= 400 and refused.error()
        assert (added_value(server, "net"), batch_size()) == (3, 5)
        # After an unload, the repository's configuration counts.
        assert order(server, "net", "unload").status == 200
        refused = load_with(server, "net", '{"backend": "nothing"}', {})
        assert refused.status >= 400 and refused.error()
        assert order(server, "net", "load").status == 200
        assert added_value(server, "net") == 3
        assert batch_size() != 5


def test_explicit_loads_bring_files(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    write_adding(tmp_path, "net", 3)
    for number in range(3):
        write_identity(tmp_path, f"m{number}")
    config = json.dumps({"backend": "onnxruntime"})
    weights = {"file:1/model.onnx": constant_model(20), "file:1/weights": b"x" * (8 << 20)}
    with serving(start_server, tmp_path) as server:
        assert load_with(server, "net", config, weights).status == 200
        assert added_value(server, "net") == 20
        assert memory(server, "net")["bytes"] >= 8 << 20
        # A model that no repository has comes with its files, and is gone with them.
        assert load_with(server, "guest", config, weights).status == 200
        assert added_value(server, "guest") == 20
        for name in ("m0", "m1", "m2", "m0"):
            assert value_of(infer(server, name)) == 7
            assert {"net", "guest"} < resident(server)
        assert order(server, "guest", "unload").status == 200
        assert infer(server, "guest").status == 404
        assert index(server).get("guest", "UNAVAILABLE unloaded").startswith("UN")
        assert order(server, "guest", "load").status >= 400
        # The repository's files count again after the next load.
        assert order(server, "net", "load").status == 200
        assert added_value(server, "net") == 3
        assert memory(server, "net")["bytes"] >= MODEL_BYTES
