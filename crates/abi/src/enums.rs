//! The enumerations. C may pass values other than the named ones, so each enumeration is a newtype
//! around a number instead of a Rust enum.

use core::ffi::c_uint;

macro_rules! enumerations {
    ($($(#[$doc:meta])* $name:ident { $($value:ident = $number:expr,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
            pub struct $name(pub c_uint);

            $(pub const $value: $name = $name($number);)*
        )*
        /// Every enumeration and its values, for comparing and printing.
        pub const ENUMERATIONS: &[(&str, &[(&str, u32)])] =
            &[$((stringify!($name), &[$((stringify!($value), $number)),*])),*];
    };
}

enumerations! {
    /// The type of a tensor's elements.
    TRITONSERVER_DataType {
        TRITONSERVER_TYPE_INVALID = 0,
        TRITONSERVER_TYPE_BOOL = 1,
        TRITONSERVER_TYPE_UINT8 = 2,
        TRITONSERVER_TYPE_UINT16 = 3,
        TRITONSERVER_TYPE_UINT32 = 4,
        TRITONSERVER_TYPE_UINT64 = 5,
        TRITONSERVER_TYPE_INT8 = 6,
        TRITONSERVER_TYPE_INT16 = 7,
        TRITONSERVER_TYPE_INT32 = 8,
        TRITONSERVER_TYPE_INT64 = 9,
        TRITONSERVER_TYPE_FP16 = 10,
        TRITONSERVER_TYPE_FP32 = 11,
        TRITONSERVER_TYPE_FP64 = 12,
        TRITONSERVER_TYPE_BYTES = 13,
        TRITONSERVER_TYPE_BF16 = 14,
    }
    /// The type of memory that a buffer is in.
    TRITONSERVER_MemoryType {
        TRITONSERVER_MEMORY_CPU = 0,
        TRITONSERVER_MEMORY_CPU_PINNED = 1,
        TRITONSERVER_MEMORY_GPU = 2,
    }
    /// The type of a parameter's value.
    TRITONSERVER_ParameterType {
        TRITONSERVER_PARAMETER_STRING = 0,
        TRITONSERVER_PARAMETER_INT = 1,
        TRITONSERVER_PARAMETER_BOOL = 2,
        TRITONSERVER_PARAMETER_DOUBLE = 3,
        TRITONSERVER_PARAMETER_BYTES = 4,
    }
    /// The kind of an instance group. The order differs from that of the configuration's enum.
    TRITONSERVER_InstanceGroupKind {
        TRITONSERVER_INSTANCEGROUPKIND_AUTO = 0,
        TRITONSERVER_INSTANCEGROUPKIND_CPU = 1,
        TRITONSERVER_INSTANCEGROUPKIND_GPU = 2,
        TRITONSERVER_INSTANCEGROUPKIND_MODEL = 3,
    }
    /// The level of a log line.
    TRITONSERVER_LogLevel {
        TRITONSERVER_LOG_INFO = 0,
        TRITONSERVER_LOG_WARN = 1,
        TRITONSERVER_LOG_ERROR = 2,
        TRITONSERVER_LOG_VERBOSE = 3,
    }
    /// The format of log lines.
    TRITONSERVER_LogFormat {
        TRITONSERVER_LOG_DEFAULT = 0,
        TRITONSERVER_LOG_ISO8601 = 1,
    }
    /// The code of an error.
    TRITONSERVER_Error_Code {
        TRITONSERVER_ERROR_UNKNOWN = 0,
        TRITONSERVER_ERROR_INTERNAL = 1,
        TRITONSERVER_ERROR_NOT_FOUND = 2,
        TRITONSERVER_ERROR_INVALID_ARG = 3,
        TRITONSERVER_ERROR_UNAVAILABLE = 4,
        TRITONSERVER_ERROR_UNSUPPORTED = 5,
        TRITONSERVER_ERROR_ALREADY_EXISTS = 6,
        TRITONSERVER_ERROR_CANCELLED = 7,
    }
    /// The format of metrics.
    TRITONSERVER_MetricFormat {
        TRITONSERVER_METRIC_PROMETHEUS = 0,
    }
    /// The contents of a trace, as a bit mask.
    TRITONSERVER_InferenceTraceLevel {
        TRITONSERVER_TRACE_LEVEL_DISABLED = 0,
        TRITONSERVER_TRACE_LEVEL_MIN = 1,
        TRITONSERVER_TRACE_LEVEL_MAX = 2,
        TRITONSERVER_TRACE_LEVEL_TIMESTAMPS = 4,
        TRITONSERVER_TRACE_LEVEL_TENSORS = 8,
    }
    /// A trace event.
    TRITONSERVER_InferenceTraceActivity {
        TRITONSERVER_TRACE_REQUEST_START = 0,
        TRITONSERVER_TRACE_QUEUE_START = 1,
        TRITONSERVER_TRACE_COMPUTE_START = 2,
        TRITONSERVER_TRACE_COMPUTE_INPUT_END = 3,
        TRITONSERVER_TRACE_COMPUTE_OUTPUT_START = 4,
        TRITONSERVER_TRACE_COMPUTE_END = 5,
        TRITONSERVER_TRACE_REQUEST_END = 6,
        TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT = 7,
        TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT = 8,
        TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT = 9,
        TRITONSERVER_TRACE_CUSTOM_ACTIVITY = 10,
    }
    /// The start and the end of a sequence, as a bit mask.
    TRITONSERVER_RequestFlag {
        TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1,
        TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2,
    }
    /// The way in which a request is released, as a bit mask.
    TRITONSERVER_RequestReleaseFlag {
        TRITONSERVER_REQUEST_RELEASE_ALL = 1,
        TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2,
    }
    /// Response callback flags, as a bit mask.
    TRITONSERVER_ResponseCompleteFlag {
        TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1,
    }
    /// The model control mode, which determines how models are loaded and unloaded.
    TRITONSERVER_ModelControlMode {
        TRITONSERVER_MODEL_CONTROL_NONE = 0,
        TRITONSERVER_MODEL_CONTROL_POLL = 1,
        TRITONSERVER_MODEL_CONTROL_EXPLICIT = 2,
    }
    /// The rate limiter's mode.
    TRITONSERVER_RateLimitMode {
        TRITONSERVER_RATE_LIMIT_OFF = 0,
        TRITONSERVER_RATE_LIMIT_EXEC_COUNT = 1,
    }
    /// A model's support for batching, as a bit mask.
    TRITONSERVER_ModelBatchFlag {
        TRITONSERVER_BATCH_UNKNOWN = 1,
        TRITONSERVER_BATCH_FIRST_DIM = 2,
    }
    /// The contents of a repository index, as a bit mask.
    TRITONSERVER_ModelIndexFlag {
        TRITONSERVER_INDEX_FLAG_READY = 1,
    }
    /// The number of responses to a request, as a bit mask.
    TRITONSERVER_ModelTxnPropertyFlag {
        TRITONSERVER_TXN_ONE_TO_ONE = 1,
        TRITONSERVER_TXN_DECOUPLED = 2,
    }
    /// The kind of a metric.
    TRITONSERVER_MetricKind {
        TRITONSERVER_METRIC_KIND_COUNTER = 0,
        TRITONSERVER_METRIC_KIND_GAUGE = 1,
        TRITONSERVER_METRIC_KIND_HISTOGRAM = 2,
    }
    /// The kind of a backend's artifacts.
    TRITONBACKEND_ArtifactType {
        TRITONBACKEND_ARTIFACT_FILESYSTEM = 0,
    }
    /// A backend's execution policy.
    TRITONBACKEND_ExecutionPolicy {
        TRITONBACKEND_EXECUTION_BLOCKING = 0,
        TRITONBACKEND_EXECUTION_DEVICE_BLOCKING = 1,
    }
    /// The kind of a model's artifacts.
    TRITONREPOAGENT_ArtifactType {
        TRITONREPOAGENT_ARTIFACT_FILESYSTEM = 0,
        TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM = 1,
    }
    /// An action of which a repository agent is notified.
    TRITONREPOAGENT_ActionType {
        TRITONREPOAGENT_ACTION_LOAD = 0,
        TRITONREPOAGENT_ACTION_LOAD_COMPLETE = 1,
        TRITONREPOAGENT_ACTION_LOAD_FAIL = 2,
        TRITONREPOAGENT_ACTION_UNLOAD = 3,
        TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE = 4,
    }
}
