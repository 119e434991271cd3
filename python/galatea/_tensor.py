"""Tensors from numpy, from everything that supports DLPack, and of strings."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy

from . import _dlpack
from ._enums import DataType, DLDeviceType, MemoryType
from ._errors import InvalidArgumentError, UnsupportedError
from ._memory import DeviceOrMemoryType, MemoryBuffer, parse_device_or_memory_type

_BY_NUMPY: dict[type, DataType] = {
    numpy.bool_: DataType.BOOL,
    numpy.int8: DataType.INT8,
    numpy.int16: DataType.INT16,
    numpy.int32: DataType.INT32,
    numpy.int64: DataType.INT64,
    numpy.uint8: DataType.UINT8,
    numpy.uint16: DataType.UINT16,
    numpy.uint32: DataType.UINT32,
    numpy.uint64: DataType.UINT64,
    numpy.float16: DataType.FP16,
    numpy.float32: DataType.FP32,
    numpy.float64: DataType.FP64,
    numpy.bytes_: DataType.BYTES,
    numpy.str_: DataType.BYTES,
    numpy.object_: DataType.BYTES,
}
_LENGTH = struct.Struct("<I")


@dataclass
class Tensor:
    """Type, shape and memory of a tensor.

    Other libraries access it without a copy: ``numpy.from_dlpack(tensor)``,
    ``torch.from_dlpack(tensor)``. Strings are read with :meth:`to_bytes_array` and
    :meth:`to_string_array`.
    """

    data_type: DataType
    shape: Sequence[int]
    memory_buffer: MemoryBuffer

    @property
    def data_ptr(self) -> int:
        """The address of the elements."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        """The kind of memory that holds the elements."""
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """The number of the memory of that kind."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.memory_buffer.size

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A capsule over the tensor's memory, or over a copy of it."""
        if stream not in (None, 0):
            raise UnsupportedError(
                f"DLPack stream synchronization on memory type {self.memory_type} and stream "
                f"{stream} not supported"
            )
        if dl_device is not None and tuple(dl_device) != (DLDeviceType.kDLCPU, 0):
            raise BufferError(f"a tensor in the CPU's memory can't go to device {dl_device}")
        if copy:
            memory = numpy.array(_bytes_of(self))
            return _dlpack.export(memory, memory.ctypes.data, self.data_type, self.shape)
        return _dlpack.export(self, self.data_ptr, self.data_type, self.shape)

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        """The device of the tensor's memory."""
        return DLDeviceType.kDLCPU, 0

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> numpy.ndarray[Any, Any]:
        """The tensor as a numpy array; an array of bytes if it holds strings."""
        is_text = self.data_type == DataType.BYTES
        array = self.to_bytes_array() if is_text else numpy.from_dlpack(self)
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def to_bytes_array(self) -> numpy.ndarray[Any, Any]:
        """The elements of a tensor of strings, each as bytes."""
        if self.data_type != DataType.BYTES:
            raise InvalidArgumentError(
                f"Tensor has data type {self.data_type.name} not {DataType.BYTES.name}"
            )
        content = _bytes_of(self).tobytes()
        elements = numpy.empty(_count(self.shape), dtype=numpy.object_)
        offset = 0
        for index in range(elements.size):
            (length,) = _LENGTH.unpack_from(content, offset)
            offset += _LENGTH.size
            elements[index] = content[offset : offset + length]
            offset += length
        return elements.reshape(tuple(self.shape))

    def to_string_array(self) -> numpy.ndarray[Any, Any]:
        """The elements of a tensor of strings, which must be UTF-8."""
        elements = self.to_bytes_array()
        texts = [element.decode() for element in elements.flat]
        return numpy.array(texts, dtype=numpy.str_).reshape(elements.shape)

    @staticmethod
    def from_string_array(
        string_array: Union[list[Any], numpy.ndarray[Any, Any]],
    ) -> Tensor:
        """A tensor of strings, from a list or an array."""
        return Tensor.from_bytes_array(string_array)

    @staticmethod
    def from_bytes_array(bytes_array: Union[list[Any], numpy.ndarray[Any, Any]]) -> Tensor:
        """Creates a tensor of strings from a list or an array of strings or bytes."""
        result = Tensor._from_object(bytes_array)
        if result.data_type != DataType.BYTES:
            raise InvalidArgumentError(
                f"Unsupported conversion from {bytes_array} to Triton BYTES Tensor. Got "
                f"{result.data_type.name}"
            )
        return result

    @staticmethod
    def from_dlpack(obj: Any) -> Tensor:
        """Creates a tensor over the memory of an object that supports DLPack."""
        memory = _dlpack.memory_of(obj)
        return Tensor(memory.data_type, memory.shape, MemoryBuffer._of(obj, memory))

    def to_host(self) -> Tensor:
        """The tensor in CPU memory, where it already is."""
        return self.to_device("cpu")

    def to_device(self, device: DeviceOrMemoryType) -> Tensor:
        """The tensor in the given memory. Only CPU memory is supported."""
        place = parse_device_or_memory_type(device)
        here = (self.memory_type, self.memory_type_id)
        if place == here or (here[0], place[0]) == (MemoryType.CPU_PINNED, MemoryType.CPU):
            return self
        raise UnsupportedError(f"Conversion from {here} to {place} not supported.")

    @staticmethod
    def _from_object(obj: Any) -> Tensor:
        """Creates a tensor from a list, a numpy array, or an object that supports DLPack."""
        if isinstance(obj, list):
            try:
                return _from_numpy(numpy.array(obj))
            except Exception as error:
                raise InvalidArgumentError(
                    f"Conversion from {obj} to tensor not supported."
                ) from error
        if isinstance(obj, (numpy.ndarray, numpy.generic)):
            return _from_numpy(numpy.asarray(obj))
        if hasattr(obj, "__dlpack__"):
            return Tensor.from_dlpack(obj)
        raise InvalidArgumentError(
            f"Input type {type(obj)} not supported. Must be a list, an array of numpy, or the "
            "type must support __dlpack__"
        )


def _from_numpy(array: numpy.ndarray[Any, Any]) -> Tensor:
    data_type = _BY_NUMPY.get(array.dtype.type)
    if data_type is None:
        raise InvalidArgumentError(
            f"Unsupported Numpy data type. Can't convert {array.dtype.type} to Triton server "
            "data type"
        )
    shape = list(array.shape)
    if data_type == DataType.BYTES:
        array = _serialized(array)
    # Memory is read as it is: without gaps, in native byte order.
    array = numpy.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    memory = MemoryBuffer(array.ctypes.data, MemoryType.CPU, 0, array.nbytes, array)
    return Tensor(data_type, shape, memory)


def _serialized(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Serializes strings as the server expects them: each after its length."""
    parts = []
    for element in array.flat:
        content = element if isinstance(element, bytes) else str(element).encode()
        parts.append(_LENGTH.pack(len(content)))
        parts.append(content)
    return numpy.frombuffer(b"".join(parts), dtype=numpy.uint8)


def _bytes_of(tensor: Tensor) -> numpy.ndarray[Any, Any]:
    """A tensor's memory as an array of bytes."""
    whole = Tensor(DataType.UINT8, [tensor.size], tensor.memory_buffer)
    return numpy.from_dlpack(whole)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for dim in shape:
        count *= int(dim)
    return count
