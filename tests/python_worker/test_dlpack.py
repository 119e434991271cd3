"""Tests of DLPack, from and for other libraries."""

import struct

import pytest
from harness import Tensor, fp32, request
from test_execute import block, outputs
from test_failures import failure, model

CONFIG = {"output": [{"name": "OUT"}, {"name": "IN"}]}

# A separate library that consumes capsules through numpy.
HEAD = """import numpy as np
        import ctypes, gc

        class Owner:
            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack__(self, **_):
                return self.tensor.to_dlpack()

            def __dlpack_device__(self):
                return (1, 0)"""


@pytest.mark.numpy
@pytest.mark.parametrize("long", [False, True])
def test_round_trip_without_a_copy(load, long):
    worker = load(model("""tensor = requests[0].inputs()[0]
                array = np.from_dlpack(tensor)
                again = pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack())
                third = pb_utils.Tensor.from_dlpack("IN", Owner(again))
                assert again.shape() == third.shape() == list(array.shape)
                assert again._dtype == tensor._dtype
                again.as_numpy()[0] = 7
                assert array[0] == 7 == third.as_numpy()[0]
                assert tensor.__dlpack_device__() == (1, 0)
                return [pb_utils.InferenceResponse([again, third])]""", HEAD), config=CONFIG)
    count = 8192 if long else 4
    content = struct.pack(f"<{count}f", *range(count))
    tensor = block(worker, content) if long else fp32("IN", range(count))
    result = worker.execute(request(1, [tensor]))
    for name in ("OUT", "IN"):
        assert outputs(result)[0][name].content == struct.pack("<f", 7) + content[4:]
    if long:
        assert result["released"] == [4096]


@pytest.mark.numpy
@pytest.mark.parametrize("dtype", [
    "bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64"])
def test_data_types(load, dtype):
    worker = load(model(f"""array = np.array([[1, 0], [1, 1]], np.{dtype})
                tensor = pb_utils.Tensor("OUT", array)
                again = pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack())
                assert again.as_numpy().dtype == array.dtype
                assert (again.as_numpy() == array).all()
                return [pb_utils.InferenceResponse([again])]""", HEAD), config=CONFIG)
    assert outputs(worker.execute(request(1, [])))[0]["OUT"].shape == [2, 2]


def test_bf16(load):
    worker = load(model("""tensor = requests[0].inputs()[0]
                again = pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack())
                assert again._dtype == 14 and again.shape() == [3]
                return [pb_utils.InferenceResponse([again, tensor])]"""), config=CONFIG)
    content = bytes(range(6))
    tensors = outputs(worker.execute(request(1, [Tensor("IN", "BF16", [3], content)])))[0]
    assert tensors["OUT"].content == tensors["IN"].content == content
    assert tensors["OUT"].kind == 14


def test_empty_tensor(load):
    worker = load(model("""tensor = requests[0].inputs()[0]
                again = pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack())
                return [pb_utils.InferenceResponse([again])]"""))
    tensor = outputs(worker.execute(request(1, [fp32("IN", [], [2, 0])])))[0]["OUT"]
    assert tensor.shape == [2, 0] and tensor.content == b""


@pytest.mark.numpy
def test_an_empty_tensor_of_another_library_may_have_any_strides(load):
    """PyTorch's first value is 1 where numpy's is 0."""
    worker = load(model("""import galatea_worker.dlpack as own
                own._check_strides((2, 0), [1, 1])
                empty = np.ones((4, 0), np.float32)[::2]
                again = pb_utils.Tensor.from_dlpack("OUT", empty)
                return [pb_utils.InferenceResponse([again])]""", HEAD))
    assert outputs(worker.execute(request(1, [])))[0]["OUT"].shape == [2, 0]


@pytest.mark.numpy
@pytest.mark.parametrize("long", [False, True])
def test_a_copy_for_a_library_that_asks_for_one(load, long):
    worker = load(model("""tensor = requests[0].inputs()[0]
                copy = pb_utils.Tensor.from_dlpack("OUT", tensor.__dlpack__(copy=True))
                same = pb_utils.Tensor.from_dlpack("A", tensor.__dlpack__(
                    max_version=(1, 0), dl_device=(1, 0), copy=False))
                same.as_numpy()[0] = 7
                assert tensor.as_numpy()[0] == 7
                try:
                    tensor.__dlpack__(dl_device=(2, 0))
                except BufferError as error:
                    assert str(error) == (
                        "the tensor is on the CPU, not on the device (2, 0)")
                    return [pb_utils.InferenceResponse([copy])]""", HEAD))
    count = 8192 if long else 4
    content = struct.pack(f"<{count}f", *range(count))
    tensor = block(worker, content) if long else fp32("IN", range(count))
    assert outputs(worker.execute(request(1, [tensor])))[0]["OUT"].content == content


@pytest.mark.numpy
def test_owner_is_freed_when_nothing_uses_its_memory(load):
    worker = load(model("""from galatea_worker import dlpack
                def check(count):
                    gc.collect()
                    assert len(dlpack._exported) == count, len(dlpack._exported)
                source = pb_utils.Tensor("A", np.arange(5))
                tensor = pb_utils.Tensor.from_dlpack("B", source)
                view = tensor.as_numpy()[1:]
                del tensor, source
                check(1)
                assert view.tolist() == [1, 2, 3, 4]
                del view
                check(0)
                unused = pb_utils.Tensor("A", np.arange(5)).to_dlpack()
                check(1)
                del unused
                check(0)
                return [pb_utils.InferenceResponse()]""", HEAD))
    result = worker.execute(request(1, []))
    assert result["outcome"] == 0, result["message"]
    assert worker.finalize() == 0


@pytest.mark.numpy
@pytest.mark.parametrize("code, text", [
    ("pb_utils.Tensor.from_dlpack('', 1)", "Tensor name cannot be an empty string."),
    ("pb_utils.Tensor.from_dlpack('A', 1)",
     "Provided tensor is not supported. Tensor must be a DLPack capsule         or have "
     "`__dlpack__` and `__dlpack_device__` attributes"),
    ("pb_utils.Tensor.from_dlpack('A', np.ones((3, 4)).T)",
     "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in "
     "C-Order are supported."),
    ("pb_utils.Tensor.from_dlpack('A', np.ones(3, np.complex64))", "Dtype is invalid."),
    ("pb_utils.Tensor('A', np.array([b'x'])).to_dlpack()",
     "DLPack does not have support for string tensors."),
    ("c = np.ones(1).__dlpack__(); pb_utils.Tensor.from_dlpack('A', c); "
     "pb_utils.Tensor.from_dlpack('A', c)",
     "The DLPack capsule has been used, or it isn't one of a tensor."),
    ("device = Owner; device.__dlpack_device__ = lambda self: (10, 0); "
     "pb_utils.Tensor.from_dlpack('A', Owner(None))",
     "DLDevice type 10 is not support by Python backend."),
    ("device = Owner; device.__dlpack_device__ = lambda self: (2, 0); "
     "pb_utils.Tensor.from_dlpack('A', Owner(None))",
     "DLPack capsule passed pointer to memory allocated on GPU device,           when GPU "
     "is not available"),
])
def test_refused(load, code, text):
    worker = load(model(code, HEAD))
    assert failure(worker).startswith(f"TritonModelException: {text}\n\nAt:\n")


@pytest.mark.numpy
def test_torch(load, python):
    import subprocess
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("the workers have no torch")
    worker = load(model("""tensor = torch.from_dlpack(requests[0].inputs()[0])
                half = (tensor * 2).to(torch.bfloat16)
                out = pb_utils.Tensor.from_dlpack("OUT", half)
                assert torch.from_dlpack(out).dtype == torch.bfloat16
                return [pb_utils.InferenceResponse([out])]""", "import torch"))
    tensor = outputs(worker.execute(request(1, [fp32("IN", [1.0, -2.0])])))[0]["OUT"]
    assert tensor.kind == 14 and tensor.content == b"\x00\x40\x80\xc0"
