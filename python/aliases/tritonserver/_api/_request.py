"""Triton's private module for the requests."""

from galatea._request import (
    InferenceRequest,
)

__all__ = [
    "InferenceRequest",
]
