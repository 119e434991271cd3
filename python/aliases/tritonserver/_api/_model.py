"""Triton's private module for the models."""

from galatea import (
    Model,
    ModelBatchFlag,
    ModelTxnPropertyFlag,
)

__all__ = [
    "Model",
    "ModelBatchFlag",
    "ModelTxnPropertyFlag",
]
