"""Triton's private module for the responses and their iterators."""

from galatea._response import (
    AsyncResponseIterator,
    InferenceResponse,
    ResponseIterator,
)

__all__ = [
    "AsyncResponseIterator",
    "InferenceResponse",
    "ResponseIterator",
]
