"""Tests of a server with GPUs: the placement of instances, their names, and their limits.

Stand-ins replace NVIDIA's driver (tests/devices), with two GPUs, and ONNX Runtime with CUDA
(tests/onnxruntime_gpu).
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import re

import pytest

from compiling import compile_library
from conftest import StartServer
from constant_models import constant_model, replace_file, request_body
from gpus import UUIDS, Gpus, StandIn, build_libraries
from python_backend import interpreter_flag
from server import Program, Reply, Server, wait_until

MODEL = """
import json, os, pathlib, time
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.folder = pathlib.Path(args["model_repository"])
        self.device = args["model_instance_device_id"]
        said = {
            "name": args["model_instance_name"],
            "place": args["model_instance_kind"] + ":" + self.device,
            "processors": sorted(os.sched_getaffinity(0)),
        }
        with open(self.folder / "instances", "a") as file:
            file.write(json.dumps(said) + "\\n")

    def execute(self, requests):
        (self.folder / f"executing-{self.device}-{os.getpid()}").touch()
        while (self.folder / "closed").exists():
            time.sleep(0.001)  # sleep: polls until the test lets it go on
        output = pb_utils.Tensor("OUT", numpy.array([1], dtype=numpy.int32))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""

ONNX_CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build_libraries(tmp_path_factory.mktemp("gpu_libraries"))


@pytest.fixture
def driver(libraries: pathlib.Path, tmp_path: pathlib.Path) -> StandIn:
    return StandIn(libraries, tmp_path / "reports")


@pytest.fixture
def gpus(driver: StandIn, libraries: pathlib.Path, program: Program) -> Gpus:
    assert program.onnxruntime_library is not None
    return Gpus(driver, libraries / "libonnxruntime.so", program.onnxruntime_library)


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


def add_model(repository: pathlib.Path, name: str, more: str = "") -> pathlib.Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(CONFIG + more)
    return folder


def instances(folder: pathlib.Path) -> list[tuple[str, str]]:
    """The name and location of each instance of a model."""
    lines = [json.loads(line) for line in (folder / "instances").read_text().splitlines()]
    return sorted((line["name"], line["place"]) for line in lines)


def infer(server: Server, model: str) -> Reply:
    tensor = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}
    return server.infer(model, {"inputs": [tensor]})


# row: INST-01 INST-02 INST-03 INST-13 CFG-14
def test_groups_have_instances_on_each_of_their_gpus(
    start_server: StartServer, driver: StandIn, repository: pathlib.Path
) -> None:
    groups = """instance_group [
        { name: "both" kind: KIND_GPU gpus: [ 0, 1 ] count: 2 }, { kind: KIND_GPU gpus: 1 },
        { kind: KIND_CPU }, { kind: KIND_MODEL }, { gpus: 0 }, { kind: KIND_GPU } ]"""
    model = add_model(repository, "m", groups)
    default = add_model(repository, "default")
    with start_server(repository, interpreter_flag(), environment=driver.environment()) as server:
        server.wait_until_ready()
        assert instances(model) == [
            *[("both_0", "GPU:0"), ("both_0", "GPU:1"), ("both_1", "GPU:0"), ("both_1", "GPU:1")],
            *[("m_1_0", "GPU:1"), ("m_2_0", "CPU:0"), ("m_3_0", "MODEL:0"), ("m_4_0", "GPU:0")],
            *[("m_5_0", "GPU:0"), ("m_5_0", "GPU:1")],
        ]
        assert instances(default) == [("default_0", "GPU:0"), ("default_0", "GPU:1")]
        shown = server.get("/v2/models/m/config").json()["instance_group"]
        kinds = [(group["kind"], group["count"], group["gpus"]) for group in shown]
        assert kinds == [
            *[("KIND_GPU", 2, [0, 1]), ("KIND_GPU", 1, [1]), ("KIND_CPU", 1, [])],
            *[("KIND_MODEL", 1, []), ("KIND_GPU", 1, [0]), ("KIND_GPU", 1, [0, 1])],
        ]
        assert infer(server, "m").status == 200
    assert driver.violations() == []


@pytest.mark.parametrize(
    ("group", "gpus_there", "reason"),
    [
        ("kind: KIND_GPU", 0, "has kind KIND_GPU but no GPUs are available"),
        ("kind: KIND_GPU gpus: 7", 2, "specifies invalid or unsupported gpu id 7. GPUs with at"),
        ("gpus: [ 0, 7 ]", 2, "has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_CPU gpus: 0", 2, "has kind KIND_CPU but specifies one or more GPUs"),
    ],
)
# row: INST-02 INST-03 INST-13
def test_groups_on_gpus_that_are_not_there(
    start_server: StartServer,
    driver: StandIn,
    repository: pathlib.Path,
    group: str,
    gpus_there: int,
    reason: str,
) -> None:
    """The errors are Triton's, and no instance is on a CPU instead."""
    add_model(repository, "m", f"instance_group {{ {group} }}")
    environment = driver.environment(STAND_IN_DEVICES=str(gpus_there))
    with start_server(repository, interpreter_flag(), environment=environment) as server:
        assert server.wait_for_exit() == 1
        assert reason in server.log()


# row: INST-09 INST-13
def test_instances_on_a_gpu_have_its_host_policy(
    start_server: StartServer, driver: StandIn, repository: pathlib.Path
) -> None:
    """This applies unless their group names another one."""
    own = 'instance_group [ { kind: KIND_GPU }, { kind: KIND_GPU gpus: 0 host_policy: "gpu_1" } ]'
    folder = add_model(repository, "m", own)
    everywhere = sorted(os.sched_getaffinity(0))
    first = everywhere[0]
    flags = [interpreter_flag(), f"--host-policy=gpu_1,cpu-cores={first}-{first}"]
    with start_server(repository, *flags, environment=driver.environment()) as server:
        server.wait_until_ready()
        lines = [json.loads(line) for line in (folder / "instances").read_text().splitlines()]
        found = {(line["name"], line["place"]): line["processors"] for line in lines}
        assert found == {
            ("m_0_0", "GPU:0"): everywhere,
            ("m_0_0", "GPU:1"): [first],
            ("m_1_0", "GPU:0"): [first],
        }


@pytest.mark.parametrize(("kind", "places"), [("", ["0", "1"]), ("global: true", ["any"])])
# row: RL-02 INST-10 INST-13
def test_resources_are_of_each_gpu_or_of_the_server(
    start_server: StartServer,
    driver: StandIn,
    repository: pathlib.Path,
    kind: str,
    places: list[str],
) -> None:
    limiter = f"rate_limiter {{ resources [ {{ name: 'R' count: 1 {kind} }} ] }}"
    folder = add_model(repository, "m", f"instance_group {{ kind: KIND_GPU count: 2 {limiter} }}")
    (folder / "closed").touch()
    flags = [interpreter_flag(), "--rate-limit=execution_count"]

    def executing() -> list[str]:
        return sorted(path.name.split("-")[1] for path in folder.glob("executing-*"))

    with start_server(repository, *flags, environment=driver.environment()) as server:
        server.wait_until_ready()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            replies = [pool.submit(infer, server, "m") for _ in range(4)]
            try:
                # Instances that execute hold the resource; the others can't execute until they are
                # done.
                wait_until(lambda: len(executing()) == len(places), 60, "they execute")
                server.wait_for_pending("m", 4 - len(places))
                assert len(executing()) == len(places)
                assert places == ["any"] or executing() == places
            finally:
                (folder / "closed").unlink()
            assert [reply.result().status for reply in replies] == [200] * 4


# row: MR-04 CFG-29 INST-01
def test_a_compute_capability_has_a_file(
    start_server: StartServer, gpus: Gpus, repository: pathlib.Path
) -> None:
    """Each GPU uses the file for its compute capability, or else the default file."""
    names = """default_model_filename: "any.onnx"
        cc_model_filenames { key: "9.0" value: "hopper.onnx" }
        cc_model_filenames { key: "7.5" value: "turing.onnx" }"""
    for name, value in {"any": 1, "hopper": 100}.items():
        replace_file(repository / "m" / "1" / f"{name}.onnx", constant_model(value))
    (repository / "m" / "config.pbtxt").write_text(ONNX_CONFIG + names)
    environment = gpus.environment(STAND_IN_CAPABILITY="8.6,9.0")
    with start_server(repository, gpus.flag(), environment=environment) as server:
        server.wait_until_ready()
        found = [re.search(r"/(\w+)\.onnx.* device_id=(\d)", line) for line in gpus.sessions()]
        assert sorted(match.groups() for match in found if match) == [("any", "0"), ("hopper", "1")]
        reply = server.infer("m", request_body(5))
        assert reply.json()["outputs"][0]["data"][0] in (6, 105), reply
    assert gpus.driver.violations() == []


def counters(server: Server, family: str, model: str) -> dict[str, float]:
    """The values of a family by the GPU's UUID, or by an empty key."""
    found = {}
    for line in server.metrics().splitlines():
        match = re.fullmatch(rf"{family}{{(.*)}} (\S+)", line)
        if match and f'model="{model}"' in match[1]:
            uuid = re.search(r'gpu_uuid="([^"]*)"', match[1])
            found[uuid[1] if uuid else ""] = float(match[2])
    return found


# row: MET-06 MET-12
def test_models_have_counters_for_each_gpu(
    start_server: StartServer, gpus: Gpus, repository: pathlib.Path
) -> None:
    """As in Triton, the version also has series without a GPU, for work that isn't executed on
    one."""
    groups = {
        "both": "{ kind: KIND_GPU }",
        "first": "{ kind: KIND_GPU gpus: 0 }",
        "cpu": "{ kind: KIND_CPU }",
    }
    for name, group in groups.items():
        replace_file(repository / name / "1" / "model.onnx", constant_model(1))
        config = repository / name / "config.pbtxt"
        config.write_text(ONNX_CONFIG + f"instance_group [ {group} ]")
    add_model(repository, "python", "instance_group { kind: KIND_GPU gpus: 1 }")
    summaries = "--metrics-config=summary_latencies=true"
    flags = [gpus.flag(), interpreter_flag(), summaries]
    with start_server(repository, *flags, environment=gpus.environment()) as server:
        server.wait_until_ready()
        for name in groups:
            for _ in range(6):
                assert server.infer(name, request_body(1)).status == 200
        assert infer(server, "python").status == 200
        first, second = UUIDS
        duration = "nv_inference_request_duration_us"
        summary = "nv_inference_queue_summary_us_count"
        for family in ("nv_inference_request_success", "nv_inference_count", summary):
            assert counters(server, family, "first") == {"": 0, first: 6}, family
            both = counters(server, family, "both")
            assert set(both) == {"", first, second} and both[""] == 0, family
            assert sum(both.values()) == 6, family
            assert counters(server, family, "cpu") == {"": 6}, family
            assert counters(server, family, "python") == {"": 0, second: 1}, family
        assert counters(server, "nv_inference_exec_count", "first") == {"": 0, first: 6}
        assert counters(server, "nv_inference_exec_count", "python") == {"": 0, second: 1}
        assert counters(server, duration, "first")[""] == 0 < counters(server, duration, "first")[first]
        pending = "nv_inference_pending_request_count"
        assert counters(server, pending, "first") == {"": 0, first: 0}
        loaded = counters(server, "nv_model_load_duration_secs", "first")
        assert loaded[""] > 0 == loaded[first]
        # The models' statistics don't distinguish GPUs.
        assert server.statistics("both")["inference_count"] == 6


# row: MET-12
def test_without_metrics_of_gpus_models_have_one_series(
    start_server: StartServer, driver: StandIn, repository: pathlib.Path
) -> None:
    add_model(repository, "m")
    flags = [interpreter_flag(), "--allow-gpu-metrics=false"]
    with start_server(repository, *flags, environment=driver.environment()) as server:
        server.wait_until_ready()
        assert infer(server, "m").status == 200
        assert "gpu_uuid" not in server.metrics()
        assert counters(server, "nv_inference_request_success", "m") == {"": 1}


SETTINGS = """
#include "triton/core/tritonbackend.h"
TRITONSERVER_Error*
TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend)
{
  TRITONSERVER_Message* message;
  const char* text;
  size_t size;
  TRITONBACKEND_BackendConfig(backend, &message);
  TRITONSERVER_MessageSerializeToJson(message, &text, &size);
  TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, text);
  return NULL;
}
TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count)
{
  (void)instance, (void)requests, (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "it executes nothing");
}
"""


# row: CLI-11 BAPI-04
def test_backends_learn_the_limits_of_gpus(
    start_server: StartServer, driver: StandIn, repository: pathlib.Path
) -> None:
    folder = repository / "m"
    (folder / "1").mkdir(parents=True)
    source = folder / "settings.c"
    source.write_text(SETTINGS)
    compile_library(source, folder / "libtriton_settings.so")
    config = CONFIG.replace('"python"', '"settings"') + "instance_group { kind: KIND_CPU }"
    (folder / "config.pbtxt").write_text(config)
    flags = ["--model-load-gpu-limit=0:0.5", "--model-load-gpu-limit=1:0.25"]
    with start_server(repository, *flags, environment=driver.environment()) as server:
        server.wait_until_ready()
        log = server.log().replace('\\"', '"')
        assert '"model-load-gpu-limit-device-0":"0.500000"' in log
        assert '"model-load-gpu-limit-device-1":"0.250000"' in log
