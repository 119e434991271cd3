"""Tests of tensors, and of exchanging their memory with other libraries."""

from __future__ import annotations

import array
import asyncio
import gc
import sys

import galatea
import numpy
import pytest
from galatea import DataType, DLDeviceType, MemoryType


@pytest.fixture(autouse=True)
def no_tensor_stays() -> None:
    """Every tensor of a test is freed at the end of the test."""
    yield
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, galatea.Tensor)]
    assert not galatea._dlpack._exported


# row: DEP-05
def test_a_tensor_refers_to_an_arrays_memory() -> None:
    owner = numpy.ones((2, 3))
    assert sys.getrefcount(owner) - 1 == 1
    tensor = galatea.Tensor.from_dlpack(owner)
    assert sys.getrefcount(owner) - 1 == 2
    assert sys.getrefcount(tensor) - 1 == 1
    assert (tensor.data_ptr, tensor.size) == (owner.ctypes.data, 48)
    assert (tensor.memory_type, tensor.memory_type_id) == (MemoryType.CPU, 0)
    assert tensor.__dlpack_device__() == (DLDeviceType.kDLCPU, 0)
    address = owner.ctypes.data
    del owner
    first = numpy.from_dlpack(tensor)
    assert first.ctypes.data == address
    assert sys.getrefcount(tensor) - 1 == 2
    # The shape of an array that has been created stays the same.
    tensor.shape = [6]
    assert first.shape == (2, 3)
    second = numpy.from_dlpack(tensor)
    assert second.shape == (6,)
    del tensor, first
    assert second.sum() == 6
    del second


def test_many_tensors_leave_no_memory() -> None:
    async def one() -> None:
        owner = numpy.ones(1 << 20)
        result = numpy.from_dlpack(galatea.Tensor.from_dlpack(owner))
        await asyncio.sleep(0)
        assert result[-1] == 1

    async def crowd() -> None:
        await asyncio.gather(*(one() for _ in range(50)))

    asyncio.run(crowd())
    # Unused capsules free their tensors too.
    for _ in range(50):
        galatea.Tensor.from_dlpack(numpy.ones(1 << 20)).__dlpack__()


@pytest.mark.parametrize(
    "kind, data_type",
    [
        ("bool", DataType.BOOL), ("int8", DataType.INT8), ("int16", DataType.INT16),
        ("int32", DataType.INT32), ("int64", DataType.INT64), ("uint8", DataType.UINT8),
        ("uint16", DataType.UINT16), ("uint32", DataType.UINT32), ("uint64", DataType.UINT64),
        ("float16", DataType.FP16), ("float32", DataType.FP32), ("float64", DataType.FP64),
    ],
)
def test_types(kind: str, data_type: DataType) -> None:
    given = numpy.array([[0, 1, 1]], kind)
    for tensor in (galatea.Tensor.from_dlpack(given), galatea.Tensor._from_object(given)):
        assert tensor.data_type == data_type
        assert list(tensor.shape) == [1, 3]
        numpy.testing.assert_array_equal(numpy.from_dlpack(tensor), given)
    scalar = galatea.Tensor._from_object(given[0, 1])
    assert (scalar.data_type, list(scalar.shape)) == (data_type, [])


class Foreign:
    """An object that supports DLPack, and whose memory is owned only by its capsule."""

    def __init__(self, source: numpy.ndarray, device: int = 1) -> None:
        self.source = source
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self) -> object:
        return self.source.copy().__dlpack__()


def test_memory_of_other_libraries() -> None:
    tensor = galatea.Tensor.from_dlpack(Foreign(numpy.arange(1000.0)))
    gc.collect()
    assert numpy.from_dlpack(tensor)[999] == 999
    buffer = galatea.MemoryBuffer.from_dlpack(Foreign(numpy.arange(10, dtype=numpy.uint8)))
    assert (buffer.size, buffer.memory_type) == (10, MemoryType.CPU)
    for wrong, text in (
        (Foreign(numpy.ones(1), device=2), "device 2"),
        (object(), "Object does not support DLPack protocol"),
        (numpy.ones((2, 2)).T, None),
        (numpy.ones((4, 4))[:, 1:], "contiguous"),
        (numpy.array([1j]), "Can't convert"),
    ):
        with pytest.raises(galatea.InvalidArgumentError, match=text):
            galatea.Tensor.from_dlpack(wrong) if text else galatea.Tensor.from_dlpack(
                numpy.arange(6).reshape(2, 3).T)
    with pytest.raises(galatea.InvalidArgumentError, match="DLpack"):
        galatea.MemoryBuffer.from_dlpack(array.array("b", [1]))


def test_bfloat16_passes_through() -> None:
    """Numpy has no such type, but other libraries do."""
    words = numpy.array([0x3F80, 0x4000], numpy.uint16)
    memory = galatea.MemoryBuffer.from_dlpack(words)
    tensor = galatea.Tensor(DataType.BF16, [2], memory)
    again = galatea.Tensor.from_dlpack(tensor)
    assert (again.data_type, list(again.shape), again.size) == (DataType.BF16, [2], 4)
    assert again.data_ptr == words.ctypes.data


def test_the_newer_protocol() -> None:
    tensor = galatea.Tensor.from_dlpack(numpy.arange(3))
    copy = numpy.from_dlpack(tensor, copy=True) if numpy.__version__ >= "2.1" else None
    assert copy is None or copy.ctypes.data != tensor.data_ptr and copy[2] == 2
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(galatea.UnsupportedError, match="stream 7"):
        tensor.__dlpack__(stream=7)
    assert numpy.asarray(tensor, numpy.float32).dtype == numpy.float32


def test_strings() -> None:
    tensor = galatea.Tensor.from_string_array([["a", "bc"], ["", "grüße"]])
    assert (tensor.data_type, list(tensor.shape)) == (DataType.BYTES, [2, 2])
    assert tensor.to_string_array().tolist() == [["a", "bc"], ["", "grüße"]]
    assert tensor.to_bytes_array()[1, 1] == "grüße".encode()
    with pytest.raises(galatea.InvalidArgumentError, match="FP64"):
        galatea.Tensor.from_bytes_array(numpy.ones(1))
    with pytest.raises(galatea.InvalidArgumentError, match="not BYTES"):
        galatea.Tensor.from_dlpack(numpy.ones(1)).to_bytes_array()
    with pytest.raises(galatea.InvalidArgumentError, match="DLPack"):
        numpy.from_dlpack(tensor)


def test_places() -> None:
    tensor = galatea.Tensor.from_dlpack(numpy.ones(1))
    for place in ("cpu", "CPU:0", MemoryType.CPU, (MemoryType.CPU, 0), (DLDeviceType.kDLCPU, 0)):
        assert tensor.to_device(place) is tensor
    assert tensor.to_host() is tensor
    for place in ("gpu", "gpu:1", "cpu:1", MemoryType.GPU, (DLDeviceType.kDLCUDA, 0)):
        with pytest.raises(galatea.UnsupportedError, match="not supported"):
            tensor.to_device(place)
    for place in ("moon", "cpu:0:0", "cpu:x", (DLDeviceType.kDLMetal, 0), (1, 2, 3), None, 5):
        with pytest.raises(galatea.InvalidArgumentError):
            tensor.to_device(place)
