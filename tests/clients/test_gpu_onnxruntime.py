"""ONNX models on GPUs.

Stand-ins take the places of NVIDIA's driver (tests/devices) and of ONNX Runtime with CUDA
(tests/onnxruntime_gpu), whose sessions compute on what the driver's copies gave them.
"""

from __future__ import annotations

import concurrent.futures
import pathlib
import re

import pytest
from onnx import TensorProto, helper

from conftest import StartServer
from constant_models import replace_file, request_body, write_model
from gpus import Gpus, StandIn, build_libraries
from server import Program, Server

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
    """The driver notes streams that are shared, and copies that are read before they are done."""
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
  state {
    input_name: "LIST_IN" output_name: "LIST_OUT" data_type: TYPE_INT32 dims: [ -1 ]
    initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }
    use_same_buffer_for_input_output: true use_growable_memory: true
  }
}
"""


def list_model() -> bytes:
    """A model that appends its input many times to its state, and says the state's sum."""
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
    """Two steps fit into 4 MiB of addresses, three don't."""
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
