"""The built-in script of the `pytorch` backend, which executes models with PyTorch in a worker.

The server sends this package only to workers that need it.
"""

from __future__ import annotations

from typing import Any


def model_class(job: Any) -> Any:
    """Returns the class, or a factory function, that creates the model for a job.

    Without a job, the model uses Triton's Python runtime (`runtime: "model.py"`).
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
    """Describes a job's TorchScript model without executing it."""
    from . import script
    return script.describe(job)
