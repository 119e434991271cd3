"""Tests of GPUs: how they are found, the flags for them, and their metrics.

The driver in tests/devices stands in for NVIDIA's. It has two GPUs unless a test specifies
otherwise.
"""

from __future__ import annotations

import pathlib
import re

import pytest

from conftest import StartServer
from constant_models import added_value, write_model
from gpus import UUIDS, StandIn, build_driver
from python_backend import interpreter_flag
from server import Reply, Server, wait_until
from test_dashboard import Watcher

PYTHON = """
import json
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.place = args["model_instance_kind"] + ":" + args["model_instance_device_id"]

    def execute(self, requests):
        place = numpy.array([self.place.encode()], dtype=object)
        output = pb_utils.Tensor("PLACE", place)
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "PLACE" data_type: TYPE_STRING dims: [ 1 ] }
"""

GPU_FAMILIES = [
    "nv_gpu_utilization",
    "nv_gpu_memory_total_bytes",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_power_usage",
    "nv_gpu_power_limit",
    "nv_energy_consumption",
]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stand_in(libraries: pathlib.Path, tmp_path: pathlib.Path) -> StandIn:
    return StandIn(libraries, tmp_path / "reports")


def python_model(repository: pathlib.Path, name: str, more: str = "") -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(PYTHON)
    (folder / "config.pbtxt").write_text(CONFIG + more)


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


def place(server: Server, model: str) -> str:
    request = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}
    reply = server.infer(model, request)
    assert reply.status == 200, reply
    return reply.json()["outputs"][0]["data"][0]


def load(server: Server, model: str) -> Reply:
    return server.request("POST", f"/v2/repository/models/{model}/load", b"")


def series(server: Server, family: str) -> dict[str, float]:
    """The values of a family by the GPU's UUID, or by an empty key."""
    found = {}
    for line in server.metrics().splitlines():
        match = re.fullmatch(rf'{family}(?:{{gpu_uuid="([^"]*)"}})? (\S+)', line)
        if match:
            found[match[1] or ""] = float(match[2])
    return found


@pytest.mark.galatea_only
# row: CLI-20 CLI-22 INST-13
def test_gpus_are_found_when_the_server_starts(
    start_server: StartServer, stand_in: StandIn, repository: pathlib.Path
) -> None:
    python_model(repository, "where")
    flags = [
        "--pinned-memory-pool-byte-size=1048576",
        "--cuda-memory-pool-byte-size=1:4096",
        "--min-supported-compute-capability=8.0",
        "--model-load-gpu-limit=0:0.9",
    ]
    with start_server(repository, interpreter_flag(), *flags, environment=stand_in.environment()) as server:
        server.wait_until_ready()
        log = server.log()
        assert re.search(r"Pinned memory pool is created at '0x[0-9a-f]+' with size 1048576", log)
        assert "CUDA memory pool is created on device 0 with size 67108864" in log
        assert "CUDA memory pool is created on device 1 with size 4096" in log
        for number in range(2):
            assert f"Collecting metrics for GPU {number}: Stand-in {number}" in log
        assert re.search(r"\| cuda_memory_pool_byte_size\{0\} +\| 67108864 +\|", log)
        assert re.search(r"\| cuda_memory_pool_byte_size\{1\} +\| 4096 +\|", log)
        assert re.search(r"\| min_supported_compute_capability +\| 8\.0 +\|", log)
        assert "no GPU is used" not in log
        assert "nothing is pinned" not in log
        config = server.get("/v2/models/where/config").json()
        groups = [(group["kind"], group["gpus"]) for group in config["instance_group"]]
        assert groups == [("KIND_GPU", [0, 1])]
        assert place(server, "where") in ("GPU:0", "GPU:1")
        assert series(server, "nv_pinned_memory_pool_total_bytes") == {"": 1 << 20}
        assert series(server, "nv_pinned_memory_pool_used_bytes") == {"": 0}
    assert stand_in.violations() == []
    assert stand_in.calls()["cuMemHostAlloc"] == 1


@pytest.mark.galatea_only
# row: CLI-22
def test_gpus_that_can_too_little_are_left_alone(
    start_server: StartServer, stand_in: StandIn, repository: pathlib.Path
) -> None:
    python_model(repository, "where")
    python_model(repository, "on_0", "instance_group { kind: KIND_GPU gpus: [ 0 ] }")
    # The default is that of Triton's builds for GPUs: 7.5.
    environment = stand_in.environment(STAND_IN_CAPABILITY="7.0,7.5")
    flags = ["--exit-on-error=false"]
    with start_server(repository, interpreter_flag(), *flags, environment=environment) as server:
        server.wait_until_live()
        wait_until(lambda: server.get("/v2/models/where/ready").status == 200, 60, "it is loaded")
        config = server.get("/v2/models/where/config").json()
        assert [group["gpus"] for group in config["instance_group"]] == [[1]]
        assert place(server, "where") == "GPU:1"
        assert server.get("/v2/models/on_0/ready").status == 400
        assert "gpu 0 has compute capability '7.0' which is less than the minimum" in server.log()
        assert series(server, "nv_gpu_power_limit") == {UUIDS[1]: 300}


# row: CLI-22
def test_a_minimum_that_excludes_every_gpu_is_shown(
    start_server: StartServer, stand_in: StandIn, repository: pathlib.Path
) -> None:
    """It is in the table of options, and in the settings that backends receive."""
    python_model(repository, "where")
    environment = stand_in.environment(STAND_IN_CAPABILITY="7.0,7.5")
    flags = ["--min-supported-compute-capability=9.25", interpreter_flag()]
    with start_server(repository, *flags, environment=environment) as server:
        server.wait_until_ready()
        assert place(server, "where") == "CPU:0"
        rows = [line.split("|")[1:-1] for line in server.log().splitlines() if line.startswith("|")]
        options = {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
        assert options["min_supported_compute_capability"] == "9.2"
        assert '"min-compute-capability":"9.250000"' in server.log()


@pytest.mark.galatea_only
# row: MET-12
def test_a_variable_turns_gpus_off(
    start_server: StartServer, stand_in: StandIn, repository: pathlib.Path
) -> None:
    python_model(repository, "where")
    environment = stand_in.environment(TRITON_SERVER_CPU_ONLY="")
    flags = ["--min-supported-compute-capability=8.0"]
    with start_server(repository, interpreter_flag(), *flags, environment=environment) as server:
        server.wait_until_ready()
        assert place(server, "where") == "CPU:0"
        assert "has no effect: no GPU is used" in server.log()
        assert "pool" not in re.sub(r"\| .* \|", "", server.log()).lower()
        assert all(f"# HELP {family}" not in server.metrics() for family in GPU_FAMILIES)
        maps = pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "libcuda" not in maps and "libnvidia" not in maps


@pytest.mark.galatea_only
# row: CLI-11
def test_a_model_is_not_loaded_beyond_the_limit_of_a_gpu(
    start_server: StartServer, stand_in: StandIn, repository: pathlib.Path
) -> None:
    python_model(repository, "full", "instance_group { kind: KIND_GPU gpus: [ 1 ] }")
    python_model(repository, "free", "instance_group { kind: KIND_GPU gpus: [ 0 ] }")
    # The pools use 64 MiB of 128.
    environment = stand_in.environment(STAND_IN_MEMORY=str(128 << 20))
    flags = [
        "--model-control-mode=explicit",
        "--model-load-gpu-limit=0:0.5",
        "--model-load-gpu-limit=1:0.49",
    ]
    with start_server(repository, interpreter_flag(), *flags, environment=environment) as server:
        server.wait_until_ready()
        assert load(server, "free").status == 200
        assert place(server, "free") == "GPU:0"
        reply = load(server, "full")
        assert reply.status == 400
        expected = "memory limit set for GPU 1 has exceeded, model loading is rejected."
        index = server.request("POST", "/v2/repository/index", b"{}").json()
        reasons = [entry.get("reason", "") for entry in index if entry["name"] == "full"]
        assert expected in reasons[0], (reply, index)


@pytest.mark.galatea_only
# row: MET-12
def test_metrics_show_the_use_of_gpus(
    start_server: StartServer, stand_in: StandIn, repository: pathlib.Path
) -> None:
    flags = ["--metrics-interval-ms=50"]
    with start_server(repository, interpreter_flag(), *flags, environment=stand_in.environment()) as server:
        server.wait_until_ready()
        first, second = UUIDS
        assert series(server, "nv_gpu_utilization") == {first: 0.25, second: 0.35}
        assert series(server, "nv_gpu_memory_total_bytes") == {first: 1 << 30, second: 1 << 30}
        assert series(server, "nv_gpu_memory_used_bytes") == {first: 300 << 20, second: 301 << 20}
        assert series(server, "nv_gpu_power_usage") == {first: 61.5, second: 62.5}
        assert series(server, "nv_gpu_power_limit") == {first: 300, second: 300}
        text = server.metrics()
        assert "# TYPE nv_energy_consumption counter\n" in text
        assert "# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)\n" in text
        # Each reading is half a joule higher, whether or not there are scrapes.
        before = series(server, "nv_energy_consumption")[first]
        wait_until(
            lambda: series(server, "nv_energy_consumption")[first] >= before + 1, 60, "it grows"
        )
        stand_in.lose(0)
        wait_until(lambda: first not in series(server, "nv_gpu_utilization"), 60, "it ends")
        assert all(list(series(server, family)) == [second] for family in GPU_FAMILIES)
        assert server.log().count("GPU 0 is lost. Its metrics are removed") == 1


@pytest.mark.galatea_only
# row: MET-12
def test_the_dashboard_shows_the_use_of_gpus(
    start_server: StartServer, stand_in: StandIn, repository: pathlib.Path
) -> None:
    """Values that aren't measured are left out."""
    environment = stand_in.environment()
    flag = "--allow-dashboard=true"
    with start_server(repository, flag, environment=environment) as server:
        server.wait_until_ready()
        with Watcher(server) as watcher:
            gpus = watcher.frame()["gpus"]
    assert [gpu["number"] for gpu in gpus] == [0, 1]
    assert [gpu["power_mw"] for gpu in gpus] == [61_500, 62_500]
    assert all(gpu["power_limit_mw"] == 300_000 and gpu["memory_total"] > 0 for gpu in gpus)


def test_gpu_metrics_can_be_off(
    start_server: StartServer, stand_in: StandIn, repository: pathlib.Path
) -> None:
    flags = ["--allow-gpu-metrics=false"]
    with start_server(repository, interpreter_flag(), *flags, environment=stand_in.environment()) as server:
        server.wait_until_ready()
        assert all(f"# HELP {family}" not in server.metrics() for family in GPU_FAMILIES)
        assert "Collecting metrics for GPU" not in server.log()
        assert series(server, "nv_pinned_memory_pool_total_bytes") == {"": 256 << 20}


@pytest.mark.galatea_only
def test_an_onnx_model_on_a_gpu_needs_a_library_for_gpus(
    start_server: StartServer, stand_in: StandIn, repository: pathlib.Path
) -> None:
    write_model(repository, "anywhere", 1)
    write_model(repository, "on_gpu", 1, config="instance_group { kind: KIND_GPU }")
    flags = ["--model-control-mode=explicit"]
    with start_server(repository, interpreter_flag(), *flags, environment=stand_in.environment()) as server:
        server.wait_until_ready()
        assert load(server, "anywhere").status == 200
        assert added_value(server, "anywhere") == 1
        config = server.get("/v2/models/anywhere/config").json()
        assert [group["kind"] for group in config["instance_group"]] == ["KIND_CPU"]
        reply = load(server, "on_gpu")
        assert reply.status == 400
        assert "has kind KIND_GPU but no GPUs are available to it: " in reply.error(), reply


@pytest.mark.galatea_only
@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ("cuInit:1:999", "unable to get number of CUDA devices: unknown error"),
        ("cuMemHostAlloc:1", "pinned memory pool will not be available: out of memory"),
        ("cuMemAlloc_v2:2", "Failed to create CUDA memory pool on device 1: out of memory"),
        ("nvmlInit_v2:1:9", "GPU metrics will not be available"),
    ],
)
def test_a_driver_that_fails_keeps_no_server_from_serving(
    start_server: StartServer,
    stand_in: StandIn,
    repository: pathlib.Path,
    failure: str,
    text: str,
) -> None:
    python_model(repository, "where", "instance_group { kind: KIND_CPU }")
    environment = stand_in.environment(STAND_IN_FAIL=failure)
    with start_server(repository, interpreter_flag(), environment=environment) as server:
        server.wait_until_ready()
        assert place(server, "where") == "CPU:0"
        assert text in server.log()
    assert stand_in.violations() == []
