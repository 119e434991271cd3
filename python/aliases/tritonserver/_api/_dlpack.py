"""Triton's private module for the devices of DLPack."""

from galatea import (
    DLDeviceType,
)

__all__ = [
    "DLDeviceType",
]
