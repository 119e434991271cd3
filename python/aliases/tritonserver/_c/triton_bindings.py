"""The C API in Python, with the names of Triton's module.

Objects are classes, calls are their methods, and values that are read and set are their
properties. Errors are exceptions. Programs that use only the package itself are faster: responses
of this module call Python on the server's threads.
"""

from galatea.tritonserver import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)

from . import _enumerations
from ._enumerations import *  # noqa: F403
from ._inference import TRITONSERVER_InferenceRequest, TRITONSERVER_InferenceResponse
from ._options import TRITONSERVER_ServerOptions
from ._server import TRITONSERVER_Server
from ._trace import TRITONSERVER_InferenceTrace
from ._values import (
    TRITONSERVER_BufferAttributes,
    TRITONSERVER_Message,
    TRITONSERVER_Metric,
    TRITONSERVER_MetricFamily,
    TRITONSERVER_Metrics,
    TRITONSERVER_Parameter,
    TRITONSERVER_ResponseAllocator,
)

#: Enumerations whose values are names of the module too.
_EXPORTED = (
    _enumerations.TRITONSERVER_InferenceTraceLevel,
    _enumerations.TRITONSERVER_InferenceTraceActivity,
    _enumerations.TRITONSERVER_RequestFlag,
    _enumerations.TRITONSERVER_RequestReleaseFlag,
    _enumerations.TRITONSERVER_ResponseCompleteFlag,
    _enumerations.TRITONSERVER_ModelBatchFlag,
    _enumerations.TRITONSERVER_ModelIndexFlag,
    _enumerations.TRITONSERVER_ModelTxnPropertyFlag,
)
_VALUES = {name: one for kind in _EXPORTED for name, one in kind.__members__.items()}
globals().update(_VALUES)

__all__ = [
    "AlreadyExistsError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "TRITONSERVER_BufferAttributes",
    "TRITONSERVER_InferenceRequest",
    "TRITONSERVER_InferenceResponse",
    "TRITONSERVER_InferenceTrace",
    "TRITONSERVER_Message",
    "TRITONSERVER_Metric",
    "TRITONSERVER_MetricFamily",
    "TRITONSERVER_Metrics",
    "TRITONSERVER_Parameter",
    "TRITONSERVER_ResponseAllocator",
    "TRITONSERVER_Server",
    "TRITONSERVER_ServerOptions",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    *_enumerations.__all__,
    *_VALUES,
]
