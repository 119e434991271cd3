"""The memory of tensors."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy

from ._dlpack import Memory, memory_of
from ._enums import DLDeviceType, MemoryType
from ._errors import InternalError, InvalidArgumentError

#: A place for memory: ``"cpu"``, ``MemoryType.CPU``, ``(MemoryType.CPU, 0)``, or the same with a
#: :class:`DLDeviceType`.
DeviceOrMemoryType = Union["tuple[MemoryType, int]", MemoryType, "tuple[DLDeviceType, int]", str]

_BY_DEVICE = {DLDeviceType.kDLCPU: MemoryType.CPU, DLDeviceType.kDLCUDA: MemoryType.GPU}


@dataclass
class MemoryBuffer:
    """Memory of a tensor: an address, and the object that keeps it allocated."""

    data_ptr: int
    memory_type: MemoryType
    memory_type_id: int
    size: int
    owner: Any

    @staticmethod
    def from_dlpack(owner: Any) -> MemoryBuffer:
        """The memory of an object that supports DLPack."""
        if not hasattr(owner, "__dlpack__"):
            raise InvalidArgumentError("Object does not support DLpack protocol")
        return MemoryBuffer._of(owner, memory_of(owner))

    @staticmethod
    def _of(owner: Any, memory: Memory) -> MemoryBuffer:
        # The capsule may own a copy that `owner` made for it. numpy arrays never do.
        if type(owner).__module__ != "numpy":
            owner = (owner, memory.capsule)
        return MemoryBuffer(memory.address, MemoryType.CPU, 0, memory.byte_size, owner)


class MemoryAllocator(ABC):
    """Allocates memory for the outputs of responses in the program."""

    @abstractmethod
    def allocate(self, size: int, memory_type: MemoryType, memory_type_id: int) -> MemoryBuffer:
        """Returns memory of at least `size` bytes, possibly of another type than requested."""


class _CPUAllocator(MemoryAllocator):
    def allocate(self, size: int, memory_type: MemoryType, memory_type_id: int) -> MemoryBuffer:
        return MemoryBuffer.from_dlpack(numpy.empty(size, numpy.byte))


_CPU_ALLOCATOR = _CPUAllocator()

#: The allocators for requests that name none. While the CPU's own allocator comes first, outputs
#: stay in the server's memory, without a copy.
default_memory_allocators: dict[MemoryType, MemoryAllocator] = {MemoryType.CPU: _CPU_ALLOCATOR}


def place_output(
    output: MemoryBuffer, chosen: Optional[MemoryAllocator], wanted: tuple[MemoryType, int]
) -> MemoryBuffer:
    """The output in memory of the request's allocator, or else of the default one."""
    allocator = chosen or default_memory_allocators.get(MemoryType.CPU, _CPU_ALLOCATOR)
    if allocator is _CPU_ALLOCATOR:
        return output
    try:
        place = allocator.allocate(output.size, *wanted)
    except Exception as error:
        raise InternalError(f"the memory allocator failed: {error}") from error
    if place.memory_type == MemoryType.GPU or place.size < output.size:
        raise InternalError(
            f"the memory allocator returned {place.size} bytes of {place.memory_type.name}, and "
            f"{output.size} of CPU are needed"
        )
    ctypes.memmove(place.data_ptr, output.data_ptr, output.size)
    return MemoryBuffer(
        place.data_ptr, place.memory_type, place.memory_type_id, output.size, place.owner
    )


def parse_device_or_memory_type(place: Any) -> tuple[MemoryType, int]:
    """The memory's type and number."""
    if isinstance(place, str):
        name, *numbers = place.split(":")
        if len(numbers) > 1 or not all(text.isdecimal() for text in numbers):
            raise InvalidArgumentError(f"Invalid memory type string {place}")
        if name.upper() not in MemoryType.__members__:
            raise InvalidArgumentError(
                f"Unsupported Memory Type String. Can't convert {name.upper()} to Triton server "
                "memory type"
            )
        return MemoryType[name.upper()], int(numbers[0]) if numbers else 0
    kind, number = place if isinstance(place, tuple) and len(place) == 2 else (place, 0)
    if isinstance(kind, DLDeviceType):
        if kind not in _BY_DEVICE:
            raise InvalidArgumentError(
                f"Unsupported DLPack device type. Can't convert {kind} to Triton server memory "
                "type"
            )
        kind = _BY_DEVICE[kind]
    if not isinstance(kind, MemoryType) or not isinstance(number, int):
        raise InvalidArgumentError(f"Invalid memory type {place}")
    return kind, number
