"""`PreferredMemory`: the memory in which a model wants the responses of called models."""

from __future__ import annotations

from struct import Struct
from typing import Optional

from .enums import NamedEnum, enumeration
from .native import INT64, Parameter, instance, native

_pack_gpu = Struct("<Bq").pack


@enumeration
class MemoryType(NamedEnum):
    """Kinds of memory that a model may prefer for responses of called models."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()
    _names = ("TRITONSERVER_MEMORY_GPU", "TRITONSERVER_MEMORY_CPU")


class PreferredMemory:
    """Memory in which the responses of a called model should be placed."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_kind", "_device")

    @native("__init__(self: c_python_backend_utils.PreferredMemory, preferred_memory_type: "
            "triton::backend::python::PreferredMemory::MemoryType, preferred_device_id: int = "
            "0) -> None",
            Parameter("preferred_memory_type", instance(MemoryType)),
            Parameter("preferred_device_id", INT64, 0), owner=lambda: PreferredMemory)
    def __init__(self, preferred_memory_type: MemoryType,
                 preferred_device_id: int = 0) -> None:
        self._kind = preferred_memory_type
        self._device = preferred_device_id


def encode_memory(memory: Optional[PreferredMemory]) -> bytes:
    """Encodes preferred memory for the server."""
    if memory is None:
        return b"\0"
    on_gpu = memory._kind == MemoryType.TRITONSERVER_MEMORY_GPU
    return _pack_gpu(2, memory._device) if on_gpu else b"\1"
