"""Tests of GPUs that are lost while models use them.

Stand-ins replace NVIDIA's driver (tests/devices) and ONNX Runtime with CUDA
(tests/onnxruntime_gpu). A GPU is lost at a chosen execution, or for all processes.
"""

from __future__ import annotations

import collections
import concurrent.futures
import pathlib
import re
import threading

import pytest

from conftest import StartServer
from constant_models import request_body, write_model
from gpus import Gpus, StandIn, build_libraries
from python_backend import interpreter_flag
from server import Program, Reply, Server, wait_until
from test_gpu import place, python_model

CONFIG = """
max_batch_size: 4
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
instance_group [ {group} ]
"""
ON_FIRST = "{ kind: KIND_GPU gpus: 0 }"
ON_SECOND = "{ kind: KIND_GPU gpus: 1 }"
ON_BOTH = "{ kind: KIND_GPU count: 2 }"
REQUESTS = 400

# Triton has nothing that corresponds to readiness that depends on GPUs.
pytestmark = pytest.mark.galatea_only


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build_libraries(tmp_path_factory.mktemp("gpu_libraries"))


@pytest.fixture
def gpus(compiled: pathlib.Path, program: Program, tmp_path: pathlib.Path) -> Gpus:
    assert program.onnxruntime_library is not None
    driver = StandIn(compiled, tmp_path / "reports")
    return Gpus(driver, compiled / "libonnxruntime.so", program.onnxruntime_library)


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


def add_model(repository: pathlib.Path, name: str, group: str) -> None:
    """A model that adds 1."""
    write_model(repository, name, 1, config=CONFIG.format(group=group))


def is_ready(server: Server, model: str) -> bool:
    return server.get(f"/v2/models/{model}/ready").status == 200


def is_right(reply: Reply, value: int) -> bool:
    """Returns true if it is the expected response; otherwise, it must be a clear error."""
    if reply.status == 200:
        assert reply.json()["outputs"][0]["data"] == [value + 1]
        return True
    assert reply.status in (500, 503), reply
    assert re.search(r"CUDA failure|GPU \d|launch failure", reply.error()), reply.error()
    return False


def why_refused(server: Server, model: str) -> tuple[int, str]:
    reply = server.infer(model, request_body(1))
    return reply.status, reply.error()


@pytest.mark.parametrize("lost_by", ["an execution", "all processes"])
# row: INST-13
def test_no_request_is_lost_with_a_gpu(
    start_server: StartServer, gpus: Gpus, repository: pathlib.Path, lost_by: str
) -> None:
    """Each request gets a response: from the other GPU, or an error if it was on the lost
    GPU."""
    for name, group in {"both": ON_BOTH, "first": ON_FIRST, "second": ON_SECOND}.items():
        add_model(repository, name, group)
    add_model(repository, "cpu", "{ kind: KIND_CPU }")
    variables = {}
    if lost_by == "an execution":
        variables["STAND_IN_ORT_FAIL"] = "Run:100:CUDA failure 700: an illegal memory access"
    # Nothing else searches for lost GPUs.
    flags = [gpus.flag(), "--allow-gpu-metrics=false"]
    sent = 0
    counting = threading.Lock()

    def send(server: Server, number: int) -> bool:
        nonlocal sent
        with counting:
            sent += 1
            is_time = sent == REQUESTS // 4
        if is_time and not variables:
            gpus.driver.lose(0)
        return is_right(server.infer("both", request_body(number)), number)

    with start_server(repository, *flags, environment=gpus.environment(**variables)) as server:
        server.wait_until_ready()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda number: send(server, number), range(REQUESTS)))
        # Every instance on the lost GPU had at most one request, and there are two such
        # instances.
        counts = collections.Counter(answers)
        assert counts[True] + counts[False] == REQUESTS
        assert counts[False] <= 2, counts
        lost = re.search(r"GPU (\d) is lost and not used any more: (.*)", server.log())
        assert lost is not None, "whichever executed last has noticed"
        assert is_ready(server, "both")
        alone, other = ("first", "second") if lost[1] == "0" else ("second", "first")
        wait_until(lambda: not is_ready(server, alone), 60, "it isn't ready")
        assert is_ready(server, other) and is_ready(server, "cpu")
        assert server.get("/v2/health/ready").status != 200
        wait_until(lambda: why_refused(server, alone)[0] == 503, 60, "it is refused")
        expected = f"GPU {lost[1]}, which executed requests to model '{alone}', is lost: "
        assert expected in why_refused(server, alone)[1]
        for name in (other, "cpu", "both"):
            assert all(is_right(server.infer(name, request_body(n)), n) for n in range(8))
        log = server.log()
        assert f"'both' version 1: GPU {lost[1]} is lost" in log
        assert "2 instances are on lost GPUs, 2 of them are removed" in log
        assert f"'{alone}' version 1: GPU {lost[1]} is lost" in log
        assert "and none is left: the model isn't ready" in log
        # If a GPU is lost for only one process, its memory remains with that process.
        gpus.driver.lose(int(lost[1]))
    assert gpus.driver.violations() == []


# row: INST-13 MET-12
def test_a_gpu_that_is_lost_while_it_is_idle(
    start_server: StartServer, gpus: Gpus, repository: pathlib.Path
) -> None:
    """The code that measures GPUs notices the loss, and models that are loaded later don't
    use the GPU."""
    python_model(repository, "here", "instance_group { kind: KIND_GPU gpus: 0 }")
    python_model(repository, "both")
    python_model(repository, "later")
    flags = [interpreter_flag(), "--metrics-interval-ms=50", "--model-control-mode=explicit"]
    flags += ["--load-model=here", "--load-model=both"]
    with start_server(repository, *flags, environment=gpus.driver.environment()) as server:
        server.wait_until_ready()
        assert place(server, "here") == "GPU:0"
        gpus.driver.lose(0)
        wait_until(lambda: not is_ready(server, "here"), 60, "it isn't ready")
        assert server.log().count("GPU 0 is lost and not used any more: GPU is lost") == 1
        wait_until(lambda: "'both' version 1: GPU 0 is lost" in server.log(), 60, "it is told")
        assert {place(server, "both") for _ in range(8)} == {"GPU:1"}
        load = "/v2/repository/models/{}/load"
        assert server.request("POST", load.format("later"), b"").status == 200
        assert {place(server, "later") for _ in range(4)} == {"GPU:1"}
        config = server.get("/v2/models/later/config").json()
        assert [group["gpus"] for group in config["instance_group"]] == [[1]]
