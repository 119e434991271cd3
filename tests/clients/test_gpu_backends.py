"""Compiled backends and the memory of GPUs, with the driver that stands in for NVIDIA's."""

from __future__ import annotations

import pathlib
import re

import pytest

from compiling import compile_library
from conftest import StartServer
from gpus import StandIn, build_driver

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = """
backend: "gpu_memory"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { kind: KIND_CPU }
"""
NOWHERE = "memory allocation not supported: this server runs without a GPU"


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "models"
    (path / "m" / "1").mkdir(parents=True)
    (path / "m" / "config.pbtxt").write_text(CONFIG)
    library = path / "m" / "1" / "libtriton_gpu_memory.so"
    compile_library(HERE / "gpu_memory.c", library)
    return path


def said(log: str) -> list[tuple[str, str, str]]:
    """What the backend got: what it asked for, the code and the text."""
    found = re.findall(r'gpu_memory: ([^:\n]+): (.*?) (.*?)"?\n', log)
    return [(what, code, re.sub("0x[0-9a-f]+", "ADDRESS", text)) for what, code, text in found]


# row: BAPI-12
def test_backends_allocate_from_pools(
    start_server: StartServer, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Memory is from the pools, is given back once, and is bounded by them."""
    stand_in = StandIn(build_driver(tmp_path / "driver"), tmp_path / "reports")
    flags = ["--cuda-memory-pool-byte-size=1:4194304", "--pinned-memory-pool-byte-size=65536"]
    with start_server(repository, *flags, environment=stand_in.environment()) as server:
        server.wait_until_ready()
        log = server.log()
    freeing = "Failed to deallocate CUDA memory at address ADDRESS on GPU 0: it was not allocated there"
    unmanaged = "unexpected memory address 'ADDRESS' is not being managed"
    too_much = "Failed to allocate CUDA memory with byte size 3145728 on GPU 1: the pool of GPU 1 has"
    assert said(log) == [
        ("pinned", "OK", ""),
        ("as GPU memory", "Internal", freeing),
        ("pinned freed", "OK", ""),
        ("freed twice", "Internal", unmanaged),
        ("too much pinned", "Internal", "failed to allocate pinned system memory"),
        ("of GPU 1", "OK", ""),
        ("too much", "Internal", f"{too_much} no 3145728 bytes left"),
        ("of another GPU", "Internal", freeing),
        ("freed", "OK", ""),
        ("again", "OK", ""),
        ("of GPU 7", "Internal", "Failed to set device: invalid device ordinal"),
    ]
    assert server.process.returncode == 0
    assert stand_in.violations() == []


def test_pools_can_be_left_out(
    start_server: StartServer, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Without pools nothing is allocated: allocating would wait for the GPU."""
    stand_in = StandIn(build_driver(tmp_path / "driver"), tmp_path / "reports")
    flags = ["--cuda-memory-pool-byte-size=1:0", "--pinned-memory-pool-byte-size=0"]
    with start_server(repository, *flags, environment=stand_in.environment()) as server:
        server.wait_until_ready()
        got = {what: text for what, _, text in said(server.log())}
    assert got["pinned"] == "failed to allocate pinned system memory: no pinned memory pool"
    assert got["of GPU 1"].startswith("Failed to allocate CUDA memory with byte size 3145728 on GPU 1")


def test_without_gpus_there_is_memory_of_the_host_alone(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    with start_server(repository) as server:
        server.wait_until_ready()
        log = server.log()
    assert said(log) == [
        ("pinned", "Unsupported", f"Pinned {NOWHERE}"),
        ("too much pinned", "Unsupported", f"Pinned {NOWHERE}"),
        ("of GPU 1", "Unsupported", f"GPU {NOWHERE}"),
        ("of GPU 7", "Unsupported", f"GPU {NOWHERE}"),
    ]
