"""Tests of ONNX models on GPUs.

Stand-ins replace NVIDIA's driver (tests/devices) and ONNX Runtime with CUDA
(tests/onnxruntime_gpu), whose sessions compute on the data that the driver's copies provided.
"""

from __future__ import annotations

import concurrent.futures
import pathlib
import re

import numpy as np
import pytest
from onnx import TensorProto, helper

from conftest import StartServer
from constant_models import replace_file, request_body, write_model
from gpu_clients import ALLOWED, Client, Memory, register, unregister
from gpus import Gpus, StandIn, build_libraries
from server import Program, Server
from shm_clients import infer

CONFIG = """
max_batch_size: 4
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
instance_group {{ {group} }}
{more}
"""
ON_BOTH = "kind: KIND_GPU count: 3"

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


def add_model(repository: pathlib.Path, name: str, value: int, group: str, more: str = "") -> None:
    write_model(repository, name, value, config=CONFIG.format(group=group, more=more))


def answer(server: Server, model: str, value: int) -> int:
    reply = server.infer(model, request_body(value))
    assert reply.status == 200, reply
    return reply.json()["outputs"][0]["data"][0]


@pytest.mark.parametrize("batching", ["", "dynamic_batching {}"])
# row: ONNX-06 INST-03 INST-13
def test_two_models_with_three_instances_on_each_of_two_gpus(
    start_server: StartServer, gpus: Gpus, repository: pathlib.Path, batching: str
) -> None:
    """The driver detects streams that are shared, and copies that are read before they complete."""
    add_model(repository, "one", 1, ON_BOTH, batching)
    add_model(repository, "ten", 10, ON_BOTH, batching)
    flags = [f"--onnxruntime-library={gpus.library}"]
    with start_server(repository, *flags, environment=gpus.environment()) as server:
        server.wait_until_ready()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            models = [("one", 1), ("ten", 10)] * 100
            calls = [
                (pool.submit(answer, server, model, number), number + added)
                for number, (model, added) in enumerate(models)
            ]
            for call, expected in calls:
                assert call.result() == expected
        sessions = gpus.sessions()
    assert len(sessions) == 12
    for model in ("one", "ten"):
        own = [line for line in sessions if f"/{model}/1/model.onnx" in line]
        devices = [match[1] for line in own if (match := re.search(r" device_id=(\d)", line))]
        assert sorted(devices) == ["0", "0", "0", "1", "1", "1"]
    streams = [match[1] for line in sessions if (match := re.search(r" stream=(\w+)", line))]
    assert len(set(streams)) == 12, "no two share a stream"
    assert gpus.driver.violations() == []


@pytest.mark.parametrize("instance", [0, 1, None])
# row: SHM-07
def test_regions_of_a_gpu_reach_a_model_there_without_the_host(
    start_server: StartServer,
    gpus: Gpus,
    repository: pathlib.Path,
    instance: int | None,
) -> None:
    """The input and output are copied on the GPU, or from one GPU to the other. A model on the
    CPU reads a copy in host memory, and its output is copied back."""
    group = "kind: KIND_CPU" if instance is None else f"kind: KIND_GPU gpus: [ {instance} ]"
    add_model(repository, "m", 7, group)
    flags = [f"--onnxruntime-library={gpus.library}", ALLOWED]
    client = Client(gpus.driver.libraries)
    memory = Memory(client, 1)
    with start_server(repository, *flags, environment=gpus.environment()) as server:
        server.wait_until_ready()
        register(server, "r", memory)
        for number, protocol in enumerate(("http", "grpc")):
            memory.put(number.to_bytes(4, "little"), 64)
            given = ("INT32", [1, 1], "r", 4, 64)
            infer(server, protocol, "m", {"INPUT0": given}, {"OUTPUT0": ("r", 4, 128)})
            assert memory.get(4, 128) == (number + 7).to_bytes(4, "little")
        # Data from the network is copied to the GPU once, and an output is not copied back there.
        value = np.array([[30]], dtype=np.int32)
        infer(server, "http", "m", {"INPUT0": value}, {"OUTPUT0": ("r", 4, 128)})
        assert memory.get(4, 128) == (37).to_bytes(4, "little")
        unregister(server)
    memory.free()
    calls = gpus.driver.calls()
    counts = [calls.get(f"copy_{way}", 0) for way in ("to_host", "on_device", "to_device")]
    assert counts == ([2, 0, 3] if instance is None else [0, 5, 1])
    assert server.process.returncode == 0
    assert gpus.driver.violations() == []


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling {
  step { model_name: "one" model_version: -1
         input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "between" } }
  step { model_name: "ten" model_version: -1
         input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
}
"""


@pytest.mark.parametrize("second", [0, 1, None])
# row: SHM-07
def test_tensors_between_the_steps_of_an_ensemble_stay_on_the_gpu(
    start_server: StartServer, gpus: Gpus, repository: pathlib.Path, second: int | None
) -> None:
    """The second step reads the first step's output in place, or a copy on its own GPU."""
    add_model(repository, "one", 1, "kind: KIND_GPU gpus: [ 0 ]")
    group = "kind: KIND_CPU" if second is None else f"kind: KIND_GPU gpus: [ {second} ]"
    add_model(repository, "ten", 10, group)
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(ENSEMBLE)
    flags = [f"--onnxruntime-library={gpus.library}", ALLOWED]
    memory = Memory(Client(gpus.driver.libraries), 0)
    with start_server(repository, *flags, environment=gpus.environment()) as server:
        server.wait_until_ready()
        assert answer(server, "both", 100) == 111
        register(server, "r", memory)
        memory.put((5).to_bytes(4, "little"))
        given = ("INT32", [1, 1], "r", 4, 0)
        infer(server, "grpc", "both", {"INPUT0": given}, {"OUTPUT0": ("r", 4, 128)})
        assert memory.get(4, 128) == (16).to_bytes(4, "little")
        unregister(server)
    memory.free()
    calls = gpus.driver.calls()
    counts = [calls.get(f"copy_{way}", 0) for way in ("to_host", "on_device", "to_device")]
    assert counts == {0: [0, 2, 1], 1: [0, 4, 1], None: [2, 1, 2]}[second]
    assert server.process.returncode == 0
    assert gpus.driver.violations() == []


# row: ONNX-06
def test_what_a_library_does_not_know_keeps_a_model_from_loading(
    start_server: StartServer, gpus: Gpus, repository: pathlib.Path
) -> None:
    option = """optimization { execution_accelerators { gpu_execution_accelerator {
        name: "cuda" parameters { key: "warp" value: "9" } } } }"""
    add_model(repository, "wrong", 1, "kind: KIND_GPU", option)
    add_model(repository, "right", 2, "kind: KIND_GPU")
    flags = [f"--onnxruntime-library={gpus.library}", "--exit-on-error=false"]
    with start_server(repository, *flags, environment=gpus.environment()) as server:
        server.wait_until_live()
        assert answer(server, "right", 3) == 5
        assert 'Unknown provider option: "warp".' in server.log()
    assert gpus.driver.violations() == []


# row: ONNX-06
def test_a_library_for_cpus_refuses_groups_on_gpus(
    start_server: StartServer, gpus: Gpus, repository: pathlib.Path
) -> None:
    add_model(repository, "wrong", 1, "kind: KIND_GPU")
    flags = ["--exit-on-error=false"]
    with start_server(repository, *flags, environment=gpus.environment()) as server:
        server.wait_until_live()
        assert server.get("/v2/models/wrong/ready").status != 200
        assert "pip install onnxruntime-gpu" in server.log()
    assert gpus.driver.violations() == []


ADDED_COUNT = 400_000
LISTS = """
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { kind: KIND_GPU gpus: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  state {
    input_name: "LIST_IN" output_name: "LIST_OUT" data_type: TYPE_INT32 dims: [ -1 ]
    initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }
    use_same_buffer_for_input_output: true use_growable_memory: true
  }
}
"""


def list_model() -> bytes:
    """A model that appends its input many times to its state, and returns the sum of the state."""
    tensor = helper.make_tensor_value_info
    number = TensorProto.INT32
    graph = helper.make_graph(
        [
            helper.make_node("Expand", ["INPUT", "count"], ["new"]),
            helper.make_node("Concat", ["LIST_IN", "new"], ["LIST_OUT"], axis=1),
            helper.make_node("ReduceSum", ["LIST_OUT", "axes"], ["SUM"]),
        ],
        "lists",
        [tensor("INPUT", number, ["batch", 1]), tensor("LIST_IN", number, ["batch", "before"])],
        [tensor("SUM", number, ["batch", 1]), tensor("LIST_OUT", number, ["batch", "after"])],
        [
            helper.make_tensor("count", TensorProto.INT64, [2], [1, ADDED_COUNT]),
            helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model.SerializeToString()


@pytest.mark.parametrize("limit", [None, 4 << 20])
# row: IMP-09 SAPI-04
def test_states_grow_in_place_as_long_as_their_addresses(
    start_server: StartServer, gpus: Gpus, repository: pathlib.Path, limit: int | None
) -> None:
    """Two steps fit into 4 MiB of addresses, but three don't."""
    replace_file(repository / "lists" / "1" / "model.onnx", list_model())
    (repository / "lists" / "config.pbtxt").write_text(LISTS)
    flags = [f"--onnxruntime-library={gpus.library}"]
    flags += [f"--cuda-virtual-address-size=1:{limit}"] if limit else []
    with start_server(repository, *flags, environment=gpus.environment()) as server:
        server.wait_until_ready()
        assert "use_growable_memory" not in server.log()
        for step in (1, 2, 3):
            for sequence in (1, 2):
                tensor = {"name": "INPUT", "shape": [1, 1], "datatype": "INT32", "data": [step]}
                parameters = {"sequence_id": sequence, "sequence_start": step == 1}
                reply = server.infer("lists", {"inputs": [tensor], "parameters": parameters})
                if limit and step == 3:
                    byte_size = 4 * (1 + 3 * ADDED_COUNT)
                    text = f"requested size: {byte_size}, virtual_address_size:{limit}"
                    assert reply.status == 400 and text in reply.json()["error"], reply
                    continue
                assert reply.status == 200, reply
                expected = ADDED_COUNT * step * (step + 1) // 2
                assert reply.json()["outputs"][0]["data"] == [expected]
    calls = gpus.driver.calls()
    assert calls["cuMemAddressReserve"] == 2
    assert calls["cuMemMap"] == (4 if limit else 6)
    assert gpus.driver.violations() == []
