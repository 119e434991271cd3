"""Tests of programs that were written for Triton's packages, under these packages' names.

The steps are from Triton's tutorials: a shell with an identity model, a server behind an
endpoint that writes responses as JSON, and memory allocators as in its older releases.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import galatea
import numpy
import pytest
from conftest import ROOT, Start, array, write_model

CONFIG = """
backend: "python"
input [ { name: "string_input" data_type: TYPE_STRING dims: [ -1, -1 ] } ]
output [ { name: "string_output" data_type: TYPE_STRING dims: [ -1, -1 ] } ]
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor(tensor.name().replace("input", "output"), tensor.as_numpy())
            for tensor in request.inputs()
        ]) for request in requests]
"""
#: A shell: an option of the server, models and their states, text in and out.
SHELL = """
import sys
import tritonserver

server = tritonserver.Server(model_repository=sys.argv[1])
server.start()
print(server.models())
model = server.model("identity")
responses = model.infer(inputs={"string_input": [["hello world!"]]})
for response in responses:
    print(response.outputs["string_output"].to_string_array())
server.stop()
"""
#: An endpoint: explicit loads, the C API's names of types, and all of a response as JSON.
ENDPOINT = """
import json
import sys
import numpy as np
import tritonserver
from tritonserver._c.triton_bindings import TRITONSERVER_DataType

class Encoder(json.JSONEncoder):
    def default(self, value):
        return value.tolist() if isinstance(value, np.ndarray) else super().default(value)

server = tritonserver.Server(
    model_repository=sys.argv[1],
    model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
    log_info=False, metrics=True, gpu_metrics=True, cpu_metrics=True,
)
server.start(wait_until_ready=True)
assert server.metadata()["name"]
if not server.model("identity").ready():
    assert server.load("identity").ready()
for response in server.model("identity").infer(inputs={"string_input": np.array([["a", "b"]])}):
    out = {}
    for output, value in response.outputs.items():
        is_text = value.data_type == TRITONSERVER_DataType.BYTES
        out[output] = value.to_string_array() if is_text else np.from_dlpack(value)
    message = response.__dict__
    message["outputs"] = out
    message["model"] = message["model"].__dict__
    message["model"].pop("_server", None)
    print(json.dumps(message, cls=Encoder))
server.stop()
"""
FRONTEND = """
import sys
import urllib.request
import tritonserver
from tritonfrontend import KServeHttp

server = tritonserver.Server(model_repository=sys.argv[1]).start(wait_until_ready=True)
service = KServeHttp(server, KServeHttp.Options(address="127.0.0.1", port=0))
service.start()
print(urllib.request.urlopen(f"http://127.0.0.1:{service.port}/v2/health/ready").status)
service.stop()
server.stop()
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The programs' model."""
    folder = tmp_path_factory.mktemp("aliases")
    (write_model(folder, "identity", CONFIG) / "model.py").write_text(MODEL)
    return folder


def run(program: str, repository: pathlib.Path) -> str:
    """The output of a program that sees the package and its aliases."""
    site = pathlib.Path(galatea.__file__).parents[1]
    path = os.pathsep.join([str(site), str(ROOT / "python/aliases")])
    done = subprocess.run(
        [sys.executable, "-c", program, repository],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_a_shell(repository: pathlib.Path) -> None:
    models, answer = run(SHELL, repository).splitlines()
    assert models == "{('identity', 1): {'name': 'identity', 'version': 1, 'state': 'READY'}}"
    assert answer == "[['hello world!']]"


def test_an_endpoint(repository: pathlib.Path) -> None:
    message = json.loads(run(ENDPOINT, repository))
    assert message["outputs"] == {"string_output": [["a", "b"]]}
    assert message["model"]["name"] == "identity" and message["error"] is None


def test_the_frontends(repository: pathlib.Path) -> None:
    assert run(FRONTEND, repository) == "200\n"


class Counting(galatea.MemoryAllocator):
    """Counts what it allocates."""

    def __init__(self, less: int = 0) -> None:
        self.made: list[tuple[int, galatea.MemoryType, int]] = []
        self._less = less

    def allocate(
        self, size: int, memory_type: galatea.MemoryType, memory_type_id: int
    ) -> galatea.MemoryBuffer:
        self.made.append((size, memory_type, memory_type_id))
        return galatea.MemoryBuffer.from_dlpack(numpy.empty(size - self._less, numpy.byte))


class Broken(galatea.MemoryAllocator):
    """Always fails."""

    def allocate(self, *_: object) -> galatea.MemoryBuffer:
        raise RuntimeError("no memory today")


def test_outputs_in_memory_of_the_program(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = start("identity_fp32").model("identity_fp32")
    inputs = {"INPUT0": array(1, 2)}
    allocator = Counting()
    [response] = model.infer(
        inputs=inputs, output_memory_allocator=allocator, output_memory_type="gpu:1")
    numpy.testing.assert_array_equal(response.outputs["OUTPUT0"], array(1, 2))
    assert allocator.made == [(8, galatea.MemoryType.GPU, 1)]
    assert response.outputs["OUTPUT0"].memory_type == galatea.MemoryType.CPU
    default = Counting()
    allocators = galatea.default_memory_allocators
    monkeypatch.setitem(allocators, galatea.MemoryType.CPU, default)
    [response] = model.infer(inputs=inputs)
    numpy.testing.assert_array_equal(response.outputs["OUTPUT0"], array(1, 2))
    assert default.made == [(8, galatea.MemoryType.CPU, 0)]
    for wrong, why in ((Broken(), "no memory today"), (Counting(less=1), "returned 7 bytes")):
        with pytest.raises(galatea.InternalError, match=why):
            list(model.infer(inputs=inputs, output_memory_allocator=wrong))
