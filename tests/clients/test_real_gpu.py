"""Tests with a real GPU, for what the stand-ins in tests/devices and tests/onnxruntime_gpu can't
show.

Skipped unless GALATEA_GPU contains the number of one of the machine's GPUs. `--onnxruntime-library`
names the library of onnxruntime-gpu, which must be able to find CUDA's and cuDNN's libraries
(LD_LIBRARY_PATH). Python models need torch and CuPy in the interpreter that runs the tests. Tests
that need a missing package are skipped.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import pathlib
import re
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiling import compile_library
from conftest import StartServer
from constant_models import replace_file, request_body
from gpu_clients import ALLOWED, Client, Memory, register, unregister
from python_backend import interpreter_flag
from server import wait_until
from shm_clients import PROTOCOLS, infer
from test_gpu import place, python_model, series
from test_gpu_onnxruntime import CONFIG, ENSEMBLE, add_model, answer
from test_gpu_placement import counters

GPU = os.environ.get("GALATEA_GPU", "")

pytestmark = [
    pytest.mark.galatea_only,
    pytest.mark.skipif(not GPU, reason="needs a GPU, whose number is in GALATEA_GPU"),
]

HERE = pathlib.Path(__file__).resolve().parent
#: Sessions of CUDA and imports of torch take long.
LOAD_SECONDS_MAX = 120
GROUP = f"kind: KIND_GPU gpus: [ {GPU or 0} ]"


def needs(package: str) -> pytest.MarkDecorator:
    """A mark for tests whose models import a package."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs the Python package {package}")


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def client() -> Client:
    """The driver in the tests' process, under the name by which the loader finds it."""
    return Client(None)


def smi(*names: str) -> list[str]:
    """Values that NVIDIA's own tool reports for the GPU."""
    query = ["nvidia-smi", f"--id={GPU}", f"--query-gpu={','.join(names)}"]
    command = [*query, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [value.strip() for value in done.stdout.split(",")]


# row: CLI-20 CLI-22 MET-12
def test_found_and_measured_as_the_tool_of_the_driver_says(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    python_model(repository, "where", f"instance_group {{ {GROUP} }}")
    with start_server(repository, interpreter_flag()) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        name, uuid, capability = smi("name", "uuid", "compute_cap")
        log = server.log()
        assert f"Collecting metrics for GPU {GPU}: {name}" in log
        assert f"CUDA memory pool is created on device {GPU} with size 67108864" in log
        assert "Pinned memory pool is created" in log
        assert place(server, "where") == f"GPU:{GPU}"
        assert float(capability) >= 7.5, capability
        wait_until(lambda: uuid in series(server, "nv_gpu_power_usage"), 10, "it is measured")
        total, used, limit, power = map(
            float, smi("memory.total", "memory.used", "power.limit", "power.draw")
        )
        assert series(server, "nv_gpu_memory_total_bytes")[uuid] == pytest.approx(
            total * 2**20, rel=0.02
        )
        assert series(server, "nv_gpu_memory_used_bytes")[uuid] == pytest.approx(
            used * 2**20, abs=2 * 2**30
        )
        assert series(server, "nv_gpu_power_limit")[uuid] == pytest.approx(limit, rel=0.01)
        assert series(server, "nv_gpu_power_usage")[uuid] == pytest.approx(power, rel=0.5)
        assert 0 <= series(server, "nv_gpu_utilization")[uuid] <= 1
        first = series(server, "nv_energy_consumption")[uuid]
        wait_until(
            lambda: series(server, "nv_energy_consumption")[uuid] > first, 10, "energy is counted"
        )
    assert server.process.returncode == 0


@pytest.mark.parametrize("batching", ["", "dynamic_batching {}"])
# row: ONNX-06 INST-03 INST-13
def test_two_models_with_three_instances_each(
    start_server: StartServer, repository: pathlib.Path, batching: str
) -> None:
    add_model(repository, "one", 1, f"{GROUP} count: 3", batching)
    add_model(repository, "ten", 10, f"{GROUP} count: 3", batching)
    with start_server(repository) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            models = [("one", 1), ("ten", 10)] * 300
            calls = [
                (pool.submit(answer, server, model, number), number + added)
                for number, (model, added) in enumerate(models)
            ]
            assert all(call.result() == expected for call, expected in calls)
        (uuid,) = smi("uuid")
        for model in ("one", "ten"):
            assert counters(server, "nv_inference_request_success", model)[uuid] == 300
    assert server.process.returncode == 0


def random_network() -> bytes:
    """Two convolutions and a matrix product with seeded weights, for one image of a batch."""
    rng = np.random.default_rng(7)

    def weights(name: str, *dims: int) -> TensorProto:
        values = rng.normal(0, 0.05, dims).astype(np.float32)
        return onnx.numpy_helper.from_array(values, name)

    nodes = [
        helper.make_node("Conv", ["IN", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["OUT"]),
    ]
    graph = helper.make_graph(
        nodes, "network",
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", 10])],
        [weights("w1", 16, 3, 3, 3), weights("w2", 32, 16, 3, 3), weights("w3", 32, 10)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model.SerializeToString()


# row: ONNX-06
def test_a_network_computes_what_it_computes_on_the_processor(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    for name, group in (("gpu", GROUP), ("cpu", "kind: KIND_CPU")):
        replace_file(repository / name / "1" / "model.onnx", random_network())
        (repository / name / "config.pbtxt").write_text(
            f"max_batch_size: 16\ninstance_group {{ {group} }}\ndynamic_batching {{}}\n"
        )
    images = np.random.default_rng(3).normal(0, 1, (16, 3, 32, 32)).astype(np.float32)
    with start_server(repository) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        for rows in (1, 3, 16):
            given = {"IN": images[:rows]}
            found, expected = (
                infer(server, "http", model, given, {"OUT": None}).as_numpy("OUT")
                for model in ("gpu", "cpu")
            )
            assert np.isfinite(found).all() and np.abs(expected).max() > 1e-3
            # Tensor cores round the factors of FP32 products to TF32.
            np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-3)
    assert server.process.returncode == 0


@pytest.mark.parametrize("group", [GROUP, "kind: KIND_CPU"], ids=["gpu", "cpu"])
# row: SHM-07
def test_regions_of_clients(
    start_server: StartServer, repository: pathlib.Path, client: Client, group: str
) -> None:
    """Over each protocol, for inputs and outputs, and also with the model on the processor."""
    add_model(repository, "m", 7, group)
    memory = Memory(client, int(GPU))
    with start_server(repository, ALLOWED) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        register(server, "r", memory)
        for number, protocol in enumerate(PROTOCOLS):
            memory.put(number.to_bytes(4, "little"), 64)
            given = ("INT32", [1, 1], "r", 4, 64)
            infer(server, protocol, "m", {"INPUT0": given}, {"OUTPUT0": ("r", 4, 128)})
            assert memory.get(4, 128) == (number + 7).to_bytes(4, "little")
            result = infer(server, protocol, "m", {"INPUT0": given}, {"OUTPUT0": None})
            assert result.as_numpy("OUTPUT0").tolist() == [[number + 7]]
        unregister(server)
        reply = server.request("GET", "/v2/cudasharedmemory/status", b"")
        assert reply.json() == [], reply
    memory.free()
    assert server.process.returncode == 0


# row: SHM-07
def test_regions_that_are_wrong(
    start_server: StartServer, repository: pathlib.Path, client: Client
) -> None:
    add_model(repository, "m", 7, GROUP)
    memory = Memory(client, int(GPU))
    with start_server(repository, ALLOWED) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        right, memory.raw_handle = memory.raw_handle, bytes(64)
        with pytest.raises(Exception, match="failed to register shared memory region: invalid args"):
            register(server, "nonsense", memory)
        assert "failed to open CUDA IPC handle: " in server.log()
        memory.raw_handle = right
        with pytest.raises(Exception, match="'long': invalid args"):
            register(server, "long", memory, 1 << 30)
        memory.free()
        assert answer(server, "m", 1) == 8
    assert server.process.returncode == 0


@pytest.mark.parametrize("second", [GROUP, "kind: KIND_CPU"], ids=["gpu", "cpu"])
# row: SHM-07
def test_steps_of_an_ensemble(
    start_server: StartServer, repository: pathlib.Path, client: Client, second: str
) -> None:
    add_model(repository, "one", 1, GROUP)
    add_model(repository, "ten", 10, second)
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(ENSEMBLE)
    memory = Memory(client, int(GPU))
    with start_server(repository, ALLOWED) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            values = list(range(200))
            found = list(pool.map(lambda value: answer(server, "both", value), values))
            assert found == [value + 11 for value in values]
        register(server, "r", memory)
        memory.put((5).to_bytes(4, "little"))
        given = ("INT32", [1, 1], "r", 4, 0)
        infer(server, "grpc", "both", {"INPUT0": given}, {"OUTPUT0": ("r", 4, 128)})
        assert memory.get(4, 128) == (16).to_bytes(4, "little")
        unregister(server)
    memory.free()
    assert server.process.returncode == 0


# Doubles its input on its GPU, in the framework that a parameter names, and returns where the input
# was.
FRAMEWORK = """
import json
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name = config["parameters"]["FRAMEWORK"]["string_value"]
        self.device = int(args["model_instance_device_id"])

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            kind = -1 if tensor.is_cpu() else tensor.__dlpack_device__()[1]
            if self.name == "torch":
                import torch
                result = 2 * torch.from_dlpack(tensor).to(f"cuda:{self.device}")
            else:
                import cupy
                with cupy.cuda.Device(self.device):
                    source = tensor.as_numpy() if tensor.is_cpu() else cupy.from_dlpack(tensor)
                    result = 2 * cupy.asarray(source)
            output = pb_utils.Tensor.from_dlpack("OUT", result)
            assert not output.is_cpu()
            where = pb_utils.Tensor("PLACE", numpy.array([kind], numpy.int32))
            responses.append(pb_utils.InferenceResponse([output, where]))
        return responses
"""
FRAMEWORK_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "PLACE" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { %s }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "%s" } }
parameters { key: "FRAMEWORK" value { string_value: "%s" } }
"""


@pytest.mark.parametrize(
    "framework",
    [pytest.param("torch", marks=needs("torch")), pytest.param("cupy", marks=needs("cupy"))],
)
# row: PY-11
def test_tensors_of_frameworks(
    start_server: StartServer, repository: pathlib.Path, client: Client, framework: str
) -> None:
    """Inputs come from the network and from a region; outputs are in the framework's own memory."""
    for name, force_cpu in (("near", "no"), ("far", "yes")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(FRAMEWORK)
        config = FRAMEWORK_CONFIG % (GROUP, force_cpu, framework)
        (repository / name / "config.pbtxt").write_text(config)
    byte_size = 8 << 20
    memory = Memory(client, int(GPU), byte_size)
    values = np.random.default_rng(1).normal(0, 1, byte_size // 8).astype(np.float32)
    with start_server(repository, ALLOWED, interpreter_flag()) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        register(server, "r", memory, byte_size)
        memory.put(values.tobytes(), 0)
        half = byte_size // 2
        given = ("FP32", [len(values)], "r", half, 0)
        for model, expected in (("near", int(GPU)), ("far", -1)):
            for _ in range(3):
                result = infer(server, "grpc", model, {"IN": given}, {"OUT": None, "PLACE": None})
                assert result.as_numpy("PLACE").tolist() == [expected]
                np.testing.assert_array_equal(result.as_numpy("OUT"), 2 * values)
            memory.put(bytes(half), half)
            infer(server, "http", model, {"IN": given}, {"OUT": ("r", half, half)})
            assert memory.get(half, half) == (2 * values).tobytes()
            result = infer(server, "http", model, {"IN": values}, {"OUT": None, "PLACE": None})
            assert result.as_numpy("PLACE").tolist() == [-1]
            np.testing.assert_array_equal(result.as_numpy("OUT"), 2 * values)
        unregister(server)
    memory.free()
    assert server.process.returncode == 0


CALLER = """
import json
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            wanted = json.loads(request.parameters())["gpu"]
            gpu, cpu = pb_utils.TRITONSERVER_MEMORY_GPU, pb_utils.TRITONSERVER_MEMORY_CPU
            preferred = pb_utils.PreferredMemory(gpu if wanted >= 0 else cpu, max(wanted, 0))
            source = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            called = pb_utils.InferenceRequest(
                model_name="m", requested_output_names=["OUTPUT0"], inputs=[source],
                preferred_memory=preferred)
            answer = called.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
                continue
            found = pb_utils.get_output_tensor_by_name(answer, "OUTPUT0")
            assert found.is_cpu() == (wanted < 0), (found.is_cpu(), wanted)
            result = torch.from_dlpack(found)
            assert str(result.device) == ("cpu" if wanted < 0 else f"cuda:{wanted}"), result.device
            output = pb_utils.Tensor.from_dlpack("OUTPUT0", result + 100)
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""


@needs("torch")
# row: BLS-04
def test_responses_of_calls_in_preferred_memory(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    add_model(repository, "m", 7, GROUP)
    (repository / "caller" / "1").mkdir(parents=True)
    (repository / "caller" / "1" / "model.py").write_text(CALLER)
    config = 'backend: "python"\n' + CONFIG.format(group="kind: KIND_CPU", more="")
    (repository / "caller" / "config.pbtxt").write_text(config)
    with start_server(repository, interpreter_flag()) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        for wanted in (int(GPU), -1, int(GPU)):
            body = {**request_body(5), "parameters": {"gpu": wanted}}
            reply = server.infer("caller", body)
            assert reply.status == 200, reply
            assert reply.json()["outputs"][0]["data"] == [112]
    assert server.process.returncode == 0


FAULT_CONFIG = """
backend: "gpu_fault"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { %s }
"""


# row: ONNX-06
def test_an_illegal_address_makes_the_gpu_lost(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """A backend's kernel writes to an invalid address. Models on processors continue, and the
    server ends in time."""
    (repository / "fault" / "1").mkdir(parents=True)
    (repository / "fault" / "config.pbtxt").write_text(FAULT_CONFIG % GROUP)
    library = repository / "fault" / "1" / "libtriton_gpu_fault.so"
    compile_library(HERE / "gpu_fault.c", library, "-ldl")
    add_model(repository, "gpu", 1, GROUP)
    add_model(repository, "cpu", 2, "kind: KIND_CPU")
    with start_server(repository) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        assert answer(server, "gpu", 5) == 6
        tensor = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}
        reply = server.infer("fault", {"inputs": [tensor]})
        assert reply.status == 500 and "says 700" in reply.error(), reply
        reply = server.infer("gpu", request_body(1))
        assert reply.status in (500, 503), reply
        assert "illegal memory access" in reply.error(), reply
        assert answer(server, "cpu", 5) == 7
        wait_until(
            lambda: server.get("/v2/models/gpu/ready").status != 200, 20, "the GPU is left"
        )
        reply = server.infer("gpu", request_body(1))
        assert reply.status == 503 and f"GPU {GPU}" in reply.error(), reply
        assert answer(server, "cpu", 6) == 8
        assert re.search(rf"GPU {GPU}.*illegal memory access", server.log())
    assert server.process.returncode == 0


# row: ONNX-06
def test_exhausted_memory_fails_a_batch_and_nothing_else(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """`gpu_mem_limit` is the accelerator's limit, and a request of 64 MiB doesn't fit into 16."""
    dims = ["n"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["IN", "IN"], ["twice"]), helper.make_node("Neg", ["twice"], ["OUT"])],
        "large",
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, dims)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    replace_file(repository / "m" / "1" / "model.onnx", model.SerializeToString())
    (repository / "m" / "config.pbtxt").write_text(
        'input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        f"instance_group {{ {GROUP} }}\n"
        'parameters { key: "gpu_mem_limit" value { string_value: "16777216" } }\n'
    )
    with start_server(repository) as server:
        server.wait_until_ready(LOAD_SECONDS_MAX)
        small = np.ones(1 << 10, np.float32)
        large = np.ones(16 << 20, np.float32)
        for _ in range(2):
            result = infer(server, "http", "m", {"IN": small}, {"OUT": None})
            assert (result.as_numpy("OUT") == -2).all()
            with pytest.raises(Exception, match=r"Available memory of \d+ is smaller"):
                infer(server, "http", "m", {"IN": large}, {"OUT": None})
        assert server.get("/v2/models/m/ready").status == 200
    assert server.process.returncode == 0


@pytest.mark.parametrize(
    "option, text",
    [("warp", "warp"), ("gpu_mem_limit", "gpu_mem_limit")],
    ids=["unknown", "wrong"],
)
# row: ONNX-06
def test_options_that_the_provider_refuses(
    start_server: StartServer, repository: pathlib.Path, option: str, text: str
) -> None:
    more = f"""optimization {{ execution_accelerators {{ gpu_execution_accelerator {{
        name: "cuda" parameters {{ key: "{option}" value: "nonsense" }} }} }} }}"""
    add_model(repository, "wrong", 1, GROUP, more)
    add_model(repository, "right", 2, GROUP)
    with start_server(repository, "--exit-on-error=false") as server:
        server.wait_until_live()
        wait_until(
            lambda: server.get("/v2/models/right/ready").status == 200, LOAD_SECONDS_MAX, "it loads"
        )
        assert answer(server, "right", 3) == 5
        assert server.get("/v2/models/wrong/ready").status != 200
        assert re.search(rf"failed to load 'wrong'.*{text}", server.log()), server.log()[-2000:]
