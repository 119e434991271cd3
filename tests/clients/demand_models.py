"""Models on demand: repositories whose models take a known memory, and servers with a budget."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from tritonclient.grpc import service_pb2

from conftest import StartServer
from constant_models import request_body
from python_backend import interpreter_flag
from server import Reply, Server, wait_until

DEMAND = "--model-control-mode=demand"
#: The size of each model's files. It dominates what a load really takes.
MODEL_BYTES = 64 << 20
#: Room for three models.
BUDGET = 3 * MODEL_BYTES + (8 << 20)
NOT_RESIDENT = "not resident: loaded on demand"
SECONDS_MAX = 60.0

IDENTITY = """\
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
"""
PYTHON = """\
backend: "python"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
"""
#: A model whose load waits for the file `open` in its directory, and fails if that file says so.
GATED = """
import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        gate = os.path.join(args["model_repository"], "open")
        while not os.path.exists(gate):
            time.sleep(0.01)  # sleep: polls until opened
        if open(gate).read() == "fail":
            raise pb_utils.TritonModelException("the weights are torn")

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(one, "INPUT0") for one in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one.as_numpy())])
            for one in tensors
        ]
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling {
"""


def make_heavy(repository: pathlib.Path, name: str, size: int = MODEL_BYTES) -> None:
    """Gives a model a file of this size, which takes no room on the disk."""
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    with (version / "weights.bin").open("wb") as weights:
        weights.truncate(size)


def write_identity(repository: pathlib.Path, name: str, size: int = MODEL_BYTES) -> None:
    make_heavy(repository, name, size)
    (repository / name / "config.pbtxt").write_text(IDENTITY)


def write_gated(repository: pathlib.Path, name: str) -> pathlib.Path:
    """Writes a model whose load waits until the returned file exists."""
    make_heavy(repository, name)
    (repository / name / "config.pbtxt").write_text(PYTHON)
    (repository / name / "1" / "model.py").write_text(GATED)
    return repository / name / "open"


def write_ensemble(repository: pathlib.Path, name: str, steps: list[str]) -> None:
    (repository / name / "1").mkdir(parents=True)
    tensors = ["INPUT0", *(f"t{number}" for number in range(1, len(steps))), "OUTPUT0"]
    text = ENSEMBLE
    for number, model in enumerate(steps):
        text += (
            f'step {{ model_name: "{model}" model_version: -1 '
            f'input_map {{ key: "INPUT0" value: "{tensors[number]}" }} '
            f'output_map {{ key: "OUTPUT0" value: "{tensors[number + 1]}" }} }}\n'
        )
    (repository / name / "config.pbtxt").write_text(text + "}\n")


@contextlib.contextmanager
def serving(
    start_server: StartServer, repository: pathlib.Path, *flags: str, budget: int = BUDGET
) -> Iterator[Server]:
    limit = f"--model-memory={budget}"
    with start_server(repository, DEMAND, limit, interpreter_flag(), *flags) as server:
        yield server.wait_until_ready()


def infer(server: Server, model: str, value: int = 7) -> Reply:
    return server.infer(model, request_body(value))


def value_of(reply: Reply) -> int:
    assert reply.status == 200, reply
    return reply.json()["outputs"][0]["data"][0]


def order(server: Server, model: str, what: str, body: bytes = b"{}") -> Reply:
    return server.request("POST", f"/v2/repository/models/{model}/{what}", body)


def index(server: Server) -> dict[str, str]:
    """The state and reason of each model."""
    entries = server.request("POST", "/v2/repository/index", b"").json()
    return {
        entry["name"]: f"{entry.get('state', '')} {entry.get('reason', '')}".strip()
        for entry in entries
    }


def resident(server: Server) -> set[str]:
    return {name for name, state in index(server).items() if state == "READY"}


def memory(server: Server, model: str) -> dict[str, Any]:
    reply = server.get(f"/v2/models/{model}/memory")
    assert reply.status == 200, reply
    return reply.json()


def metric(server: Server, name: str, labels: str = "") -> int:
    lines = re.findall(rf"^{name}{re.escape(labels)} (\S+)$", server.metrics(), re.MULTILINE)
    return int(float(lines[0])) if lines else 0


def used_bytes(server: Server) -> int:
    return metric(server, "galatea_model_memory_used_bytes")


def wait_for_waiting(server: Server, count: int) -> None:
    name = "galatea_model_waiting_requests"
    wait_until(lambda: metric(server, name) == count, SECONDS_MAX, f"{count} requests wait")


def check_retry_after(reply: Reply) -> None:
    assert reply.status == 503, reply
    assert int(reply.headers["Retry-After"]) >= 1
    assert int(reply.headers["Retry-After-Ms"]) >= 1


def grpc_request(model: str, value: int = 7) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model, id=str(value))
    tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
    tensor.contents.int_contents.append(value)
    return request
