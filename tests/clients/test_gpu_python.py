"""Models in Python whose tensors are on GPUs, which the driver's stand-in has (tests/devices)."""

from __future__ import annotations

import pathlib

import pytest

from conftest import StartServer
from gpus import StandIn, build_driver
from python_backend import interpreter_flag

pytestmark = pytest.mark.galatea_only

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group { kind: KIND_GPU gpus: [ 1 ] }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "%s" } }
"""

# Puts its input into memory of its GPU, as a framework would, and returns it there.
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
