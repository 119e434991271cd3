"""Tests of compiled backends and GPU memory, with the driver that stands in for NVIDIA's."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest

from compiling import compile_library
from conftest import StartServer
from gpu_clients import ALLOWED, Client, Memory, register, unregister
from gpus import StandIn, build_driver
from shm_clients import infer

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
    """The backend's results: its calls, with the code and text of each."""
    found = re.findall(r'gpu_memory: ([^:\n]+): (.*?) (.*?)"?\n', log)
    return [(what, code, re.sub("0x[0-9a-f]+", "ADDRESS", text)) for what, code, text in found]


# row: BAPI-12
def test_backends_allocate_from_pools(
    start_server: StartServer, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Memory comes from the pools, is returned once, and is limited by them."""
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
    """Without pools, nothing is allocated, because an allocation would wait for the GPU."""
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


TENSORS = """
backend: "gpu_tensors"
input {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }}
instance_group {{ {group} }}
"""
CPU, GPU = 0, 2


@pytest.mark.parametrize("instance", [0, 1, None])
# row: BAPI-12 SHM-07
def test_inputs_and_outputs_are_on_the_gpu_of_their_instance(
    start_server: StartServer, tmp_path: pathlib.Path, instance: int | None
) -> None:
    """Inputs in regions are copied to the GPU once, and outputs for regions are created there.
    An instance on the CPU reads a copy in host memory."""
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    group = "kind: KIND_CPU" if instance is None else f"kind: KIND_GPU gpus: [ {instance} ]"
    (model / "config.pbtxt").write_text(TENSORS.format(group=group))
    compile_library(HERE / "gpu_tensors.c", model / "1" / "libtriton_gpu_tensors.so")
    stand_in = StandIn(build_driver(tmp_path / "driver"), tmp_path / "reports")
    client = Client(stand_in.libraries)
    memory = Memory(client, 1)
    environment = stand_in.environment(STAND_IN_READABLE="1")
    with start_server(model.parent, ALLOWED, environment=environment) as server:
        server.wait_until_ready()
        register(server, "r", memory)
        for number, protocol in enumerate(("http", "grpc")):
            memory.put(number.to_bytes(4, "little"), 64)
            given = ("INT32", [1], "r", 4, 64)
            infer(server, protocol, "m", {"IN": given}, {"OUT": ("r", 4, 128)})
            assert memory.get(4, 128) == number.to_bytes(4, "little")
        # Clients without a region get outputs from host memory.
        result = infer(server, "http", "m", {"IN": np.array([9], dtype=np.int32)}, {"OUT": None})
        assert result.as_numpy("OUT").tolist() == [9]
        unregister(server)
        log = server.log()
    memory.free()
    place = (CPU, 0) if instance is None else (GPU, instance)
    found = re.findall(r"gpu_tensors: (\d) (\d), (\d) (\d), (\d) (\d)\.", log)
    in_regions = (*place, *place, *place)
    host = (CPU, 0, CPU, 0, CPU, 0)
    if instance is None:
        # A GPU region is a location on a GPU, regardless of where the instance is.
        in_regions = (*place, *place, GPU, 0)
    assert [tuple(map(int, one)) for one in found] == [in_regions, in_regions, host]
    calls = stand_in.calls()
    to_host = 2 if instance is None else 0
    assert calls.get("copy_to_host", 0) == to_host
    assert calls.get("copy_to_device", 0) == 0
    assert server.process.returncode == 0
    assert stand_in.violations() == []


def test_without_memory_in_the_pool_tensors_are_in_the_memory_of_the_host(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Nothing is allocated while a request is served, because the allocation might wait for the
    GPU."""
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(TENSORS.format(group="kind: KIND_GPU gpus: [ 1 ]"))
    compile_library(HERE / "gpu_tensors.c", model / "1" / "libtriton_gpu_tensors.so")
    stand_in = StandIn(build_driver(tmp_path / "driver"), tmp_path / "reports")
    memory = Memory(Client(stand_in.libraries), 1)
    environment = stand_in.environment(STAND_IN_READABLE="1")
    flags = [ALLOWED, "--cuda-memory-pool-byte-size=1:0"]
    with start_server(model.parent, *flags, environment=environment) as server:
        server.wait_until_ready()
        register(server, "r", memory)
        memory.put(b"\x05\0\0\0")
        infer(server, "http", "m", {"IN": ("INT32", [1], "r", 4, 0)}, {"OUT": ("r", 4, 128)})
        assert memory.get(4, 128) == b"\x05\0\0\0"
        unregister(server)
        assert "gpu_tensors: 0 0, 0 0, 0 0." in server.log()
    memory.free()
    assert stand_in.violations() == []
