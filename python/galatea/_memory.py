"""The memory of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from ._dlpack import Memory, memory_of
from ._enums import DLDeviceType, MemoryType
from ._errors import InvalidArgumentError

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
        # The capsule may own a copy that `owner` made for it. Arrays of numpy never do.
        if type(owner).__module__ != "numpy":
            owner = (owner, memory.capsule)
        return MemoryBuffer(memory.address, MemoryType.CPU, 0, memory.byte_size, owner)


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
