"""Triton's private module for the allocators of older releases."""

from galatea import (
    MemoryAllocator,
    MemoryBuffer,
    MemoryType,
    default_memory_allocators,
)

__all__ = [
    "MemoryAllocator",
    "MemoryBuffer",
    "MemoryType",
    "default_memory_allocators",
]
