"""`InferenceRequest`: a request to this model, or one that this model makes."""

from __future__ import annotations

from struct import Struct
from typing import Any, Dict, List, Optional, Sequence, Set, Union

from .errors import TritonModelException, WireError
from .forms import Forms
from .memory import PreferredMemory
from .native import (INT64, UINT32, UINT64, Made, Parameter, Signature, Unfit, anything, bare,
                     boolean, cast, declared, instance, native, sequence, text)
from .response import Parameters, parameters_to_json
from .sender import InferenceResponseSender, make_sender
from .tensor import Tensor, check_tensors
from .wire import Decoded, finish, get_tensor, get_text, get_u32, get_u64, pack_u32

RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2

_get_key_length = Struct("<QI").unpack_from
_get_middle = Struct("<IQI").unpack_from
_get_trace_count = Struct("<BI").unpack_from


class InferenceTrace(Made):
    """The trace of a request; a called model's trace becomes its child."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_key", "_context")

    #: The traced request; 0 if there is none.
    _key: int
    _context: str

    @native("get_context(self: c_python_backend_utils.InferenceTrace) -> object",
            owner=lambda: InferenceTrace)
    def get_context(self) -> Optional[str]:
        """Returns the OpenTelemetry context as JSON, or None."""
        return self._context or None


def _new_trace() -> InferenceTrace:
    """Creates a trace without a request."""
    trace = object.__new__(InferenceTrace)
    trace._key = 0
    trace._context = ""
    return trace


def _exec(self: Any, decoupled: bool = False) -> Any:
    """Calls the model and waits.

    Gives an `InferenceResponse`; with `decoupled` an iterator of responses.
    """


def _async_exec(self: Any, decoupled: bool = False) -> Any:
    """Calls the model without blocking; the answer is awaitable."""


_exec.__name__ = "exec"
_async_exec.__name__ = "async_exec"
_SELF = "(self: c_python_backend_utils.InferenceRequest"
_CALL = (Parameter("", lambda value: instance(InferenceRequest)(value)),
         Parameter("decoupled", boolean, False))
_EXEC = Signature(f"exec{_SELF}, decoupled: bool = False) -> object", *_CALL)
_ASYNC_EXEC = Signature(f"async_exec{_SELF}, decoupled: bool = False) -> object", *_CALL)
_INPUTS = Signature(f"inputs{_SELF}) -> list[triton::backend::python::PbTensor]")
_SENDER = Signature(
    f"get_response_sender{_SELF}) -> triton::backend::python::ResponseSender")
_FLAGS_MAX = (1 << 32) - 1
_NUMBER_MAX = (1 << 64) - 1
#: Marks arguments that have no default.
_MISSING: Any = object()


def _request(self: Any, request_id: str = "", correlation_id: Union[int, str] = 0,
             inputs: Sequence[Tensor] = _MISSING,
             requested_output_names: Sequence[str] = _MISSING, model_name: str = _MISSING,
             model_version: int = -1, flags: int = 0, timeout: int = 0,
             preferred_memory: PreferredMemory = _MISSING, trace: InferenceTrace = _MISSING,
             parameters: Optional[Parameters] = None) -> None:
    """Makes a request to a model."""


_request.__name__ = _request.__qualname__ = "__init__"
_signatures: List[Signature] = []


def _signature() -> Signature:
    """Signature of the constructor, which shows two objects."""
    if not _signatures:
        memory, trace = PreferredMemory.__new__(PreferredMemory), _new_trace()
        _signatures.append(Signature(
            "__init__(self: c_python_backend_utils.InferenceRequest, request_id: str = '', "
            "correlation_id: object = 0, inputs: list[triton::backend::python::PbTensor], "
            "requested_output_names: list[str], model_name: str, model_version: int = -1, "
            "flags: int = 0, timeout: int = 0, preferred_memory: "
            f"c_python_backend_utils.PreferredMemory = {memory!r}, trace: "
            f"c_python_backend_utils.InferenceTrace = {trace!r}, parameters: object = None) "
            "-> None",
            Parameter("", anything), Parameter("request_id", text, ""),
            Parameter("correlation_id", anything, 0),
            Parameter("inputs", sequence(instance(Tensor))),
            Parameter("requested_output_names", sequence(text)), Parameter("model_name", text),
            Parameter("model_version", INT64, -1), Parameter("flags", UINT32, 0),
            Parameter("timeout", UINT64, 0),
            Parameter("preferred_memory", instance(PreferredMemory), None),
            Parameter("trace", instance(InferenceTrace), None),
            Parameter("parameters", anything, None, may_be_none=True)))
    return _signatures[0]


class InferenceRequest:
    """A request with its inputs.

    The server gives these to `execute`. A model makes one to call another model:
    ``InferenceRequest(model_name="m", requested_output_names=["OUT"], inputs=[t])``.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("_key", "_id", "_correlation", "_flags", "_timeout", "_parameters",
                 "_has_trace", "_context", "_wanted", "_inputs", "_release_flags", "_sender",
                 "_model_name", "_model_version", "_preferred", "_trace", "_done")

    @declared(_request)
    def __init__(self, *args: Any, **named: Any) -> None:
        try:
            self._take(*args, **named)
        except (TypeError, Unfit):
            self._fill(*_signature().bind((self, *args), named)[1:])

    def _take(self, request_id: Any = "", correlation_id: Any = 0, inputs: Any = None,
              requested_output_names: Any = None, model_name: Any = None,
              model_version: Any = -1, flags: Any = 0, timeout: Any = 0,
              preferred_memory: Any = _MISSING, trace: Any = _MISSING,
              parameters: Any = None) -> None:
        """Accepts arguments of exactly the usual types; raises Unfit for others."""
        if not (type(inputs) is type(requested_output_names) is list
                and type(model_name) is type(request_id) is str
                and type(model_version) is type(flags) is type(timeout) is type(
                    correlation_id) is int
                and model_name.isascii() and request_id.isascii()
                and 0 <= flags <= _FLAGS_MAX and 0 <= timeout <= _NUMBER_MAX
                and -1 <= model_version <= _FLAGS_MAX and 0 <= correlation_id <= _NUMBER_MAX):
            raise Unfit
        for tensor in inputs:
            if type(tensor) is not Tensor:
                raise Unfit
        for name in requested_output_names:
            if type(name) is not str or not name.isascii():
                raise Unfit
        if preferred_memory is _MISSING:
            preferred_memory = None
        elif type(preferred_memory) is not PreferredMemory:
            raise Unfit
        if trace is _MISSING:
            trace = None
        elif type(trace) is not InferenceTrace:
            raise Unfit
        self._fill(request_id, correlation_id, inputs, requested_output_names, model_name,
                   model_version, flags, timeout, preferred_memory, trace, parameters)

    def _fill(self, request_id: str, correlation_id: Any, inputs: Sequence[Tensor],
              requested_output_names: Sequence[str], model_name: str, model_version: int,
              flags: int, timeout: int, preferred_memory: Optional[PreferredMemory],
              trace: Optional[InferenceTrace], parameters: Optional[Parameters]) -> None:
        """Makes the request of converted arguments."""
        self._parameters = "{}" if parameters is None else parameters_to_json(parameters)
        self._correlation = 0
        if type(correlation_id) is not int or correlation_id:
            self._correlation = _check_correlation(correlation_id)
        self._inputs = check_tensors(
            inputs, f"Input tensor for request with id '{request_id}' and model name "
            f"'{model_name}' should not be empty.")
        self._wanted = _check_names(requested_output_names)
        if "" in self._wanted:
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model "
                f"name '{model_name}' should not be empty.")
        self._key = 0
        self._id = request_id
        self._flags = flags
        self._timeout = timeout
        self._has_trace = 0
        self._model_name = model_name
        self._model_version = model_version
        self._preferred = preferred_memory
        self._trace = trace
        self._release_flags = RELEASE_ALL
        self._sender: Optional[InferenceResponseSender] = None
        self._done = False

    @bare
    def inputs(self, *rest: Any, **more: Any) -> List[Tensor]:
        """Input tensors."""
        if rest or more:
            raise _INPUTS.refusal((self, *rest), more)
        try:
            return self._inputs
        except AttributeError:
            raise _INPUTS.refusal((self,), more) from None

    @native("request_id(self: c_python_backend_utils.InferenceRequest) -> str",
            owner=lambda: InferenceRequest)
    def request_id(self) -> str:
        """Id that the client gave, or an empty string."""
        return self._id

    @native("correlation_id(self: c_python_backend_utils.InferenceRequest) -> object",
            owner=lambda: InferenceRequest)
    def correlation_id(self) -> Union[int, str]:
        """Correlation id of the sequence; 0 if there is none."""
        return self._correlation

    @native("requested_output_names(self: c_python_backend_utils.InferenceRequest) -> set[str]",
            owner=lambda: InferenceRequest)
    def requested_output_names(self) -> Set[str]:
        """Names of the requested outputs."""
        return set(self._wanted or ())

    @native("flags(self: c_python_backend_utils.InferenceRequest) -> int",
            owner=lambda: InferenceRequest)
    def flags(self) -> int:
        """Flags of the sequence: 1 start, 2 end."""
        return self._flags

    @native("set_flags(self: c_python_backend_utils.InferenceRequest, arg0: int) -> None",
            Parameter("", UINT32), owner=lambda: InferenceRequest)
    def set_flags(self, flags: int) -> None:
        """Sets the flags of the sequence."""
        self._flags = flags

    @native("timeout(self: c_python_backend_utils.InferenceRequest) -> int",
            owner=lambda: InferenceRequest)
    def timeout(self) -> int:
        """Timeout in microseconds; 0 if there is none."""
        return self._timeout

    @native("parameters(self: c_python_backend_utils.InferenceRequest) -> str",
            owner=lambda: InferenceRequest)
    def parameters(self) -> str:
        """Parameters of the request as a JSON object."""
        return self._parameters

    @native("trace(self: c_python_backend_utils.InferenceRequest) -> c_python_backend_utils.InferenceTrace",
            owner=lambda: InferenceRequest)
    def trace(self) -> InferenceTrace:
        """Trace of the request, to pass on to requests for other models."""
        trace = self._trace
        if trace is None:
            trace = self._trace = _new_trace()
            if self._has_trace:
                trace._key = self._key
                trace._context = self._context
        return trace

    @native("set_release_flags(self: c_python_backend_utils.InferenceRequest, arg0: int) -> None",
            Parameter("", UINT32), owner=lambda: InferenceRequest)
    def set_release_flags(self, flags: int) -> None:
        """Sets how the request is released: RELEASE_ALL or RELEASE_RESCHEDULE."""
        self._release_flags = flags

    @native("is_cancelled(self: c_python_backend_utils.InferenceRequest) -> bool",
            owner=lambda: InferenceRequest)
    def is_cancelled(self) -> bool:
        """True if the client has cancelled the request."""
        return self.get_response_sender().is_cancelled()

    @bare
    def get_response_sender(self, *rest: Any, **more: Any) -> InferenceResponseSender:
        """Sender of responses to this request, usable in any thread."""
        if rest or more:
            raise _SENDER.refusal((self, *rest), more)
        sender = self._sender
        if sender is None:
            sender = self._sender = make_sender(self._key, self._wanted, self._done)
        return sender

    @declared(_exec)
    def exec(self, *args: Any, **named: Any) -> Any:
        if args or named or not isinstance(self, InferenceRequest):
            return _bls().execute(*_EXEC.bind((self, *args), named))
        return _bls().execute(self, False)

    @declared(_async_exec)
    def async_exec(self, *args: Any, **named: Any) -> Any:
        if args or named:
            return _bls().execute_async(*_ASYNC_EXEC.bind((self, *args), named))
        return _bls().execute_async(self, False)


_calls: Any = None


def _bls() -> Any:
    """Returns the module for calls, which is imported with the first one."""
    global _calls
    if _calls is None:
        from . import bls
        _calls = bls
    return _calls


#: Single-name sets, which most requests use.
_single: Dict[str, frozenset] = {}
_SINGLE_MAX = 1024


def _check_names(names: Any) -> frozenset:
    """Names of outputs."""
    if type(names) is list and len(names) == 1 and type(names[0]) is str:
        found = _single.get(names[0])
        if found is None:
            found = frozenset(names)
            if len(_single) >= _SINGLE_MAX:
                _single.clear()
            _single[names[0]] = found
        return found
    return frozenset(names)


def _check_correlation(value: Any) -> Union[int, str]:
    """Checks a correlation id, which is a number or a string."""
    if isinstance(value, int):
        return cast(UINT64, value)
    if isinstance(value, str):
        return cast(text, value)
    raise TritonModelException("Correlation ID must be integer or string")


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
    """Reads a correlation id, which is a number or a string."""
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
    """Properties that all requests to this model share."""

    __slots__ = ("name", "version", "outputs")

    def __init__(self, name: str, version: int, outputs: Optional[frozenset]) -> None:
        self.name = name
        self.version = version
        self.outputs = outputs


#: EXECUTE frames with one request, after its key.
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
