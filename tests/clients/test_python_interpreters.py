"""Tests of models with interpreters of several versions and builds, with and without numpy.

GALATEA_PYTHONS lists the interpreters, separated by colons. Without it, only the interpreter
from which the test environment was created is used; all other modules use the test
environment's own interpreter.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from conftest import StartServer
from python_backend import tensors, write_model
from server import Server
from test_python_models import DATATYPES, DECOUPLED, DLPACK, ECHO, texts
from transports import Grpc, GrpcStream

LISTED = os.environ.get("GALATEA_PYTHONS", "")
BASE = getattr(sys, "_base_executable", sys.executable)
PYTHONS = [*filter(None, LISTED.split(os.pathsep))] or [BASE]

PROBE = """
import json, sys
try:
    import numpy
    version = numpy.__version__
except ImportError:
    version = None
is_free = not getattr(sys, "_is_gil_enabled", lambda: True)()
version_of_python = "%d.%d.%d" % sys.version_info[:3]
print(json.dumps({"python": version_of_python, "numpy": version, "is_free": is_free}))
"""


@functools.cache
def probe(python: str) -> dict[str, Any]:
    """The properties of an interpreter."""
    done = subprocess.run([python, "-c", PROBE], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def write_models(repository: pathlib.Path, has_numpy: bool) -> None:
    """The models that an interpreter can serve."""
    called = 'parameters {{ key: "called" value {{ string_value: "{}" }} }}'
    write_model(repository, "bare", called.format("bare_inner"), "bare")
    write_model(repository, "bare_inner", called.format(""), "bare")
    if not has_numpy:
        return
    add_sub = tensors("INPUT0:FP32 INPUT1:FP32", "OUTPUT0:FP32 OUTPUT1:FP32")
    repeat = tensors("IN:INT32 WAY:STRING:1", "OUT:INT32:1") + DECOUPLED
    metrics = tensors("IN:FP32:1", "OUT:STRING:1")
    bls = "max_batch_size: 4 " + tensors("WAY:STRING:1 ARGUMENT:STRING:1", "OUT:STRING:1")
    for name, config, python in [
        ("add_sub", "max_batch_size: 4 " + add_sub, "add_sub"),
        ("echo", ECHO, "echo"),
        ("dlpack", DLPACK, "echo"),
        ("repeat", repeat, "repeat"),
        ("metrics", metrics, "metrics"),
        ("bls", bls, "bls"),
    ]:
        write_model(repository, name, config, python)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test runs with each interpreter. Those with a client require numpy."""
    needs_numpy = "client" in metafunc.fixturenames
    pythons = [one for one in PYTHONS if not needs_numpy or probe(one)["numpy"]]
    names = [f"{pathlib.Path(one).parts[-3]}-{number}" for number, one in enumerate(pythons)]
    reason = "needs an interpreter with NumPy in GALATEA_PYTHONS"
    none = [pytest.param("", marks=pytest.mark.skip(reason=reason), id="none")]
    metafunc.parametrize("python", pythons or none, ids=names or None, scope="module")


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("interpreters")
    write_models(repository, probe(python)["numpy"] is not None)
    with start_server(repository, f"--backend-config=python,interpreter={python}") as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0
    assert running.log().count("bare: finalized") == 2


@pytest.fixture
def client(server: Server) -> Iterator[Grpc]:
    """A client of models with numpy."""
    one = Grpc(server)
    yield one
    one.close()


@pytest.mark.parametrize("count", [3, 100_000])
def test_without_numpy(server: Server, python: str, count: int) -> None:
    data = [float(number) for number in range(count)]
    tensor = {"name": "DATA", "datatype": "FP32", "shape": [count], "data": data}
    answer = server.infer("bare", {"inputs": [tensor]}).json()
    assert answer["outputs"][0]["data"] == data
    about = probe(python)
    assert answer["parameters"] == {
        "python": about["python"],
        "gil": not about["is_free"],
        "numpy": False,
    }
    requests = re.findall(r"^bare(?:_inner)? (\d+)$", server.metrics(), flags=re.MULTILINE)
    assert len(requests) == 2 and len(set(requests)) == 1
    assert "bare_inner answered" in server.log()


def test_arithmetic(client: Grpc) -> None:
    values = numpy.array([[1.5, -2]], numpy.float32)
    outputs = client.infer("add_sub", {"INPUT0": values, "INPUT1": values * 2})
    assert outputs["OUTPUT0"].tolist() == [[4.5, -6.0]]
    assert outputs["OUTPUT1"].tolist() == [[-1.5, 2.0]]


@pytest.mark.parametrize("count", [2, 20_000])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_data_types(client: Grpc, datatype: str, count: int) -> None:
    values = numpy.arange(2 * count).reshape(count, 2).astype(DATATYPES[datatype])
    outputs = client.infer("echo", {f"IN_{datatype}": values})
    assert outputs[f"OUT_{datatype}"].dtype == values.dtype
    assert (outputs[f"OUT_{datatype}"] == values).all()


def test_texts(client: Grpc) -> None:
    values = texts("a", b"\0\xff", "", "é" * 20_000).reshape(2, 2)
    outputs = client.infer("echo", {"IN_STRING": values})
    assert outputs["OUT_STRING"].tolist() == values.tolist()


@pytest.mark.parametrize("count", [5, 50_000])
def test_dlpack(client: Grpc, count: int) -> None:
    values = numpy.arange(count, dtype=numpy.float32)
    outputs = client.infer("dlpack", {"DLPACK_IN": values})
    assert (outputs["DLPACK_OUT"] == values).all()


@pytest.mark.parametrize("way", ["now", "later"])
def test_many_responses(client: Grpc, server: Server, way: str) -> None:
    with GrpcStream(server) as stream:
        values = numpy.arange(50, dtype=numpy.int32)
        stream.send("repeat", {"IN": values, "WAY": texts(way)})
        received = [stream.receive()[1]["OUT"].tolist() for _ in values]
    assert received == [[one] for one in values]


@pytest.mark.parametrize("way", ["many", "concurrent"])
def test_calls(client: Grpc, way: str) -> None:
    inputs = {"WAY": texts(way).reshape(1, 1), "ARGUMENT": texts("add_sub").reshape(1, 1)}
    result = json.loads(client.infer("bls", inputs)["OUT"].flat[0])
    assert len(result) == {"many": 50, "concurrent": 20}[way]
    assert all("raised" not in one and "error" not in one for one in result), result


def test_metrics(client: Grpc, server: Server) -> None:
    client.infer("metrics", {"IN": numpy.array([2], numpy.float32)})
    assert re.search(r"^metrics_HISTOGRAM_sum\{.*\} 2$", server.metrics(), flags=re.MULTILINE)
