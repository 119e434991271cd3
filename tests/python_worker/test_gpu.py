"""Tests of tensors in GPU memory, which the driver's stand-in provides (tests/devices).

The test plays the server's role: it opens and exports memory through the same stand-in, in a
different process from the worker. With STAND_IN_READABLE, programs may read a device's memory, as
a model's computations do.
"""

import ctypes
import json
import pathlib
import struct
import subprocess

import pytest
from harness import Tensor, fp32, request
from test_execute import outputs
from test_failures import model

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = {"output": [{"name": "OUT"}, {"name": "IN"}]}
DESCRIPTION = struct.Struct("<I64sQQ")
VALUES = struct.pack("<4f", 1, 2, 3, 4)

# A separate library whose tensors are on a GPU, like torch's.
HEAD = """import ctypes

        class Device:
            driver = ctypes.CDLL("libcuda.so.1")

            def __init__(self, number):
                context = ctypes.c_void_p()
                self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
                self.driver.cuCtxPushCurrent_v2(context)

            def allocate(self, content):
                address = ctypes.c_uint64()
                size = ctypes.c_size_t(max(64, len(content)))
                self.driver.cuMemAlloc_v2(ctypes.byref(address), size)
                ctypes.memmove(address.value, content, len(content))
                return address.value

        class Managed(ctypes.Structure):
            _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32),
                        ("device", ctypes.c_int32), ("ndim", ctypes.c_int32),
                        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                        ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
                        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype = ctypes.py_object
        new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype = ctypes.c_void_p
        get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

        def look(capsule):
            return Managed.from_address(get_pointer(capsule, b"dltensor"))

        class OnGpu:
            streams = []

            def __init__(self, device, address, count):
                self.shape = (ctypes.c_int64 * 1)(count)
                self.managed = Managed(address, 2, device, 1, 2, 32, 1,
                                       ctypes.addressof(self.shape), 0, 16, 0, 0)

            def __dlpack__(self, stream=None):
                self.streams.append(stream)
                return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)

            def __dlpack_device__(self):
                return (2, self.managed.device)"""


class Driver:
    """The stand-in, in this process."""

    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        self("cuInit", 0)

    def __call__(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, (name, code)

    def enter(self, device):
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxPushCurrent_v2", context)

    def export(self, device, content, before=0):
        """Device memory with this content, described for another process."""
        self.enter(device)
        address, handle = ctypes.c_uint64(), ctypes.create_string_buffer(64)
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(before + len(content)))
        ctypes.memmove(address.value + before, content, len(content))
        self("cuIpcGetMemHandle", handle, address)
        return DESCRIPTION.pack(device, handle.raw, before, len(content))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The stand-in's folder."""
    folder = tmp_path_factory.mktemp("driver")
    sources = sorted((ROOT / "tests" / "devices").glob("*.c"))
    subprocess.run(["cc", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", *sources,
                    "-o", folder / "libcuda.so.1", "-lpthread"], check=True)
    return folder


@pytest.fixture
def reports(library, tmp_path, monkeypatch):
    """Processes that start from now on find the stand-in; its reports are empty at the end."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("STAND_IN_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("STAND_IN_READABLE", "1")
    yield tmp_path
    violations = tmp_path / "violations"
    assert not violations.exists(), violations.read_text()


@pytest.fixture
def driver(library, reports):
    """The stand-in. Memory that this process leaves isn't reported, because the process
    doesn't end with the test."""
    return Driver(str(library / "libcuda.so.1"))


def on_gpu(worker, description, offset=4096, name="IN", count=4):
    """A tensor that a block of the input arena describes."""
    worker.inputs[offset:offset + len(description)] = description
    return Tensor(name, "FP32", [count], place=3, offset=offset, length=4 * count)


# row: PY-11
def test_an_input_on_a_gpu_is_a_capsule(load, driver):
    worker = load(model("""tensor = requests[0].inputs()[0]
                assert not tensor.is_cpu() and tensor.shape() == [4]
                assert tensor.__dlpack_device__() == (2, 1)
                try:
                    tensor.as_numpy()
                except pb_utils.TritonModelException as error:
                    assert str(error) == ("Tensor is stored in GPU and cannot be converted "
                                          "to NumPy."), error
                capsule = tensor.to_dlpack()
                content = look(capsule)
                assert (content.kind, content.device, content.bits) == (2, 1, 32)
                values = ctypes.string_at(content.data, 16)
                parameters = {"values": values.hex()}
                return [pb_utils.InferenceResponse([], parameters=parameters)]""",
                        HEAD), config=CONFIG)
    description = driver.export(1, VALUES, before=256)
    result = worker.execute(request(1, [on_gpu(worker, description)]))
    assert result["outcome"] == 0, result
    assert json.loads(result["requests"][0]["response"]["parameters"]) == {"values": VALUES.hex()}
    # The block is free, so the server may free the memory.
    assert result["released"] == [4096]
    worker.finalize()


# row: PY-11
def test_an_input_on_a_gpu_is_returned_as_it_is(load, driver):
    worker = load(model("return [pb_utils.InferenceResponse(requests[0].inputs())]"),
                  config=CONFIG)
    result = worker.execute(request(1, [on_gpu(worker, driver.export(0, VALUES))]))
    tensor = outputs(result)[0]["IN"]
    assert (tensor.place, tensor.offset, tensor.kind) == (3, 4096, 11)
    worker.finalize()


@pytest.mark.parametrize("count", [4, 9000])
# row: PY-11
def test_an_output_on_a_gpu_is_copied(load, driver, reports, count):
    """It is in the frame if it is short, otherwise in the arena; the memory need not have a
    handle."""
    values = bytes(range(256)) * (4 * count // 256) + bytes(range(4 * count % 256))
    worker = load(model(f"""device = Device(0)
                values = bytes.fromhex({values.hex()!r})
                address = device.allocate(bytes(16) + values)
                source = OnGpu(0, address, {count})
                tensor = pb_utils.Tensor.from_dlpack("OUT", source)
                assert not tensor.is_cpu() and tensor.shape() == [{count}]
                # The producer is waited for on a stream that it was told of.
                assert source.streams[0] not in (None, 0, 1)
                self.source = source
                return [pb_utils.InferenceResponse([tensor])]""", HEAD), config=CONFIG)
    result = worker.execute(request(1, [fp32("IN", [1])]))
    tensor = outputs(result)[0]["OUT"]
    assert (tensor.place, tensor.length) == (2 if count > 4 else 0, len(values))
    content = (worker.outputs[tensor.offset:tensor.offset + len(values)] if count > 4
               else tensor.content)
    assert bytes(content) == values
    worker.finalize()
    calls = dict(line.split() for line in (reports / "calls").read_text().splitlines())
    assert calls["copy_to_host"] == "1" and "cuIpcGetMemHandle" not in calls, calls
    # The objects that the model and the worker keep until the process ends.
    left = reports / "violations"
    assert left.read_text().splitlines() == [
        "leak: 1 of device memory, 0 of pinned memory, 0 opened, 0 of addresses",
        "leak: 1 streams, 0 events"]
    left.unlink()


# row: PY-11
def test_without_a_driver_tensors_on_gpus_are_refused(load):
    worker = load(model("""try:
                    pb_utils.Tensor.from_dlpack("OUT", OnGpu(0, 64, 4))
                except pb_utils.TritonModelException as error:
                    assert "when GPU is not available" in str(error), error
                    return [pb_utils.InferenceResponse([])]""",
                        HEAD.replace('ctypes.CDLL("libcuda.so.1")', "None")), config=CONFIG)
    result = worker.execute(request(1, [fp32("IN", [1])]))
    assert outputs(result) == [{}]
