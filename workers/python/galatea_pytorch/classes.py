"""Finds the model class in a Python file."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any, List

from galatea_worker.errors import TritonModelException


def import_file(model: str, path: str) -> Any:
    """Imports a model file under a unique module name."""
    name = "galatea_model_" + re.sub(r"\W", "_", model)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # PyTorch's compiler looks for the module there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def candidates(torch: Any, module: Any) -> List[type]:
    """Returns the candidate model classes. The first one is served.

    As in Triton, the classes are in alphabetical order and include imported ones. The layers
    of PyTorch itself are candidates only if there are no other classes.
    """
    found: List[type] = []
    for name in dir(module):
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, torch.nn.Module) \
                and value is not torch.nn.Module and value not in found:
            found.append(value)
    own = [one for one in found if not one.__module__.startswith("torch.nn.")]
    if not found:
        raise TritonModelException("Cannot find a subclass of torch.nn.Module")
    return own or found
