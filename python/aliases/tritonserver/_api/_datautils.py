"""Triton's private module for types of elements and of memory, as tables.

A missing key raises an `InvalidArgumentError`.
"""

from __future__ import annotations

from typing import Any

import numpy
from galatea import DataType, DLDeviceType, InvalidArgumentError, MemoryType
from galatea._memory import _BY_DEVICE, parse_device_or_memory_type
from galatea._tensor import _BY_NUMPY


class _Table(dict[Any, Any]):
    """A table that raises its own error for a missing key."""

    def __init__(self, source: str, target: str, entries: dict[Any, Any]) -> None:
        super().__init__(entries)
        self._source = source
        self._target = target

    def __missing__(self, key: Any) -> Any:
        raise InvalidArgumentError(
            f"Unsupported {self._source}. Can't convert {key} to {self._target}"
        )


_SERVER_DATA_TYPE = "Triton server data type"
_SERVER_MEMORY_TYPE = "Triton server memory type"

STRING_TO_TRITON_MEMORY_TYPE = _Table(
    "Memory Type String", _SERVER_MEMORY_TYPE, dict(MemoryType.__members__)
)
DLPACK_DEVICE_TYPE_TO_TRITON_MEMORY_TYPE = _Table(
    "DLPack device type", _SERVER_MEMORY_TYPE, _BY_DEVICE
)
TRITON_MEMORY_TYPE_TO_DLPACK_DEVICE_TYPE = _Table(
    _SERVER_MEMORY_TYPE,
    "DLPack device type",
    {
        MemoryType.CPU: DLDeviceType.kDLCPU,
        MemoryType.CPU_PINNED: DLDeviceType.kDLCPU,
        MemoryType.GPU: DLDeviceType.kDLCUDA,
    },
)
NUMPY_TO_TRITON_DTYPE = _Table(
    "Numpy data type", _SERVER_DATA_TYPE, {bool: DataType.BOOL, **_BY_NUMPY}
)
TRITON_TO_NUMPY_DTYPE = _Table(
    "Triton data type",
    "Numpy data type",
    {
        **{data_type: kind for kind, data_type in _BY_NUMPY.items()},
        DataType.BYTES: numpy.object_,
    },
)

__all__ = [
    "DLPACK_DEVICE_TYPE_TO_TRITON_MEMORY_TYPE",
    "NUMPY_TO_TRITON_DTYPE",
    "STRING_TO_TRITON_MEMORY_TYPE",
    "TRITON_MEMORY_TYPE_TO_DLPACK_DEVICE_TYPE",
    "TRITON_TO_NUMPY_DTYPE",
    "parse_device_or_memory_type",
]
