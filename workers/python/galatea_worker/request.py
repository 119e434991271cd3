"""`InferenceRequest`: a request to this model, or one that this model makes."""

from __future__ import annotations

from struct import Struct
from typing import Any, Dict, List, Optional, Sequence, Set, Union

from .enums import NamedEnum, as_text, demand, demand_number
from .errors import TritonModelException, WireError
from .forms import Forms
from .response import Parameters, parameters_to_json
from .sender import InferenceResponseSender
from .tensor import Tensor, check_tensors
from .wire import Decoded, finish, get_tensor, get_text, get_u32, get_u64, pack_u32

RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2

_get_key_length = Struct("<QI").unpack_from
_get_middle = Struct("<IQI").unpack_from
_get_trace_count = Struct("<BI").unpack_from
_pack_gpu = Struct("<Bq").pack


class MemoryType(NamedEnum):
    """Kinds of memory that a model may prefer for responses of called models."""

    __module__ = "c_python_backend_utils"
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """Memory that the responses of a called model should lie in."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_kind", "_device")

    def __init__(self, preferred_memory_type: MemoryType,
                 preferred_device_id: int = 0) -> None:
        demand("preferred_memory_type", preferred_memory_type, MemoryType)
        self._kind = preferred_memory_type
        self._device = demand_number(
            "preferred_device_id", preferred_device_id, -1 << 63, (1 << 63) - 1)


def encode_memory(memory: Optional[PreferredMemory]) -> bytes:
    """What the server is told of preferred memory."""
    if memory is None:
        return b"\0"
    on_gpu = memory._kind == MemoryType.TRITONSERVER_MEMORY_GPU
    return _pack_gpu(2, memory._device) if on_gpu else b"\1"


class InferenceTrace:
    """Trace of a request; a called model's trace becomes its child."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_key", "_context")

    def __init__(self) -> None:
        #: The request that is traced; 0 where none is.
        self._key = 0
        self._context = ""

    def get_context(self) -> Optional[str]:
        """Context of OpenTelemetry as JSON, or None."""
        return self._context or None


#: Marks arguments that have no default.
_MISSING: Any = object()


class InferenceRequest:
    """A request with its inputs.

    The server gives these to `execute`. A model makes one to call another model:
    ``InferenceRequest(model_name="m", requested_output_names=["OUT"], inputs=[t])``.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("_key", "_id", "_correlation", "_flags", "_timeout", "_parameters",
                 "_has_trace", "_context", "_wanted", "_inputs", "_release_flags", "_sender",
                 "_model_name", "_model_version", "_preferred", "_trace", "_done")

    def __init__(self, request_id: str = "",
                 correlation_id: Union[int, str] = 0,
                 inputs: Sequence[Tensor] = _MISSING,
                 requested_output_names: Sequence[str] = _MISSING,
                 model_name: str = _MISSING,
                 model_version: int = -1,
                 flags: int = 0,
                 timeout: int = 0,
                 preferred_memory: Optional[PreferredMemory] = None,
                 trace: Optional[InferenceTrace] = None,
                 parameters: Optional[Parameters] = None) -> None:
        if inputs is _MISSING or requested_output_names is _MISSING \
                or model_name is _MISSING:
            raise TypeError("InferenceRequest needs inputs, requested_output_names and "
                            "model_name")
        if type(request_id) is not str:
            request_id = as_text("request_id", request_id)
        if type(model_name) is not str:
            model_name = as_text("model_name", model_name)
        self._key = 0
        self._id = request_id
        self._correlation = 0
        if correlation_id != 0 or type(correlation_id) is not int:
            self._correlation = _check_correlation(correlation_id)
        self._flags = demand_number("flags", flags, 0, (1 << 32) - 1)
        self._timeout = demand_number("timeout", timeout, 0, (1 << 64) - 1)
        self._parameters = "{}" if parameters is None else parameters_to_json(parameters)
        self._has_trace = 0
        self._inputs = inputs = list(inputs)
        for tensor in inputs:
            if type(tensor) is not Tensor:
                check_tensors(
                    inputs, f"Input tensor for request with id '{request_id}' and model name "
                    f"'{model_name}' should not be empty.")
        self._wanted = _check_names(requested_output_names)
        if "" in self._wanted:
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model "
                f"name '{model_name}' should not be empty.")
        self._model_name = model_name
        self._model_version = demand_number(
            "model_version", model_version, -1 << 63, (1 << 63) - 1)
        if preferred_memory is not None:
            demand("preferred_memory", preferred_memory, PreferredMemory)
        self._preferred = preferred_memory
        if trace is not None:
            demand("trace", trace, InferenceTrace)
        self._trace = trace
        self._release_flags = RELEASE_ALL
        self._sender: Optional[InferenceResponseSender] = None
        self._done = False

    def inputs(self) -> List[Tensor]:
        """Input tensors."""
        return self._inputs

    def request_id(self) -> str:
        """Id that the client gave, or an empty string."""
        return self._id

    def correlation_id(self) -> Union[int, str]:
        """Correlation id of the sequence; 0 if there is none."""
        return self._correlation

    def requested_output_names(self) -> Set[str]:
        """Names of the outputs that are asked for."""
        return set(self._wanted or ())

    def model_name(self) -> str:
        """Name of the model that the request is for."""
        return self._model_name

    def model_version(self) -> int:
        """Version of the model; -1 is the newest."""
        return self._model_version

    def flags(self) -> int:
        """Flags of the sequence: 1 start, 2 end."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Sets the flags of the sequence."""
        self._flags = demand_number("flags", flags, 0, (1 << 32) - 1)

    def timeout(self) -> int:
        """Time-out in microseconds; 0 if there is none."""
        return self._timeout

    def parameters(self) -> str:
        """Parameters of the request as a JSON object."""
        return self._parameters

    def preferred_memory(self) -> Optional[PreferredMemory]:
        """Memory that the maker of the request prefers, or None."""
        return self._preferred

    def trace(self) -> InferenceTrace:
        """Trace of the request, to hand on to requests for other models."""
        trace = self._trace
        if trace is None:
            trace = self._trace = InferenceTrace()
            if self._has_trace:
                trace._key = self._key
                trace._context = self._context
        return trace

    def set_release_flags(self, flags: int) -> None:
        """Sets how the request is released: RELEASE_ALL or RELEASE_RESCHEDULE."""
        self._release_flags = demand_number("flags", flags, 0, (1 << 32) - 1)

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
        return self.get_response_sender().is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """Sender of responses to this request; it may be used in any thread."""
        sender = self._sender
        if sender is None:
            sender = self._sender = InferenceResponseSender(self._key, self._wanted, self._done)
        return sender

    def exec(self, decoupled: bool = False) -> Any:
        """Calls the model and waits.

        Gives an `InferenceResponse`; with `decoupled` an iterator of responses.
        """
        return _bls().execute(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """Calls the model without waiting; the answer is awaited."""
        return _bls().execute_async(self, decoupled)


_calls: Any = None


def _bls() -> Any:
    """The module of calls, imported with the first one."""
    global _calls
    if _calls is None:
        from . import bls
        _calls = bls
    return _calls


#: Sets of one name, which most requests ask for.
_single: Dict[str, frozenset] = {}
_SINGLE_MAX = 1024


def _check_names(names: Any) -> frozenset:
    """Names of outputs; raises TypeError for a single one."""
    if type(names) is list and len(names) == 1 and type(names[0]) is str:
        found = _single.get(names[0])
        if found is None:
            found = frozenset(names)
            if len(_single) >= _SINGLE_MAX:
                _single.clear()
            _single[names[0]] = found
        return found
    if isinstance(names, (str, bytes)):
        demand("requested_output_names", names, list)
    return frozenset(as_text("name of a requested output", name) for name in names)


def _check_correlation(value: Any) -> Union[int, str]:
    """A correlation id as it is sent: a number or a text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int):
        raise TritonModelException("Correlation ID must be integer or string")
    return demand_number("correlation_id", value, 0, (1 << 64) - 1)


_new = InferenceRequest.__new__


def get_request(data: Any, position: int, own: "Own") -> Decoded:
    """Reads a request to this model."""
    request = _new(InferenceRequest)
    key, length = _get_key_length(data, position)
    position += 12
    request._key = key
    if length:
        end = position + length
        request._id = str(data[position:end], "utf-8")
        position = end
    else:
        request._id = ""
    kind = data[position]
    position += 1
    if kind == 0:
        request._correlation = 0
    else:
        request._correlation, position = _get_correlation(data, position, kind)
    request._flags, request._timeout, length = _get_middle(data, position)
    position += 16
    if length:
        end = position + length
        request._parameters = str(data[position:end], "utf-8")
        position = end
    else:
        request._parameters = "{}"
    request._has_trace, count = _get_trace_count(data, position)
    position += 5
    if request._has_trace:
        position -= 4
        request._context, position = get_text(data, position)
        (count,) = get_u32(data, position)
        position += 4
    if count:
        request._wanted, position = _get_names(data, position, count)
    else:
        request._wanted = own.outputs
    (count,) = get_u32(data, position)
    position += 4
    inputs = []
    for _ in range(count):
        tensor, position = get_tensor(data, position)
        inputs.append(tensor)
    request._inputs = inputs
    request._release_flags = RELEASE_ALL
    request._sender = None
    request._done = False
    request._model_name = own.name
    request._model_version = own.version
    request._preferred = None
    request._trace = None
    return request, position


def _get_correlation(data: Any, position: int, kind: int) -> Decoded:
    """A correlation id: a number or a text."""
    if kind == 1:
        return get_u64(data, position)[0], position + 8
    if kind == 2:
        return get_text(data, position)
    raise WireError(f"a correlation id of kind {kind}")


def _get_names(data: Any, position: int, count: int) -> Decoded:
    """A set of names."""
    names = set()
    for _ in range(count):
        name, position = get_text(data, position)
        names.add(name)
    return frozenset(names), position


class Own:
    """What requests to this model have in common."""

    __slots__ = ("name", "version", "outputs")

    def __init__(self, name: str, version: int, outputs: Optional[frozenset]) -> None:
        self.name = name
        self.version = version
        self.outputs = outputs


#: EXECUTE frames of one request, behind its key.
_forms = Forms(17)
_ONE = pack_u32(1)


def get_requests(data: Any, own: Own) -> List[InferenceRequest]:
    """Requests of an EXECUTE frame."""
    if data[5:9] == _ONE:
        found = _forms.find(data)
        if found is not None:
            return [_repeated(data, *found)]
    (count,) = get_u32(data, 5)
    position = 9
    requests = []
    for _ in range(count):
        request, position = get_request(data, position, own)
        requests.append(request)
    finish(data, position)
    if count == 1 and not request._id and not request._has_trace:
        _forms.learn(data, request._inputs, (own, request._correlation, request._flags,
                                             request._timeout, request._parameters,
                                             request._wanted))
    return requests


def _repeated(data: Any, inputs: List[Tensor], like: Any) -> InferenceRequest:
    """Request of a frame of a known form."""
    request = _new(InferenceRequest)
    (request._key,) = get_u64(data, 9)
    request._id = ""
    (own, request._correlation, request._flags, request._timeout, request._parameters,
     request._wanted) = like
    request._has_trace = 0
    request._inputs = inputs
    request._release_flags = RELEASE_ALL
    request._sender = None
    request._done = False
    request._model_name = own.name
    request._model_version = own.version
    request._preferred = None
    request._trace = None
    return request


__all__ = ["InferenceRequest", "InferenceTrace", "MemoryType", "Own", "PreferredMemory",
           "RELEASE_ALL", "RELEASE_RESCHEDULE", "get_requests"]
