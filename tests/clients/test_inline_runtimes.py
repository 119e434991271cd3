"""Tests that I/O threads execute the fast models of frameworks inline.

The instance's thread, which is named after the model, uses no processor time in the meantime.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator

import numpy
import pytest

from conftest import StartServer
from server import Server
from tensorflow_files import frozen_relu
from transports import TRANSPORTS, Tensors, Transport

TORCH = os.environ.get("GALATEA_TEST_TORCH", "")
COMPILED = os.environ.get("GALATEA_TEST_TORCH_MODELS", "")
TENSORFLOW = os.environ.get("GALATEA_TEST_TENSORFLOW", "")

pytestmark = pytest.mark.galatea_only
needs_torch = pytest.mark.skipif(not TORCH, reason="GALATEA_TEST_TORCH names no library")
needs_compiled = pytest.mark.skipif(
    not (TORCH and COMPILED), reason="GALATEA_TEST_TORCH_MODELS names no directory of models"
)
needs_tensorflow = pytest.mark.skipif(
    not TENSORFLOW, reason="GALATEA_TEST_TENSORFLOW names no library"
)

SCRIPTED = pathlib.Path(__file__).parents[2] / "crates" / "backend-pytorch" / "tests" / "models"
SECONDS_MAX = 60
#: The connection to TorchScript may have to be compiled first.
READY_SECONDS_MAX = 300
#: The requests between two readings.
BLOCK = 20
#: More blocks than are needed to learn that a model is fast.
BLOCKS = 6

RELU = """
platform: "tensorflow_graphdef"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
MLP = """
input { name: "%s" data_type: TYPE_FP32 dims: [ -1, %d ] }
output { name: "%s" data_type: TYPE_FP32 dims: [ -1, 3 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
#: The form, the settings with one thread, and settings with more.
FORMS = [
    pytest.param(
        "script", {"INTRA_OP_THREAD_COUNT": 1}, {"INTRA_OP_THREAD_COUNT": 2}, marks=needs_torch
    ),
    pytest.param(
        "package", {"INTRA_OP_THREAD_COUNT": 1}, {"INTRA_OP_THREAD_COUNT": 2}, marks=needs_compiled
    ),
    pytest.param(
        "graph", {"TF_NUM_INTER_THREADS": 1}, {"TF_NUM_INTER_THREADS": 2}, marks=needs_tensorflow
    ),
    pytest.param(
        "graph", {"TF_NUM_INTER_THREADS": -1}, {"TF_NUM_INTER_THREADS": 0}, marks=needs_tensorflow
    ),
]


def put(repository: pathlib.Path, form: str, settings: dict[str, int]) -> tuple[str, str, int]:
    """Writes a model called `m`. Returns the server's flag, the input's name and its size."""
    version = repository / "m" / "1"
    version.mkdir(parents=True)
    if form == "graph":
        frozen_relu(version / "model.graphdef")
        config, flag, tensor = RELU, f"--tensorflow-library={TENSORFLOW}", ("x", 3)
    elif form == "script":
        shutil.copy(SCRIPTED / "mlp.pt", version / "model.pt")
        config, tensor = 'platform: "pytorch_libtorch"' + MLP % ("x", 4, "OUTPUT__0"), ("x", 4)
        flag = f"--torch-library={TORCH}"
    else:
        shutil.copy(pathlib.Path(COMPILED) / "mlp.pt2", version / "model.pt2")
        config = 'platform: "torch_aoti"' + MLP % ("ARGS[0]", 8, "RESULT")
        flag, tensor = f"--torch-library={TORCH}", ("ARGS[0]", 8)
    for key, value in settings.items():
        config += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    (version.parent / "config.pbtxt").write_text(config)
    return flag, *tensor


def run_time(server: Server) -> int:
    """The nanoseconds of processor time of the instance's thread and the threads it started."""
    threads = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
    named = [one for one in threads if (one / "comm").read_text().strip() == "m_0_0"]
    assert named, "the instance has a thread"
    return sum(int((one / "schedstat").read_text().split()[0]) for one in named)


def sleeps_through_a_block(server: Server, client: Transport, inputs: Tensors) -> bool:
    """Sends requests. Returns true if the instance's thread executed none of them."""
    before = run_time(server)
    for _ in range(BLOCK):
        client.infer("m", inputs)
    return run_time(server) == before


@contextlib.contextmanager
def serving(
    start_server: StartServer, repository: pathlib.Path, form: str, settings: dict[str, int]
) -> Iterator[Callable[[], bool]]:
    """A function that sends requests to a model with these settings."""
    flag, name, size = put(repository, form, settings)
    inputs = {name: numpy.ones((1, size), numpy.float32)}
    with (
        start_server(repository, flag) as server,
        contextlib.closing(TRANSPORTS["http"](server.wait_until_ready(READY_SECONDS_MAX))) as client,
    ):
        yield lambda: sleeps_through_a_block(server, client, inputs)
    assert server.process.returncode == 0


@pytest.mark.parametrize(("form", "one", "more"), FORMS)
def test_fast_models_with_one_thread_execute_inline(
    start_server: StartServer,
    tmp_path: pathlib.Path,
    form: str,
    one: dict[str, int],
    more: dict[str, int],
) -> None:
    """With more threads, the instance's thread executes them, because the other threads would
    belong to the thread that receives the request."""
    with serving(start_server, tmp_path / "one", form, one) as sleeps:
        deadline = time.monotonic() + SECONDS_MAX
        while not sleeps():
            assert time.monotonic() < deadline, "the instance's thread executes the requests"
    with serving(start_server, tmp_path / "more", form, more) as sleeps:
        assert not any(sleeps() for _ in range(BLOCKS))
