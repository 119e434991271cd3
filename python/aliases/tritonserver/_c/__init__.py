"""The errors and enumerations that programs take out of Triton's private module."""

from .triton_bindings import *  # noqa: F403
from .triton_bindings import __all__ as __all__
