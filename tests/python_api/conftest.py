"""Fixtures: the package with the extension under test, models, and servers."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Tests use modules of the clients' tests.
sys.path.append(str(ROOT / "tests" / "clients"))

_SITE = tempfile.mkdtemp(prefix="galatea-package-")

#: Makes a server with the models, control mode explicit, and stops it after the test.
Start = Callable[..., Any]

IDENTITY = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_%s dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_%s dims: [ -1 ] } ]
"""

#: COUNT tokens, each after a while; decoupled, so that each is a response.
COUNTER = """
backend: "token_counter"
max_batch_size: 4
model_transaction_policy { decoupled: true }
sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 60000000 }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TOKEN" data_type: TYPE_INT32 dims: [ -1 ] } ]
parameters { key: "DELAY_MICROSECONDS" value { string_value: "1000" } }
"""

#: Returns the parameters of its request, and how Python was started.
PYTHON_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [
  { name: "PARAMETERS" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "PYTHON" data_type: TYPE_STRING dims: [ 1 ] }
]
"""
PYTHON_MODEL = """
import sys
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("PARAMETERS", numpy.array([request.parameters()], object)),
            pb_utils.Tensor("PYTHON", numpy.array([sys.executable], object)),
        ]) for request in requests]
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the extension under test, and programs that some tests need."""
    for name, what in (
        ("--extension", "the server as a module of Python, lib_galatea.so"),
        ("--galatea", "the server as a program"),
        ("--onnxruntime-library", "ONNX Runtime's library"),
    ):
        parser.addoption(name, type=pathlib.Path, help=what)


def pytest_configure(config: pytest.Config) -> None:
    """Assembles the package: its sources, with the extension next to them."""
    extension = config.getoption("--extension")
    if extension is None:
        raise pytest.UsageError("--extension is needed")
    package = pathlib.Path(_SITE, "galatea")
    shutil.copytree(ROOT / "python/galatea", package, ignore=shutil.ignore_patterns("*.so"))
    (package / "_galatea.abi3.so").symlink_to(extension.resolve(strict=True))
    sys.path.insert(0, _SITE)
    library = config.getoption("--onnxruntime-library")
    if library is not None:
        os.environ["GALATEA_ONNXRUNTIME_LIBRARY"] = str(library.resolve(strict=True))


def pytest_unconfigure() -> None:
    """Removes the package."""
    shutil.rmtree(_SITE, ignore_errors=True)


def write_model(repository: pathlib.Path, name: str, config: str) -> pathlib.Path:
    """Writes a model's configuration; returns its version directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(config)
    return version


def _add() -> onnx.ModelProto:
    """SUM = A + B."""
    def tensor(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2])

    node = helper.make_node("Add", ["A", "B"], ["SUM"])
    graph = helper.make_graph([node], "add", [tensor("A"), tensor("B")], [tensor("SUM")])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A repository with identity models for each type, `add`, `counter` and `describe`."""
    repository = tmp_path_factory.mktemp("models")
    for kind in ("BOOL", "INT32", "FP16", "FP32", "BF16", "STRING"):
        write_model(repository, f"identity_{kind.lower()}", IDENTITY % (kind, kind))
    onnx.save(_add(), write_model(repository, "add", "max_batch_size: 4\n") / "model.onnx")
    write_model(repository, "counter", COUNTER)
    (write_model(repository, "describe", PYTHON_CONFIG) / "model.py").write_text(PYTHON_MODEL)
    return repository


@pytest.fixture
def start(models: pathlib.Path) -> Iterator[Start]:
    """Starts servers, which are stopped after the test."""
    import galatea

    running = []

    def _start(*names: str, **options: Any) -> Any:
        options.setdefault("model_repository", str(models))
        options.setdefault("log_error", True)
        options.setdefault("model_control_mode", galatea.ModelControlMode.EXPLICIT)
        server = galatea.Server(startup_models=list(names), **options)
        running.append(server)
        return server.start(wait_until_ready=True)

    yield _start
    for server in running:
        if server._server is not None:
            server.stop()


@pytest.fixture
def run_program(tmp_path: pathlib.Path, models: pathlib.Path) -> Callable[[str], str]:
    """Runs a program in a separate process. It must succeed without output."""

    def _run(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(text)
        done = subprocess.run(
            [sys.executable, path, models],
            env={**os.environ, "PYTHONPATH": _SITE},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        assert done.stderr == "", done.stderr
        return done.stdout

    return _run


def array(*values: float) -> numpy.ndarray:
    """One row of numbers."""
    return numpy.array([values], numpy.float32)
