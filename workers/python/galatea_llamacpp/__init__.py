"""The built-in script of the `llamacpp` backend, which generates text with llama.cpp in a worker.

The server sends this package only to workers that need it.
"""

from __future__ import annotations

from typing import Any


def model_class(job: Any) -> Any:
    """Returns the class of the models. The backend has no jobs."""
    del job
    from . import model
    return model.GgufModel
