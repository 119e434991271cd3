"""A model inference server in the program's own process.

    import galatea

    with galatea.Server(model_repository="models") as server:
        for response in server.model("add").infer(inputs={"A": a, "B": b}):
            print(numpy.from_dlpack(response.outputs["SUM"]))

Names and behavior are those of Triton's packages `tritonserver` and `tritonfrontend`, which are
also here: ``from galatea import tritonserver, tritonfrontend``.
"""

from __future__ import annotations

import ctypes as _ctypes
import os as _os
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from . import _galatea
from ._enums import (
    DataType,
    DLDeviceType,
    InstanceGroupKind,
    LogFormat,
    LogLevel,
    MemoryType,
    MetricFormat,
    MetricKind,
    ModelBatchFlag,
    ModelControlMode,
    ModelTxnPropertyFlag,
    RateLimitMode,
    RequestFlag,
)
from ._errors import (
    ERRORS as _ERRORS,
)
from ._errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from ._frontend import KServeGrpc, KServeHttp, Metrics
from ._logging import LogMessage
from ._memory import MemoryAllocator, MemoryBuffer, default_memory_allocators
from ._metrics import Metric, MetricFamily
from ._model import Model
from ._options import ModelLoadDeviceLimit, Options, RateLimiterResource
from ._request import InferenceRequest
from ._response import AsyncResponseIterator, InferenceResponse, ResponseIterator
from ._server import ModelDictionary, Server
from ._tensor import Tensor

__all__ = [
    "AlreadyExistsError",
    "AsyncResponseIterator",
    "CancelledError",
    "DLDeviceType",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "KServeGrpc",
    "KServeHttp",
    "LogFormat",
    "LogLevel",
    "LogMessage",
    "MemoryAllocator",
    "MemoryBuffer",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "Metrics",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "RequestFlag",
    "ResponseIterator",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    "default_memory_allocators",
]

try:
    __version__ = _version("galatea")
except _PackageNotFoundError:
    __version__ = "UNKNOWN"

# Compiled backends call functions of the server, which their loader must find.
_ctypes.CDLL(_galatea.__file__, mode=_os.RTLD_NOW | _os.RTLD_GLOBAL | _os.RTLD_NOLOAD)

for _error in _ERRORS:
    _error.__module__ = __name__
