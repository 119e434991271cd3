"""Tests of Python models whose tensors are on GPUs, which the driver's stand-in provides
(tests/devices)."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from conftest import StartServer
from gpu_clients import ALLOWED, Client, Memory, register, unregister
from gpus import StandIn, build_driver
from python_backend import interpreter_flag
from server import Server
from shm_clients import infer

pytestmark = pytest.mark.galatea_only

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group { kind: KIND_GPU gpus: [ 1 ] }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "%s" } }
"""

# Copies its input to memory on its GPU, as a framework would, and returns it there.
MODEL = """
import ctypes
import triton_python_backend_utils as pb_utils

driver = ctypes.CDLL("libcuda.so.1")


class Managed(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("device", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class OnGpu:
    def __init__(self, device, content):
        self.address = ctypes.c_uint64()
        code = driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(len(content) + 8))
        assert code == 0, code
        ctypes.memmove(self.address.value + 8, content, len(content))
        self.shape = (ctypes.c_int64 * 1)(len(content) // 4)
        self.managed = Managed(self.address.value, 2, device, 1, 0, 32, 1,
                               ctypes.addressof(self.shape), 0, 8, 0, 0)

    def __dlpack__(self, stream=None):
        return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self):
        return (2, self.managed.device)


class TritonPythonModel:
    def initialize(self, args):
        assert args["model_instance_kind"] == "GPU", args
        self.device = int(args["model_instance_device_id"])
        assert driver.cuInit(0) == 0
        context = ctypes.c_void_p()
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), self.device) == 0
        assert driver.cuCtxPushCurrent_v2(context) == 0
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            assert tensor.is_cpu()
            source = OnGpu(self.device, tensor.as_numpy().tobytes())
            self.kept.append(source)
            output = pb_utils.Tensor.from_dlpack("OUT", source)
            assert not output.is_cpu()
            responses.append(pb_utils.InferenceResponse([output]))
        return responses

    def finalize(self):
        for source in self.kept:
            driver.cuMemFree_v2(source.address)
"""


def add_model(repository: pathlib.Path, name: str, force_cpu: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(MODEL)
    (repository / name / "config.pbtxt").write_text(CONFIG % force_cpu)


# row: PY-11
def test_outputs_on_a_gpu_reach_clients(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    repository = tmp_path / "models"
    add_model(repository, "far", "no")
    add_model(repository, "wrong", "perhaps")
    stand_in = StandIn(build_driver(tmp_path / "driver"), tmp_path / "reports")
    environment = stand_in.environment(STAND_IN_READABLE="1")
    flags = [interpreter_flag(), "--exit-on-error=false"]
    with start_server(repository, *flags, environment=environment) as server:
        server.wait_until_live()
        for count in (1, 3, 9000):
            data = list(range(count))
            tensor = {"name": "IN", "datatype": "INT32", "shape": [count], "data": data}
            reply = server.infer("far", {"inputs": [tensor]})
            assert reply.status == 200, reply
            assert reply.json()["outputs"][0]["data"] == data
        text = "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: perhaps'"
        assert text in server.log()
    assert [line for line in stand_in.violations() if "stream" not in line] == []


# Calls another model with the kind of memory that a parameter names, and returns where the
# response is. The tensor is read in place, by its address; the stand-in has it in this process
# too.
CALLER = """
import ctypes
import json
import triton_python_backend_utils as pb_utils

get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype = ctypes.c_void_p
get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            wanted = json.loads(request.parameters())
            memory = {}
            if "gpu" in wanted:
                memory = {"preferred_memory": pb_utils.PreferredMemory(
                    pb_utils.TRITONSERVER_MEMORY_GPU, wanted["gpu"])}
            if "cpu" in wanted:
                memory = {"preferred_memory": pb_utils.PreferredMemory(
                    pb_utils.TRITONSERVER_MEMORY_CPU)}
            source = pb_utils.get_input_tensor_by_name(request, "IN")
            called = pb_utils.InferenceRequest(
                model_name="called", requested_output_names=["IN", "TEXT"],
                inputs=[source, pb_utils.get_input_tensor_by_name(request, "TEXT")], **memory)
            answer = called.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
                continue
            tensor = pb_utils.get_output_tensor_by_name(answer, "IN")
            text = pb_utils.get_output_tensor_by_name(answer, "TEXT")
            assert text.is_cpu() and text.as_numpy().tolist() == [b"a"]
            place = -1
            if not tensor.is_cpu():
                kind, place = tensor.__dlpack_device__()
                capsule = tensor.to_dlpack()
                place_of_data = get_pointer(capsule, b"dltensor")
                address = ctypes.c_void_p.from_address(place_of_data).value
                length = source.as_numpy().nbytes
                found = ctypes.string_at(address, length)
                assert (kind, found) == (2, source.as_numpy().tobytes()), (kind, found)
            import numpy
            place = pb_utils.Tensor("PLACE", numpy.array([place], numpy.int32))
            responses.append(pb_utils.InferenceResponse([tensor, place]))
        return responses
"""
CALLER_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "PLACE" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { kind: KIND_CPU }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "%s" } }
"""
CALLED = """
class TritonPythonModel:
    def execute(self, requests):
        import triton_python_backend_utils as pb_utils
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
CALLED_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
instance_group { kind: KIND_CPU }
"""


def add_callers(repository: pathlib.Path) -> None:
    models = {
        "called": (CALLED, CALLED_CONFIG),
        "caller": (CALLER, CALLER_CONFIG % "yes"),
        "sharing_caller": (CALLER, CALLER_CONFIG % "no"),
    }
    for name, (code, config) in models.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(code)
        (repository / name / "config.pbtxt").write_text(config)


def place_of_response(server: Server, model: str, parameters: dict[str, int], count: int) -> int:
    """The GPU on which the caller found the response; -1 means host memory."""
    data = list(range(count))
    inputs = [
        {"name": "IN", "datatype": "INT32", "shape": [count], "data": data},
        {"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a"]},
    ]
    reply = server.infer(model, {"inputs": inputs, "parameters": parameters})
    assert reply.status == 200, reply
    outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
    assert outputs["IN"] == data
    return outputs["PLACE"][0]


# row: BLS-04
def test_responses_of_calls_are_in_the_memory_that_is_preferred(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """This holds for any memory of the caller's inputs. Strings are always in host memory."""
    repository = tmp_path / "models"
    add_callers(repository)
    stand_in = StandIn(build_driver(tmp_path / "driver"), tmp_path / "reports")
    environment = stand_in.environment(STAND_IN_READABLE="1")
    with start_server(repository, interpreter_flag(), environment=environment) as server:
        server.wait_until_ready()
        for model in ("caller", "sharing_caller"):
            for count in (1, 9000):
                for gpu in (0, 1):
                    assert place_of_response(server, model, {"gpu": gpu}, count) == gpu
                assert place_of_response(server, model, {"cpu": 0}, count) == -1
                assert place_of_response(server, model, {}, count) == -1
            assert place_of_response(server, model, {"gpu": 1}, 0) == -1, "an empty tensor"
        tensor = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}
        text = {"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a"]}
        body = {"inputs": [tensor, text], "parameters": {"gpu": 7}}
        reply = server.infer("caller", body)
        assert reply.status == 500 and "invalid device ordinal" in reply.json()["error"], reply
    assert [line for line in stand_in.violations() if "stream" not in line] == []


# row: BLS-04
def test_without_gpus_responses_of_calls_are_in_the_hosts_memory(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    repository = tmp_path / "models"
    add_callers(repository)
    with start_server(repository, interpreter_flag()) as server:
        server.wait_until_ready()
        assert place_of_response(server, "caller", {"gpu": 1}, 3) == -1


# Returns which GPU its input is on, and returns the input unchanged.
READER = """
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            place = -1 if tensor.is_cpu() else tensor.__dlpack_device__()[1]
            place = pb_utils.Tensor("PLACE", numpy.array([place], numpy.int32))
            responses.append(pb_utils.InferenceResponse([tensor, place]))
        return responses
"""
READER_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "PLACE" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { kind: KIND_GPU gpus: [ 1 ] }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "%s" } }
"""


# row: PY-11 SHM-07
def test_inputs_in_regions_of_clients_stay_on_their_gpu(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """It is a copy there, because the driver provides no handle for a client's memory."""
    repository = tmp_path / "models"
    for name, force_cpu in (("near", "no"), ("far", "yes")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(READER)
        (repository / name / "config.pbtxt").write_text(READER_CONFIG % force_cpu)
    stand_in = StandIn(build_driver(tmp_path / "driver"), tmp_path / "reports")
    memory = Memory(Client(stand_in.libraries), 1)
    environment = stand_in.environment(STAND_IN_READABLE="1")
    with start_server(repository, ALLOWED, interpreter_flag(), environment=environment) as server:
        server.wait_until_ready()
        register(server, "r", memory)
        values = np.arange(6, dtype=np.int32)
        memory.put(values.tobytes(), 64)
        given = ("INT32", [6], "r", 24, 64)
        for model, place in (("near", 1), ("far", -1)):
            outputs = {"IN": None, "PLACE": None}
            result = infer(server, "grpc", model, {"IN": given}, outputs)
            assert result.as_numpy("PLACE").tolist() == [place]
            assert (result.as_numpy("IN") == values).all()
        unregister(server)
    memory.free()
    assert [line for line in stand_in.violations() if "stream" not in line] == []
