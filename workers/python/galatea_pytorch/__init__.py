"""The supplied script of the backend `pytorch`: executes models with PyTorch in a worker.

The server sends this package only to workers that need it.
"""

from __future__ import annotations

from typing import Any


def model_class(job: Any) -> Any:
    """Returns the class, or a function in its place, that makes the model of a job.

    Without a job, the model is one of Triton's Python runtime (`runtime: "model.py"`).
    """
    import functools
    if job is None:
        from . import runtime
        return runtime.NetworkModel
    if job["form"] == "script":
        from . import script
        return functools.partial(script.ScriptModel, job)
    from . import package
    return functools.partial(package.PackageModel, job)


def describe(job: Any) -> Any:
    """Describes the model of a job, which is one of TorchScript, without executing it."""
    from . import script
    return script.describe(job)
