"""Triton's private module for the tensors."""

from galatea import (
    DataType,
    Tensor,
)

__all__ = [
    "DataType",
    "Tensor",
]
