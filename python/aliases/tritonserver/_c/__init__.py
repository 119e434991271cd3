"""Triton's private module: the C API in Python."""

from .triton_bindings import *  # noqa: F403
from .triton_bindings import __all__ as __all__
