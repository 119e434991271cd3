"""Enumerations, with the names and numbers of the C interface."""

from __future__ import annotations

import enum


class DataType(enum.IntEnum):
    """The type of a tensor's elements."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


class MemoryType(enum.IntEnum):
    """The kind of a tensor's memory. Galatea supports only CPU memory."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class DLDeviceType(enum.IntEnum):
    """The kind of device that holds memory, in DLPack's terms."""

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLOpenCL = 4
    kDLVulkan = 7
    kDLMetal = 8
    kDLVPI = 9
    kDLROCM = 10
    kDLROCMHost = 11
    kDLExtDev = 12
    kDLCUDAManaged = 13
    kDLOneAPI = 14
    kDLWebGPU = 15
    kDLHexagon = 16


class InstanceGroupKind(enum.IntEnum):
    """The kind of device that an instance runs on."""

    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class LogLevel(enum.IntEnum):
    """A level of the log."""

    INFO = 0
    WARN = 1
    ERROR = 2
    VERBOSE = 3


class LogFormat(enum.IntEnum):
    """The prefix of the log's lines."""

    DEFAULT = 0
    ISO8601 = 1


class MetricFormat(enum.IntEnum):
    """The format of metrics."""

    PROMETHEUS = 0


class MetricKind(enum.IntEnum):
    """The kind of a family of metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class ModelControlMode(enum.IntEnum):
    """The mode in which models are loaded and unloaded."""

    NONE = 0
    POLL = 1
    EXPLICIT = 2


class RateLimitMode(enum.IntEnum):
    """The mode in which executions wait for resources."""

    OFF = 0
    EXEC_COUNT = 1


class ModelBatchFlag(enum.IntEnum):
    """The batching capability of a model."""

    UNKNOWN = 1
    FIRST_DIM = 2


class ModelTxnPropertyFlag(enum.IntEnum):
    """The number of responses that a model sends to a request."""

    ONE_TO_ONE = 1
    DECOUPLED = 2


class RequestFlag(enum.IntFlag):
    """Flags of a request in a sequence."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2
