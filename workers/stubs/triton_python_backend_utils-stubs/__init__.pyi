"""Types of ``triton_python_backend_utils``, the module that models in Python import.

The module itself is there only where a model is served.
"""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Literal, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray

_Properties: TypeAlias = dict[str, Any]
_Parameters: TypeAlias = Mapping[str, str | int | bool]
#: None where there is no such thing: a model that asks for an input of its own
#: configuration need not check that.
_OrNone: TypeAlias = Any

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: int
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: int
TRITONSERVER_RESPONSE_COMPLETE_FINAL: int
TRITONSERVER_REQUEST_RELEASE_ALL: int
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: int
TRITONSERVER_MEMORY_GPU: MemoryType
TRITONSERVER_MEMORY_CPU: MemoryType
#: Types of numpy by the names of configurations, such as ``TYPE_FP32``.
TRITON_STRING_TO_NUMPY: dict[str, type[Any]]

class TritonModelException(Exception):
    """Raised by this module when a model misuses it."""

class Tensor:
    """A named tensor of a request or a response.

    ``Tensor(name, array)`` makes one from a numpy array, without a copy.
    """

    def __init__(self, name: str, array: NDArray[Any], /) -> None: ...
    def name(self) -> str:
        """Name of the tensor."""
    def shape(self) -> list[int]:
        """Length of each dimension."""
    def is_cpu(self) -> bool:
        """Whether the tensor is in memory of the CPU."""
    def as_numpy(self) -> NDArray[Any]:
        """The tensor as a numpy array, without a copy.

        BYTES tensors are arrays of ``bytes`` objects. Raises TritonModelException
        for BF16, which numpy doesn't have.
        """
    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Makes a tensor of a DLPack capsule or of an object with ``__dlpack__``."""
    def to_dlpack(self) -> Any:
        """The tensor as a DLPack capsule, without a copy."""
    def __dlpack__(
        self,
        stream: Any = None,
        *,
        max_version: Any = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The tensor as a DLPack capsule, for ``from_dlpack`` of other libraries."""
    def __dlpack_device__(self) -> tuple[int, int]:
        """Device of the tensor as DLPack numbers it."""

class _ErrorCode(IntEnum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

class TritonError:
    """An error that a response carries instead of tensors."""

    UNKNOWN: ClassVar[_ErrorCode]
    INTERNAL: ClassVar[_ErrorCode]
    NOT_FOUND: ClassVar[_ErrorCode]
    INVALID_ARG: ClassVar[_ErrorCode]
    UNAVAILABLE: ClassVar[_ErrorCode]
    UNSUPPORTED: ClassVar[_ErrorCode]
    ALREADY_EXISTS: ClassVar[_ErrorCode]
    CANCELLED: ClassVar[_ErrorCode]

    def __init__(self, message: str, code: _ErrorCode = ...) -> None: ...
    def message(self) -> str:
        """Text of the error."""
    def code(self) -> _ErrorCode:
        """Code of the error."""

class InferenceResponse:
    """Answer to a request: output tensors, or an error."""

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: _Parameters | None = None,
    ) -> None: ...
    def output_tensors(self) -> list[Tensor]:
        """Output tensors of the response."""
    def has_error(self) -> bool:
        """Whether the response carries an error."""
    def error(self) -> TritonError | _OrNone:
        """Error of the response, or None."""
    def parameters(self) -> str:
        """Parameters of the response as a JSON object."""

class InferenceResponseSender:
    """Sends responses to one request, from any thread."""

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Sends a response, or none with the final flag.

        ``flags`` is 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL.
        """
    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request."""

class MemoryType(IntEnum):
    """Kinds of memory that a model may prefer for responses of called models."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1

class PreferredMemory:
    """Where the responses of a called model should lie."""

    def __init__(
        self, preferred_memory_type: MemoryType, preferred_device_id: int = 0
    ) -> None: ...

class InferenceTrace:
    """Trace of a request; a called model's trace becomes its child."""

    def get_context(self) -> str | None:
        """Context of OpenTelemetry as JSON, or None."""

class InferenceRequest:
    """A request with its inputs.

    The server gives these to ``execute``. A model makes one to call another model:
    ``InferenceRequest(model_name="m", requested_output_names=["OUT"], inputs=[t])``.
    """

    @overload
    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        *,
        inputs: Sequence[Tensor],
        requested_output_names: Sequence[str],
        model_name: str,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: _Parameters | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        request_id: str,
        correlation_id: int | str,
        inputs: Sequence[Tensor],
        requested_output_names: Sequence[str],
        model_name: str,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: _Parameters | None = None,
    ) -> None: ...
    def inputs(self) -> list[Tensor]:
        """Input tensors."""
    def request_id(self) -> str:
        """Id that the client gave, or an empty string."""
    def correlation_id(self) -> int | str:
        """Correlation id of the sequence; 0 if there is none."""
    def requested_output_names(self) -> set[str]:
        """Names of the outputs that are asked for."""
    def flags(self) -> int:
        """Flags of the sequence: 1 start, 2 end."""
    def set_flags(self, flags: int) -> None:
        """Sets the flags of the sequence."""
    def timeout(self) -> int:
        """Time-out in microseconds; 0 if there is none."""
    def parameters(self) -> str:
        """Parameters of the request as a JSON object."""
    def trace(self) -> InferenceTrace:
        """Trace of the request, to hand on to requests for other models."""
    def set_release_flags(self, flags: int) -> None:
        """Sets how the request is released.

        ``flags`` is TRITONSERVER_REQUEST_RELEASE_ALL or, to get the request again,
        TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.
        """
    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
    def get_response_sender(self) -> InferenceResponseSender:
        """Sender of responses to this request."""
    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse:
        """Calls the model and waits for its response."""
    @overload
    def exec(self, decoupled: Literal[True]) -> ResponseIterator:
        """Calls a decoupled model; gives its responses as they come."""
    @overload
    def async_exec(self, decoupled: Literal[False] = False) -> Awaitable[InferenceResponse]:
        """Calls the model without waiting; the response is awaited."""
    @overload
    def async_exec(self, decoupled: Literal[True]) -> Awaitable[ResponseIterator]:
        """Calls a decoupled model without waiting; the iterator is awaited."""

class ResponseIterator:
    """Responses of a decoupled model, in the order in which they come."""

    def __iter__(self) -> Iterator[InferenceResponse]: ...
    def __next__(self) -> InferenceResponse:
        """The next response; waits for it."""
    def cancel(self) -> None:
        """Asks the called model to stop; its last response still comes."""

class ModelConfig:
    """Configuration that ``auto_complete_config`` may complete."""

    def __init__(self, model_config: str) -> None: ...
    def as_dict(self) -> _Properties:
        """The configuration as a dictionary."""
    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets the largest batch size.

        Raises ValueError if the configuration has a larger one.
        """
    def set_dynamic_batching(self) -> None:
        """Chooses the dynamic batcher.

        Raises ValueError if the configuration has another scheduler.
        """
    def add_input(self, input: _Properties) -> None:
        """Adds an input with ``name``, ``data_type``, ``dims`` and, if wanted, ``optional``."""
    def add_output(self, output: _Properties) -> None:
        """Adds an output with ``name``, ``data_type`` and ``dims``."""
    def set_model_transaction_policy(self, transaction_policy_dict: _Properties) -> None:
        """Sets the transaction policy, as ``{"decoupled": True}``."""

class MetricKind(IntEnum):
    """Kinds of metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

@final
class Metric:
    """A metric of a family, for one set of labels. ``MetricFamily.Metric`` makes it."""

    def increment(self, value: float) -> None:
        """Adds to a counter or gauge."""
    def set(self, value: float) -> None:
        """Sets a gauge."""
    def observe(self, value: float) -> None:
        """Counts a value in a histogram."""
    def value(self) -> float:
        """Value of a counter or gauge."""

class MetricFamily:
    """Metrics of one name. Keep it as long as its metrics are used."""

    COUNTER: ClassVar[MetricKind]
    GAUGE: ClassVar[MetricKind]
    HISTOGRAM: ClassVar[MetricKind]

    def __init__(self, name: str, description: str, kind: MetricKind) -> None: ...
    def Metric(
        self, labels: dict[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """Makes a metric; histograms need ``buckets``."""

class _LogLevel(IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

class Logger:
    """Writes to the server's log, with file and line of the caller."""

    INFO: ClassVar[_LogLevel]
    WARNING: ClassVar[_LogLevel]
    ERROR: ClassVar[_LogLevel]
    VERBOSE: ClassVar[_LogLevel]
    LogLevel: ClassVar[type[_LogLevel]]

    @staticmethod
    def log(message: str, level: _LogLevel = ...) -> None:
        """Logs a message at a level."""
    @staticmethod
    def log_info(message: str) -> None:
        """Logs a message at the level INFO."""
    @staticmethod
    def log_warn(message: str) -> None:
        """Logs a message at the level WARNING."""
    @staticmethod
    def log_error(message: str) -> None:
        """Logs a message at the level ERROR."""
    @staticmethod
    def log_verbose(message: str) -> None:
        """Logs a message at the level VERBOSE."""

def get_input_tensor_by_name(
    inference_request: InferenceRequest, name: str
) -> Tensor | _OrNone:
    """Input tensor of a request by its name, or None."""

def get_output_tensor_by_name(
    inference_response: InferenceResponse, name: str
) -> Tensor | _OrNone:
    """Output tensor of a response by its name, or None."""

def get_input_config_by_name(model_config: _Properties, name: str) -> _Properties | _OrNone:
    """Properties of an input of a configuration, or None."""

def get_output_config_by_name(model_config: _Properties, name: str) -> _Properties | _OrNone:
    """Properties of an output of a configuration, or None."""

def using_decoupled_model_transaction_policy(model_config: _Properties) -> bool:
    """Whether a configuration has the decoupled transaction policy."""

def get_model_dir() -> str:
    """Directory of the version of the model that is served."""

def load_model(
    model_name: str, config: str = "", files: dict[str, bytes] | None = None
) -> None:
    """Loads a model, or loads it anew.

    ``config`` is a configuration as JSON that replaces the repository's. ``files`` maps
    ``file:PATH`` to contents that replace the repository's files. Needs model control
    mode explicit.
    """

def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unloads a model, on request with the models that only it needs."""

def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model, or one version of it, is ready."""

def serialize_byte_tensor(input_tensor: NDArray[Any]) -> bytes | tuple[()] | _OrNone:
    """BYTES content of an array of objects or bytes; None for other arrays."""

def deserialize_bytes_tensor(encoded_tensor: bytes) -> NDArray[np.object_]:
    """Array of ``bytes`` objects from BYTES content."""

def triton_to_numpy_type(data_type: int) -> type[Any] | _OrNone:
    """numpy's type for the number of a data type, or None."""

def numpy_to_triton_type(data_type: type[Any]) -> int | None:
    """Number of the data type for a type of numpy, or None."""

def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """numpy's type for a name such as ``TYPE_FP32``; KeyError for other names."""
