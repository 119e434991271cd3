"""Tests of models that are a single function, from the file to the client, and of `galatea new`."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from conftest import StartServer
from python_backend import interpreter_flag
from server import Program, Server
from transports import TRANSPORTS, GrpcStream, Transport

pytestmark = pytest.mark.galatea_only

SECONDS_MAX = 60
SUM = """
import numpy as np
from numpy.typing import NDArray

MAX_BATCH_SIZE = 8


def predict(a: NDArray[np.float32], b: NDArray[np.float32] = None) -> NDArray[np.float32]:
    return a if b is None else a + b
"""
COUNT = """
from typing import Iterator


def predict(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"number {number}"
"""
#: Each request waits for the next one; the last one finds that all are there.
MEET = """
import asyncio

arrived = 0
all_are_there = None


async def predict(count: int) -> int:
    global arrived, all_are_there
    all_are_there = all_are_there or asyncio.Event()
    arrived += 1
    if arrived == count:
        all_are_there.set()
    await all_are_there.wait()
    return arrived
"""
INVERSE = """
def predict(x: float) -> float:
    return 1 / x
"""
CLASS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_max_batch_size(4)
        return config

    def execute(self, requests):
        tensors = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one)]) for one in tensors]
"""
MODELS = {"sum": SUM, "count": COUNT, "meet": MEET, "inverse": INVERSE}


def write(repository: pathlib.Path, name: str, source: str) -> None:
    """A model that is a single file."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source)


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with the models."""
    repository = tmp_path_factory.mktemp("functions")
    for name, source in MODELS.items():
        write(repository, name, source)
    with start_server(repository, interpreter_flag()) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, server: Server) -> Iterator[Transport]:
    """Each protocol."""
    one = TRANSPORTS[request.param](server)
    yield one
    one.close()


def test_the_configuration(server: Server) -> None:
    """The effects of the hints that clients see."""
    config = server.get("/v2/models/sum/config").json()
    tensors = [
        (one["name"], one["data_type"], one["dims"], one.get("optional"))
        for one in config["input"] + config["output"]
    ]
    assert tensors == [
        ("a", "TYPE_FP32", [-1], False),
        ("b", "TYPE_FP32", [-1], True),
        ("output", "TYPE_FP32", [-1], None),
    ]
    assert (config["max_batch_size"], "dynamic_batching" in config) == (8, True)
    config = server.get("/v2/models/count/config").json()
    assert config["model_transaction_policy"] == {"decoupled": True}


@pytest.mark.parametrize("columns", [3, 20_000])
def test_arrays(transport: Transport, columns: int) -> None:
    """Short and long requests, with and without the optional input."""
    a = numpy.arange(2 * columns, dtype=numpy.float32).reshape(2, columns)
    assert (transport.infer("sum", {"a": a})["output"] == a).all()
    assert (transport.infer("sum", {"a": a, "b": a})["output"] == 2 * a).all()


def test_clients_that_come_together(server: Server) -> None:
    """Whichever batches form, each client gets its own rows."""

    def ask(number: int) -> bool:
        rows = 1 + number % 3
        a = [float(number)] * (2 * rows)
        tensors = [{"name": "a", "datatype": "FP32", "shape": [rows, 2], "data": a}]
        if number % 2:
            tensors.append({**tensors[0], "name": "b"})
        reply = server.infer("sum", {"inputs": tensors}).json()
        factor = 2 if number % 2 else 1
        return reply["outputs"][0]["data"] == [factor * one for one in a]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(200)))


def test_streams(server: Server) -> None:
    """Each value is a response."""
    with GrpcStream(server) as stream:
        stream.send("count", {"count": numpy.array([3], numpy.int64)})
        found = [stream.receive()[1]["output"][0] for _ in range(3)]
    assert found == [b"number 0", b"number 1", b"number 2"]


def test_coroutines_meet(server: Server) -> None:
    """One instance has all requests at once; otherwise, none of them would get a response."""

    def ask(_: int) -> Any:
        tensor = {"name": "count", "datatype": "INT64", "shape": [1], "data": [32]}
        return server.infer("meet", {"inputs": [tensor]}).json()["outputs"][0]["data"]

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        assert list(pool.map(ask, range(32))) == [[32]] * 32


def test_exceptions(server: Server) -> None:
    """The client reads the file and line in the model, but nothing about the server."""
    tensor = {"name": "x", "datatype": "FP64", "shape": [1], "data": [0]}
    error = server.infer("inverse", {"inputs": [tensor]}).error()
    assert "ZeroDivisionError" in error and "model.py(3): predict" in error
    assert "galatea" not in error


@pytest.mark.parametrize("source, text", [
    ("def predict(\n    x\n) -> int: ...",
     "model.py:2: parameter `x` has no type hint; write for example `x: list[str]`"),
    ("predict = None", "m/1/model.py has neither a class TritonPythonModel nor a function predict"),
    ("import gone", "No module named 'gone'"),
    ("def predict(x: int) -> int\n    return x",
     'File "m/1/model.py", line 1'),
])
def test_refused_files(
    start_server: StartServer, tmp_path: pathlib.Path, source: str, text: str
) -> None:
    """The log says what is wrong, and where."""
    write(tmp_path, "m", source)
    with start_server(tmp_path, interpreter_flag()) as server:
        assert server.wait_for_exit() == 1
        assert text in server.log() and "importlib" not in server.log()


def test_configurations_that_say_something_else(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Hints don't override a configuration."""
    write(tmp_path, "m", INVERSE)
    (tmp_path / "m" / "config.pbtxt").write_text(
        'backend: "python"\ninput { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }\n')
    with start_server(tmp_path, interpreter_flag()) as server:
        assert server.wait_for_exit() == 1
        assert ("model.py:2: the configuration has input 'x' with data_type TYPE_FP32, but its "
                "hint says TYPE_FP64") in server.log()


def test_a_class_without_a_configuration(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """As in Triton, the file name determines the backend."""
    write(tmp_path, "m", CLASS)
    with start_server(tmp_path, interpreter_flag()) as server:
        server.wait_until_ready()
        tensor = {"name": "IN", "datatype": "INT32", "shape": [2, 1], "data": [3, 4]}
        reply = server.infer("m", {"inputs": [tensor]}).json()
    assert reply["outputs"][0]["data"] == [3, 4]


def new(program: Program, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs `galatea new`."""
    command = [program.command([])[0], "new", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def run_tests(folder: pathlib.Path, **variables: str) -> str:
    """Runs the tests of a generated model, and returns pytest's last line."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", folder]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        cwd=folder, env={**os.environ, **variables},
    )
    assert result.returncode == 0, result.stdout
    return result.stdout.strip().splitlines()[-1]


def test_a_new_model(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The model is generated, tested, served, and tested over the network."""
    repository = tmp_path / "models"
    result = new(program, "python", "--directory", repository, "my-words.2")
    assert (result.returncode, result.stderr) == (0, "")
    folder = repository / "my-words.2"
    files = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
    assert files == ["1/model.py", "README.md", "test_my_words_2.py"]
    assert "MODEL_" not in "".join((folder / one).read_text() for one in files)
    assert run_tests(folder).startswith("1 passed, 1 skipped")
    with start_server(repository, interpreter_flag()) as server:
        server.wait_until_ready()
        url = f"http://{server.http_url}"
        assert run_tests(folder, GALATEA_URL=url).startswith("2 passed")


def test_a_new_model_overwrites_nothing(program: Program, tmp_path: pathlib.Path) -> None:
    """Neither files nor directories are overwritten, and a directory that can't be created is
    named."""
    folder = tmp_path / "m"
    folder.mkdir()
    result = new(program, "python", "m", f"--directory={tmp_path}")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"error: '{folder}' exists already, and nothing is overwritten\n"
    assert list(folder.iterdir()) == []
    (tmp_path / "file").write_text("")
    result = new(program, "python", "m", f"--directory={tmp_path / 'file'}")
    assert result.returncode == 1 and f"'{tmp_path / 'file'}'" in result.stderr
    result = new(program, "python", "../m", f"--directory={tmp_path}")
    assert result.returncode == 2
    assert result.stderr.splitlines()[0].startswith("error: '../m' is no name for a model: ")


def test_values_of_json(server: Server) -> None:
    """The generate endpoint doesn't need shapes, so beginners can use it with any such model."""
    body = json.dumps({"x": 4}).encode()
    reply = server.request("POST", "/v2/models/inverse/generate", body)
    assert reply.json()["output"] == 0.25
