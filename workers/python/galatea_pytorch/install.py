"""Imports PyTorch. If the import fails, the error says what to install."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from galatea_worker.errors import BackendError

#: The error message of Triton's script.
_MISSING = "RuntimeError: Missing/Incomplete PyTorch package installation"


def load() -> Any:
    """Imports PyTorch."""
    try:
        import torch
    except Exception as error:  # a missing library is an OSError or an ImportError
        raise _refusal(f"{type(error).__name__}: {error}") from None
    return torch


def check() -> None:
    """Raises an error if PyTorch isn't installed. Doesn't import it, which would take seconds."""
    try:
        is_found = importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        is_found = False
    if not is_found:
        raise _refusal("ModuleNotFoundError: No module named 'torch'")


def _refusal(reason: str) -> BackendError:
    python = sys.executable or "python3"
    return BackendError(
        f"{_MISSING}\n\nThe worker's interpreter can't import torch ({reason}). Install it with the "
        f"packages that it needs: {python} -m pip install torch")
