"""Tests of --model-gpu-memory: models on demand that take the memory of GPUs.

The driver that stands in for NVIDIA's (tests/devices) has two GPUs of 1 GiB.
"""

from __future__ import annotations

import pathlib

import pytest

from compiling import compile_library
from conftest import StartServer
from demand_models import DEMAND, SECONDS_MAX, make_heavy, memory, metric, resident
from gpus import UUIDS, StandIn, build_driver
from server import Program, Reply, Server, wait_until

pytestmark = pytest.mark.galatea_only

HERE = pathlib.Path(__file__).resolve().parent
MEBIBYTE = 1 << 20
CONFIG = """
backend: "gpu_taker"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
HOST = (DEMAND, "--model-memory=4G")


@pytest.fixture
def driver(tmp_path: pathlib.Path) -> StandIn:
    return StandIn(build_driver(tmp_path / "driver"), tmp_path / "reports")


@pytest.fixture
def backends(tmp_path: pathlib.Path) -> str:
    library = tmp_path / "backends" / "gpu_taker" / "libtriton_gpu_taker.so"
    compile_library(HERE / "gpu_taker.c", library, "-ldl")
    return f"--backend-directory={tmp_path / 'backends'}"


def write_taker(
    repository: pathlib.Path, name: str, group: str, take: int, files: int = 1
) -> None:
    """Writes a model whose instances each take this number of MiB, and whose files have `files`
    MiB."""
    make_heavy(repository, name, size=files * MEBIBYTE)
    (repository / name / "take").write_text(str(take))
    (repository / name / "config.pbtxt").write_text(f"{CONFIG}instance_group {{ {group} }}\n")


def infer(server: Server, model: str) -> Reply:
    tensor = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}
    return server.infer(model, {"inputs": [tensor]})


def on_gpu(server: Server, model: str, gpu: int) -> int:
    """The memory of a model on a GPU, in MiB."""
    (report,) = [one for one in memory(server, model)["gpus"] if one["gpu"] == gpu]
    return report["bytes"] // MEBIBYTE


def wait_for_used(server: Server, gpu: int, most: int) -> None:
    """Waits until all models together have at most this number of MiB on a GPU."""
    labels = f'{{gpu_uuid="{UUIDS[gpu]}"}}'
    name = "galatea_model_gpu_memory_used_bytes"
    within = lambda: metric(server, name, labels) <= most * MEBIBYTE  # noqa: E731
    wait_until(within, SECONDS_MAX, f"models have at most {most} MiB on GPU {gpu}")


def test_each_gpu_has_a_budget(
    start_server: StartServer, tmp_path: pathlib.Path, driver: StandIn, backends: str
) -> None:
    repository = tmp_path / "models"
    for number in range(4):
        write_taker(repository, f"zero{number}", "kind: KIND_GPU gpus: 0", take=100)
    write_taker(repository, "one", "kind: KIND_GPU gpus: 1 count: 2", take=100)
    write_taker(repository, "both", "kind: KIND_GPU", take=150)
    limits = ["--model-gpu-memory=0:320M", "--model-gpu-memory=1:50%"]
    environment = driver.environment()
    with start_server(repository, *HOST, backends, *limits, environment=environment) as server:
        server.wait_until_ready()
        # Before a load, each instance counts with the files.
        assert on_gpu(server, "one", 1) == 2 and on_gpu(server, "both", 0) == 1
        for number in (0, 1, 2, 3, 0, 1):
            assert infer(server, f"zero{number}").status == 200
            assert on_gpu(server, f"zero{number}", 0) == 100
            # A first load may exceed the budget until it is measured.
            wait_for_used(server, 0, 300)
        # Models on another GPU have their own budget.
        before = resident(server)
        assert infer(server, "one").status == 200
        assert resident(server) == before | {"one"}
        assert on_gpu(server, "one", 1) == 200 and on_gpu(server, "one", 0) == 0
        # A model on both GPUs takes from both budgets.
        assert infer(server, "both").status == 200
        wait_for_used(server, 0, 250)
        assert {"one", "both"} < resident(server) and len(resident(server)) == 3
        first, second = (f'{{gpu_uuid="{uuid}"}}' for uuid in UUIDS)
        used, limit = (f"galatea_model_gpu_memory_{name}_bytes" for name in ("used", "limit"))
        assert metric(server, limit, first) == 320 * MEBIBYTE
        assert metric(server, limit, second) == (1 << 30) // 100 * 50
        assert metric(server, used, second) == 350 * MEBIBYTE
        labels = f'{{gpu_uuid="{UUIDS[0]}",model="both"}}'
        assert metric(server, "galatea_model_gpu_memory_bytes", labels) == 150 * MEBIBYTE
        report = memory(server, "both")["gpus"]
        assert [one["limit_bytes"] for one in report] == [320 * MEBIBYTE, (1 << 30) // 100 * 50]
    assert driver.violations() == []


def test_a_model_that_no_gpu_has_room_for_is_refused(
    start_server: StartServer, tmp_path: pathlib.Path, driver: StandIn, backends: str
) -> None:
    repository = tmp_path / "models"
    write_taker(repository, "large", "kind: KIND_GPU gpus: 1 count: 3", take=1, files=40)
    write_taker(repository, "small", "kind: KIND_GPU gpus: 0", take=1, files=40)
    limits = ["--model-gpu-memory=0:100M", "--model-gpu-memory=1:100M"]
    environment = driver.environment()
    with start_server(repository, *HOST, backends, *limits, environment=environment) as server:
        server.wait_until_ready()
        refused = infer(server, "large")
        assert refused.status == 503, refused
        text = f"takes {120 * MEBIBYTE} bytes on GPU 1, but --model-gpu-memory allows"
        assert f"{text} {100 * MEBIBYTE}" in refused.error()
        assert infer(server, "small").status == 200


def test_a_budget_needs_its_gpu(
    program: Program, tmp_path: pathlib.Path, driver: StandIn
) -> None:
    flags = [*HOST, "--model-gpu-memory=7:1G"]
    (tmp_path / "models").mkdir()
    log = tmp_path / "log"
    server = Server(program, tmp_path / "models", log, flags, driver.environment())
    assert server.wait_for_exit() == 1
    assert "--model-gpu-memory: GPU 7: " in server.log()


def test_without_gpus_a_budget_has_no_effect(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "models").mkdir()
    flags = [*HOST, "--model-gpu-memory=7:1G"]
    with start_server(tmp_path / "models", *flags) as server:
        server.wait_until_ready()
        assert "'--model-gpu-memory' has no effect: no GPU is used" in server.log()
        assert "galatea_model_gpu_memory" not in server.metrics()
