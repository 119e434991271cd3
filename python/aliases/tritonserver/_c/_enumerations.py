"""The enumerations of the C API by their names there, and their names as texts."""

from __future__ import annotations

import ctypes
import enum
from typing import Any

from galatea import DataType as TRITONSERVER_DataType
from galatea import InstanceGroupKind as TRITONSERVER_InstanceGroupKind
from galatea import LogFormat as TRITONSERVER_LogFormat
from galatea import LogLevel as TRITONSERVER_LogLevel
from galatea import MemoryType as TRITONSERVER_MemoryType
from galatea import MetricFormat as TRITONSERVER_MetricFormat
from galatea import MetricKind as TRITONSERVER_MetricKind
from galatea import ModelBatchFlag as TRITONSERVER_ModelBatchFlag
from galatea import ModelControlMode as TRITONSERVER_ModelControlMode
from galatea import ModelTxnPropertyFlag as TRITONSERVER_ModelTxnPropertyFlag
from galatea import RateLimitMode as TRITONSERVER_RateLimitMode
from galatea import RequestFlag as TRITONSERVER_RequestFlag

from ._calls import INT, TEXT, Argument, check, function, one_of


class TRITONSERVER_ParameterType(enum.IntEnum):
    """The type of a parameter's value."""

    STRING = 0
    INT = 1
    BOOL = 2
    DOUBLE = 3
    BYTES = 4


class TRITONSERVER_InferenceTraceLevel(enum.IntEnum):
    """The contents of a trace; bits."""

    DISABLED = 0
    MIN = 1
    MAX = 2
    TIMESTAMPS = 4
    TENSORS = 8


class TRITONSERVER_InferenceTraceActivity(enum.IntEnum):
    """The event of a trace."""

    REQUEST_START = 0
    QUEUE_START = 1
    COMPUTE_START = 2
    COMPUTE_INPUT_END = 3
    COMPUTE_OUTPUT_START = 4
    COMPUTE_END = 5
    REQUEST_END = 6
    TENSOR_QUEUE_INPUT = 7
    TENSOR_BACKEND_INPUT = 8
    TENSOR_BACKEND_OUTPUT = 9
    CUSTOM_ACTIVITY = 10


class TRITONSERVER_RequestReleaseFlag(enum.IntFlag):
    """The kind of a request's release; bits."""

    ALL = 1


class TRITONSERVER_ResponseCompleteFlag(enum.IntFlag):
    """The flags of a response; bits."""

    FINAL = 1


class TRITONSERVER_ModelIndexFlag(enum.IntFlag):
    """The contents of an index; bits."""

    READY = 1


def _name(function_name: str, kind: type[enum.IntEnum]) -> Any:
    """The function that gives a value its name."""
    call, argument = function(function_name, ctypes.c_char_p), one_of(kind)
    return lambda value: call(argument.convert(value)).decode()


TRITONSERVER_DataTypeString = _name("DataTypeString", TRITONSERVER_DataType)
TRITONSERVER_MemoryTypeString = _name("MemoryTypeString", TRITONSERVER_MemoryType)
TRITONSERVER_ParameterTypeString = _name("ParameterTypeString", TRITONSERVER_ParameterType)
TRITONSERVER_InstanceGroupKindString = _name(
    "InstanceGroupKindString", TRITONSERVER_InstanceGroupKind
)
TRITONSERVER_InferenceTraceLevelString = _name(
    "InferenceTraceLevelString", TRITONSERVER_InferenceTraceLevel
)
TRITONSERVER_InferenceTraceActivityString = _name(
    "InferenceTraceActivityString", TRITONSERVER_InferenceTraceActivity
)

_string_to_data_type = function("StringToDataType", ctypes.c_int)
_data_type_byte_size = function("DataTypeByteSize", ctypes.c_uint32)
_log_is_enabled = function("LogIsEnabled", ctypes.c_bool)
_log_message = function("LogMessage")
_api_version = function("ApiVersion")
_DATA_TYPE: Argument = one_of(TRITONSERVER_DataType)
_LOG_LEVEL: Argument = one_of(TRITONSERVER_LogLevel)


def TRITONSERVER_StringToDataType(name: str) -> TRITONSERVER_DataType:
    """The type with a name; INVALID if there is none."""
    return TRITONSERVER_DataType(_string_to_data_type(TEXT.convert(name)))


def TRITONSERVER_DataTypeByteSize(data_type: TRITONSERVER_DataType) -> int:
    """The size of an element in bytes; 0 if elements vary."""
    size: int = _data_type_byte_size(_DATA_TYPE.convert(data_type))
    return size


def TRITONSERVER_LogIsEnabled(level: TRITONSERVER_LogLevel) -> bool:
    """True if lines of a level are written."""
    enabled: bool = _log_is_enabled(_LOG_LEVEL.convert(level))
    return enabled


def TRITONSERVER_LogMessage(
    level: TRITONSERVER_LogLevel, filename: str, line: int, message: str
) -> None:
    """Writes a line to the log, with a source location in the program."""
    arguments = _LOG_LEVEL.convert(level), TEXT.convert(filename), INT.convert(line)
    check(_log_message(*arguments, TEXT.convert(message)))


def api_version() -> tuple[int, int]:
    """The version of the C API."""
    major, minor = ctypes.c_uint32(), ctypes.c_uint32()
    check(_api_version(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


__all__ = [name for name in dir() if name.startswith("TRITONSERVER_")] + ["api_version"]
