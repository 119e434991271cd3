"""The parameters of Triton's Python runtime."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from typing import Any, Dict, List

from galatea_worker.errors import BackendError, TritonModelException

_THREADS = ("NUM_THREADS", "NUM_INTEROP_THREADS")
_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
#: Parameters for the backend's other model formats, which Triton's script doesn't read.
_OF_OTHERS = (
    "CACHE_CLEANING_ENABLED", "DISABLE_CUDNN", "DISABLE_OPTIMIZED_EXECUTION",
    "ENABLE_CACHE_CLEANING", "ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER",
    "ENABLE_WEIGHT_SHARING", "INFERENCE_MODE", "INTER_OP_THREAD_COUNT", "INTRA_OP_THREAD_COUNT")


class Options:
    """The parameters in a model's configuration."""

    def __init__(self, config: Dict[str, Any]) -> None:
        parameters = config.get("parameters") or {}
        self._values = {key: value["string_value"] for key, value in parameters.items()}

    def set_threads(self, torch: Any) -> None:
        """Sets the thread counts, which are 1 unless configured otherwise."""
        for key in _THREADS:
            text = self._values.get(key, "1")
            try:
                getattr(torch, "set_" + key.lower())(int(text))
            except (ValueError, RuntimeError, OverflowError) as error:
                raise BackendError(
                    f"{type(error).__name__}: {error}\n\nparameter '{key}' is '{text}'") from None

    def compile_arguments(self) -> Dict[str, Any]:
        """Returns the keyword arguments of `torch.compile`."""
        text = self._values.get(_COMPILE)
        if text is None:
            return {}
        try:
            arguments = json.loads(text)
        except ValueError as error:
            raise BackendError(f"{type(error).__name__}: {error}\n\nparameter '{_COMPILE}' must be "
                               "a JSON object") from None
        if not isinstance(arguments, dict):
            raise BackendError(f"parameter '{_COMPILE}' must be a JSON object")
        if "model" in arguments:
            raise TritonModelException("'model' is not an optional parameter for 'torch.compile'")
        return arguments

    def without_effect(self, is_script: bool) -> List[str]:
        """Returns the specified parameters that have no effect."""
        others = [key for key in _OF_OTHERS if key in self._values]
        return others + [_COMPILE] if is_script and _COMPILE in self._values else others


def compiler_problem(arguments: Dict[str, Any], device: str) -> str:
    """Returns the reason why `torch.compile` can't work here, or an empty string if it can."""
    backend = arguments.get("backend", "inductor")
    if backend != "inductor" or device != "cpu" or arguments.get("disable"):
        return ""
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler '{compiler}'"
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        return f"Python's header '{header}' is missing"
    return ""
