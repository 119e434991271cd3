"""Module of Python models: ``import triton_python_backend_utils as pb_utils``."""

from __future__ import annotations

from typing import Any

from galatea_worker.bls import ResponseIterator  # noqa: F401
from galatea_worker.config import (  # noqa: F401
    ModelConfig, get_input_config_by_name, get_output_config_by_name,
    using_decoupled_model_transaction_policy)
from galatea_worker.control import is_model_ready, load_model, unload_model  # noqa: F401
from galatea_worker.errors import TritonModelException  # noqa: F401
from galatea_worker.helpers import (  # noqa: F401
    deserialize_bytes_tensor, get_input_tensor_by_name, get_model_dir,
    get_output_tensor_by_name, numpy_to_triton_type, serialize_byte_tensor,
    string_types, triton_string_to_numpy, triton_to_numpy_type)
from galatea_worker.logger import Logger  # noqa: F401
from galatea_worker.memory import MemoryType, PreferredMemory  # noqa: F401
from galatea_worker.metrics import Metric, MetricFamily, MetricKind  # noqa: F401
from galatea_worker.request import InferenceRequest, InferenceTrace  # noqa: F401
from galatea_worker.response import InferenceResponse, TritonError  # noqa: F401
from galatea_worker.sender import InferenceResponseSender  # noqa: F401
from galatea_worker.tensor import Tensor  # noqa: F401

TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


def __getattr__(name: str) -> Any:
    """Creates names that need numpy when they are first requested."""
    if name == "TRITON_STRING_TO_NUMPY":
        return string_types()
    if name == "np":
        from galatea_worker import arrays
        arrays.load()
        return arrays.np
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
