"""Contents of Triton's stub under this name; models use `triton_python_backend_utils`."""

from __future__ import annotations

from galatea_worker.bls import ResponseIterator  # noqa: F401
from galatea_worker.control import is_model_ready, load_model, unload_model  # noqa: F401
from galatea_worker.errors import TritonModelException  # noqa: F401
from galatea_worker.logger import Logger, LogLevel  # noqa: F401
from galatea_worker.memory import MemoryType, PreferredMemory  # noqa: F401
from galatea_worker.metrics import Metric, MetricFamily, MetricKind  # noqa: F401
from galatea_worker.request import InferenceRequest, InferenceTrace  # noqa: F401
from galatea_worker.response import (  # noqa: F401
    ErrorCode, InferenceResponse, TritonError)
from galatea_worker.sender import InferenceResponseSender  # noqa: F401
from galatea_worker.tensor import Tensor  # noqa: F401

TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
COUNTER = MetricKind.COUNTER
GAUGE = MetricKind.GAUGE
HISTOGRAM = MetricKind.HISTOGRAM
