"""Triton's private module for the memory of tensors."""

from galatea._memory import (
    DeviceOrMemoryType,
    MemoryBuffer,
    MemoryType,
)

__all__ = [
    "DeviceOrMemoryType",
    "MemoryBuffer",
    "MemoryType",
]
