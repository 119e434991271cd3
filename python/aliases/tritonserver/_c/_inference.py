"""Requests, and the responses to them."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from galatea import AlreadyExistsError, UnsupportedError

from . import _calls
from ._calls import (
    ADDRESS, INT64, SIZE, TEXT, UNSIGNED, UNSIGNED64, Handle, attribute, check, error_of,
    exception, function, method, one_of,
)
from ._enumerations import (
    TRITONSERVER_DataType,
    TRITONSERVER_MemoryType,
    TRITONSERVER_ParameterType,
    TRITONSERVER_ResponseCompleteFlag,
)
from ._trace import dims
from ._values import TRITONSERVER_BufferAttributes

_POINTER = ctypes.c_void_p
_Allocate = ctypes.CFUNCTYPE(
    _POINTER, _POINTER, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64,
    _POINTER, ctypes.POINTER(_POINTER), ctypes.POINTER(_POINTER),
    ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int64),
)
_Free = ctypes.CFUNCTYPE(
    _POINTER, _POINTER, _POINTER, _POINTER, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
)
_Released = ctypes.CFUNCTYPE(None, _POINTER, ctypes.c_uint32, _POINTER)
_Response = ctypes.CFUNCTYPE(None, _POINTER, ctypes.c_uint32, _POINTER)

_heap = ctypes.CDLL(None)
_heap.malloc.restype = ctypes.c_void_p
_heap.free.restype = None


@_Allocate
def _allocate(
    _allocator: int, _name: bytes, byte_size: int, _type: int, _id: int, _user: int,
    buffer: Any, buffer_user: Any, actual_type: Any, actual_id: Any,
) -> int | None:
    address = _heap.malloc(ctypes.c_size_t(max(1, byte_size)))
    if not address:
        return error_of(MemoryError(f"no {byte_size} bytes for an output"))
    buffer[0], buffer_user[0] = address, None
    actual_type[0], actual_id[0] = int(TRITONSERVER_MemoryType.CPU), 0
    return None


@_Free
def _free(
    _allocator: int, buffer: int, _user: int, _byte_size: int, _type: int, _id: int
) -> None:
    _heap.free(ctypes.c_void_p(buffer))


class _Allocator(Handle):
    """The allocator of all requests."""

    _delete = "ResponseAllocatorDelete"

    def __init__(self) -> None:
        self._make("ResponseAllocatorNew", _allocate, _free, None)


_ALLOCATOR = _Allocator()

#: Requests that the server holds, by number: until their release, and until the last response.
_sent: dict[int, TRITONSERVER_InferenceRequest] = {}
_awaited: dict[int, TRITONSERVER_InferenceRequest] = {}
_numbers = itertools.count(1)


@_Released
def _on_release(_request: int, _flags: int, number: int) -> None:
    _sent.pop(number, None)


@_Response
def _on_response(address: int | None, flags: int, number: int) -> None:
    request = _awaited[number]
    if flags & TRITONSERVER_ResponseCompleteFlag.FINAL:
        del _awaited[number]
    response = None
    if address:
        response = TRITONSERVER_InferenceResponse._of(address, owned=True)
        response._server = request._server
    request._deliver((response, flags))


class TRITONSERVER_InferenceResponse(Handle):
    """A response, or an error instead. Keeps the server alive."""

    _delete = "InferenceResponseDelete"

    id = attribute("InferenceResponseId", _calls.TEXT_RESULT)
    parameter_count = attribute("InferenceResponseParameterCount", _calls.UNSIGNED_RESULT)
    output_count = attribute("InferenceResponseOutputCount", _calls.UNSIGNED_RESULT)
    model = property(
        method("InferenceResponseModel", results=(_calls.TEXT_RESULT, _calls.INT64_RESULT))
    )
    output_classification_label = method(
        "InferenceResponseOutputClassificationLabel", UNSIGNED, SIZE,
        results=(_calls.TEXT_RESULT,),
    )
    _parameter = method(
        "InferenceResponseParameter", UNSIGNED,
        results=(
            _calls.TEXT_RESULT,
            _calls.one_of_result(TRITONSERVER_ParameterType),
            _calls.ADDRESS_RESULT,
        ),
    )
    _output = method(
        "InferenceResponseOutput", UNSIGNED,
        results=(
            _calls.TEXT_RESULT,
            _calls.one_of_result(TRITONSERVER_DataType),
            _calls.ADDRESS_RESULT,
            _calls.UNSIGNED64_RESULT,
            _calls.ADDRESS_RESULT,
            _calls.SIZE_RESULT,
            _calls.one_of_result(TRITONSERVER_MemoryType),
            _calls.INT64_RESULT,
            _calls.ADDRESS_RESULT,
        ),
    )

    def throw_if_response_error(self) -> None:
        """Raises the error that the response represents."""
        error = function("InferenceResponseError")(self.handle)
        if error:
            raise exception(error)

    def parameter(self, index: int) -> tuple[str, TRITONSERVER_ParameterType, Any]:
        """The name, the type and the value of a parameter."""
        name, kind, address = self._parameter(index)
        read = _PARAMETERS.get(kind)
        if read is None:
            raise UnsupportedError(f"parameter '{name}' has the unexpected type {kind.name}")
        return name, kind, read(address)

    def output(self, index: int) -> tuple[Any, ...]:
        """Name, type, shape, address, bytes and memory of an output."""
        name, data_type, shape, dim_count, *memory = self._output(index)
        return (name, data_type, dims(shape, dim_count), *memory[:4])


_PARAMETERS: dict[TRITONSERVER_ParameterType, Any] = {
    TRITONSERVER_ParameterType.STRING: lambda address: ctypes.string_at(address).decode(),
    TRITONSERVER_ParameterType.INT: lambda address: ctypes.c_int64.from_address(address).value,
    TRITONSERVER_ParameterType.BOOL: lambda address: ctypes.c_bool.from_address(address).value,
    TRITONSERVER_ParameterType.DOUBLE: (
        lambda address: ctypes.c_double.from_address(address).value
    ),
}

_MEMORY = (ADDRESS, SIZE, one_of(TRITONSERVER_MemoryType), INT64)


class TRITONSERVER_InferenceRequest(Handle):
    """A request to a model. Keeps the server alive."""

    _delete = "InferenceRequestDelete"

    def __init__(self, server: Any, model_name: str, model_version: int) -> None:
        """Creates a request without inputs. A version of -1 means the newest."""
        self._server = server
        self._lock = threading.Lock()
        self._future: Any = None
        self._responses: deque[tuple[Any, int]] = deque()
        arguments = TEXT.convert(model_name), INT64.convert(model_version)
        self._make("InferenceRequestNew", server.handle, *arguments)

    id = attribute("InferenceRequestId", _calls.TEXT_RESULT, "InferenceRequestSetId", TEXT)
    flags = attribute(
        "InferenceRequestFlags", _calls.UNSIGNED_RESULT, "InferenceRequestSetFlags", UNSIGNED
    )
    correlation_id = attribute(
        "InferenceRequestCorrelationId", _calls.UNSIGNED64_RESULT,
        "InferenceRequestSetCorrelationId", UNSIGNED64,
    )
    correlation_id_string = attribute(
        "InferenceRequestCorrelationIdString", _calls.TEXT_RESULT,
        "InferenceRequestSetCorrelationIdString", TEXT,
    )
    priority = attribute(
        "InferenceRequestPriority", _calls.UNSIGNED_RESULT,
        "InferenceRequestSetPriority", UNSIGNED,
    )
    priority_uint64 = attribute(
        "InferenceRequestPriorityUInt64", _calls.UNSIGNED64_RESULT,
        "InferenceRequestSetPriorityUInt64", UNSIGNED64,
    )
    timeout_microseconds = attribute(
        "InferenceRequestTimeoutMicroseconds", _calls.UNSIGNED64_RESULT,
        "InferenceRequestSetTimeoutMicroseconds", UNSIGNED64,
    )

    add_raw_input = method("InferenceRequestAddRawInput", TEXT)
    remove_input = method("InferenceRequestRemoveInput", TEXT)
    remove_all_inputs = method("InferenceRequestRemoveAllInputs")
    append_input_data = method("InferenceRequestAppendInputData", TEXT, *_MEMORY)
    append_input_data_with_host_policy = method(
        "InferenceRequestAppendInputDataWithHostPolicy", TEXT, *_MEMORY, TEXT
    )
    append_input_data_with_buffer_attributes = method(
        "InferenceRequestAppendInputDataWithBufferAttributes", TEXT, ADDRESS,
        _calls.handle_of(TRITONSERVER_BufferAttributes),
    )
    remove_all_input_data = method("InferenceRequestRemoveAllInputData", TEXT)
    add_requested_output = method("InferenceRequestAddRequestedOutput", TEXT)
    remove_requested_output = method("InferenceRequestRemoveRequestedOutput", TEXT)
    remove_all_requested_outputs = method("InferenceRequestRemoveAllRequestedOutputs")
    set_string_parameter = method("InferenceRequestSetStringParameter", TEXT, TEXT)
    set_int_parameter = method("InferenceRequestSetIntParameter", TEXT, INT64)
    set_bool_parameter = method("InferenceRequestSetBoolParameter", TEXT, _calls.BOOL)
    set_double_parameter = method("InferenceRequestSetDoubleParameter", TEXT, _calls.DOUBLE)
    cancel = method("InferenceRequestCancel")

    def add_input(
        self, name: str, data_type: TRITONSERVER_DataType, shape: Sequence[int]
    ) -> None:
        """Adds an input without elements."""
        numbers = [INT64.convert(dim) for dim in shape]
        array = (ctypes.c_int64 * len(numbers))(*numbers)
        kind = one_of(TRITONSERVER_DataType).convert(data_type)
        count = ctypes.c_uint64(len(numbers))
        call = function("InferenceRequestAddInput")
        check(call(self.handle, TEXT.convert(name), kind, array, count))

    def send(self, server: Handle, trace: Handle | None) -> None:
        """Hands the request to a server, which keeps it until its release."""
        number = next(_numbers)
        user = ctypes.c_void_p(number)
        set_response = function("InferenceRequestSetResponseCallback")
        check(function("InferenceRequestSetReleaseCallback")(self.handle, _on_release, user))
        check(set_response(self.handle, _ALLOCATOR.handle, None, _on_response, user))
        _sent[number] = _awaited[number] = self
        try:
            traced = None if trace is None else trace.handle
            check(function("ServerInferAsync")(server.handle, self.handle, traced))
        except Exception:
            _sent.pop(number, None)
            _awaited.pop(number, None)
            raise

    def get_next_response(self, future: Any) -> None:
        """Resolves a future with the next response and its flags, now or when it arrives.

        The future is one of asyncio or of `concurrent.futures`. Only one may wait at a time.
        """
        with self._lock:
            if not self._responses:
                if self._future is not None:
                    raise AlreadyExistsError("cannot call GetNextResponse concurrently")
                self._future = future
                return
            response = self._responses.popleft()
        _complete(future, response)

    def _deliver(self, response: tuple[Any, int]) -> None:
        with self._lock:
            future, self._future = self._future, None
            if future is None:
                self._responses.append(response)
                return
        _complete(future, response)


def _complete(future: Any, response: tuple[Any, int]) -> None:
    """Resolves a future, on its loop's thread if it has a loop."""
    def set_result() -> None:
        if not future.done():
            future.set_result(response)

    if hasattr(future, "get_loop"):
        future.get_loop().call_soon_threadsafe(set_result)
    else:
        set_result()
