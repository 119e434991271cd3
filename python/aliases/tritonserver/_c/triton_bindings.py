"""The enumerations of the C API by their names there, and the errors."""

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
from galatea.tritonserver import DataType as TRITONSERVER_DataType
from galatea.tritonserver import InstanceGroupKind as TRITONSERVER_InstanceGroupKind
from galatea.tritonserver import LogFormat as TRITONSERVER_LogFormat
from galatea.tritonserver import LogLevel as TRITONSERVER_LogLevel
from galatea.tritonserver import MemoryType as TRITONSERVER_MemoryType
from galatea.tritonserver import MetricFormat as TRITONSERVER_MetricFormat
from galatea.tritonserver import MetricKind as TRITONSERVER_MetricKind
from galatea.tritonserver import ModelBatchFlag as TRITONSERVER_ModelBatchFlag
from galatea.tritonserver import ModelControlMode as TRITONSERVER_ModelControlMode
from galatea.tritonserver import ModelTxnPropertyFlag as TRITONSERVER_ModelTxnPropertyFlag
from galatea.tritonserver import RateLimitMode as TRITONSERVER_RateLimitMode

__all__ = [
    "AlreadyExistsError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "TRITONSERVER_DataType",
    "TRITONSERVER_InstanceGroupKind",
    "TRITONSERVER_LogFormat",
    "TRITONSERVER_LogLevel",
    "TRITONSERVER_MemoryType",
    "TRITONSERVER_MetricFormat",
    "TRITONSERVER_MetricKind",
    "TRITONSERVER_ModelBatchFlag",
    "TRITONSERVER_ModelControlMode",
    "TRITONSERVER_ModelTxnPropertyFlag",
    "TRITONSERVER_RateLimitMode",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]
