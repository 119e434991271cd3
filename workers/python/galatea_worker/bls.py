"""Calls of other models: `exec`, `async_exec` and iterators of responses.

A call from the executing thread goes over socket A, which that thread has to itself. All other
calls, and streams, go over socket B; its reader passes the replies on.
"""

from __future__ import annotations

import itertools
import threading
from queue import SimpleQueue
from struct import Struct
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import state
from .arena import INPUTS, OUTPUTS
from .errors import TritonModelException, WireError, die_of_nonsense
from .forms import Forms
from .memory import encode_memory
from .numbers import B_CALL, B_CANCEL_CALL, CALL, CALL_REPLY
from .response import InferenceResponse, TritonError, response_of, response_with
from .wire import (
    Blocks, StructError, finish, get_response, pack_u32, put_tensor, put_text)

_LAST, _HAS_RESPONSE = 1, 2
_get_reply = Struct("<QB").unpack_from
_pack_begin = Struct("<BQBQ").pack
_pack_version = Struct("<q").pack
_pack_number = Struct("<BQ").pack
_pack_middle = Struct("<IQQ").pack
_pack_cancel = Struct("<BQ").pack

_ids = itertools.count(1)
_calls: Dict[int, "Call"] = {}
#: Calls on A that an exception in the model interrupted: their replies still arrive.
_abandoned: List[int] = []


#: Receives a response, and true if it is the last one.
Take = Callable[[InferenceResponse, bool], None]


class Call:
    """A call on B that has not received all of its replies."""

    __slots__ = ("id", "stream", "blocks", "request", "take")

    def __init__(self, request: Any, stream: bool, take: Take) -> None:
        self.id = next(_ids)
        self.stream = stream
        self.blocks = Blocks()
        # The server may read the inputs until it replies.
        self.request = request
        self.take = take


def _check_allowed() -> None:
    if not state.initialized or state.finalizing:
        raise TritonModelException("BLS is only supported during the 'execute' function.")


#: The repeated part of calls to the same model: everything between the call and its inputs, for
#: requests without special settings.
_heads: Dict[Any, bytes] = {}
_HEADS_MAX = 1024


def _head(request: Any) -> bytes:
    """Encodes the part of a request between its call's trace and its inputs."""
    if request._id or request._correlation or request._flags or request._timeout \
            or request._preferred is not None or request._parameters != "{}":
        return _make_head(request)
    key = (request._model_name, request._model_version, request._wanted)
    head = _heads.get(key)
    if head is None:
        head = _make_head(request)
        if len(_heads) >= _HEADS_MAX:
            _heads.clear()
        _heads[key] = head
    return head


def _make_head(request: Any) -> bytes:
    correlation = request._correlation
    if isinstance(correlation, str):
        correlation = b"\2" + put_text(correlation)
    else:
        correlation = _pack_number(1, correlation) if correlation else b"\0"
    parameters = request._parameters
    if type(parameters) is not str:
        raise TritonModelException(
            f"Model {request._model_name} - Error when running inference: {parameters.WHY}")
    wanted = sorted(request._wanted or ())
    return b"".join((
        put_text(request._model_name), _pack_version(request._model_version),
        put_text(request._id), correlation,
        _pack_middle(request._flags, request._timeout, 0),
        encode_memory(request._preferred),
        put_text("" if parameters == "{}" else parameters),
        pack_u32(len(wanted)), *map(put_text, wanted)))


def _encode(kind: int, call_id: int, stream: bool, request: Any, blocks: Blocks) -> bytes:
    """Encodes the body of a CALL frame."""
    trace, inputs = request._trace, request._inputs
    parts = [_pack_begin(kind, call_id, stream, 0 if trace is None else trace._key),
             _head(request), pack_u32(len(inputs))]
    try:
        for tensor in inputs:
            put_tensor(parts, tensor, blocks)
    except BaseException:
        OUTPUTS.free(blocks.outputs)
        raise
    return b"".join(parts)


def _error(text: str) -> InferenceResponse:
    return InferenceResponse(error=TritonError(text))


#: Replies with tensors, after the number of their call.
_forms = Forms(13)


def _decode(data: Any, position: int, flags: int) -> Optional[InferenceResponse]:
    """Decodes the response of a CALL_REPLY; None if it has none."""
    found = _forms.find(data)
    if found is not None:
        return response_with(found[0])
    if not flags & _HAS_RESPONSE:
        finish(data, position)
        return None
    decoded, position = get_response(data, position)
    finish(data, position)
    if decoded is None:
        return None
    tensors, parameters, _ = decoded
    if tensors and not parameters:
        _forms.learn(data, tensors, None)
    return response_of(decoded)


def _empty(last: bool, stream: bool) -> InferenceResponse:
    """Returns what a model sees of a reply without a response."""
    if stream and last:
        return InferenceResponse()
    return _error("Unexpected empty response.")


def execute(request: Any, decoupled: bool) -> Any:
    """Calls a model and waits for its response; with `decoupled`, returns an iterator."""
    _check_allowed()
    if decoupled:
        responses = ResponseIterator()
        _start(request, True, responses._take, responses)
        return responses
    if INPUTS.executing and threading.get_ident() == state.main_thread:
        return _execute_on_a(request)
    replies: SimpleQueue = SimpleQueue()
    _start(request, False, lambda response, last: replies.put(response))
    return replies.get()


def _execute_on_a(request: Any) -> InferenceResponse:
    """Calls from the executing thread: one frame there, one back."""
    blocks = Blocks()
    call_id = next(_ids)
    try:
        body = _encode(CALL, call_id, False, request, blocks)
    except TritonModelException as error:
        return _error(str(error))
    try:
        data = state.exchange(body)
        while True:
            if data[4] != CALL_REPLY:
                raise WireError(f"a frame of kind {data[4]} instead of a reply")
            replied, flags = _get_reply(data, 5)
            if replied == call_id:
                break
            skip_abandoned(replied)
            data = state.read_a()
        response = _decode(data, 14, flags)
    except (WireError, StructError, IndexError) as error:
        die_of_nonsense(error)  # the model must not catch this
    except BaseException:
        _abandoned.append(call_id)
        raise
    if blocks.outputs:
        OUTPUTS.free(blocks.outputs)
    return _empty(True, False) if response is None else response


def skip_abandoned(call_id: int) -> None:
    """Skips a reply that no call awaits any more; refuses one that was never awaited."""
    if call_id not in _abandoned:
        raise WireError(f"a reply to call {call_id}, which isn't waiting")
    _abandoned.remove(call_id)


def skip_reply(data: Any) -> None:
    """Skips a CALL_REPLY on A outside a call."""
    call_id, flags = _get_reply(data, 5)
    skip_abandoned(call_id)
    _decode(data, 14, flags)


def _start(request: Any, stream: bool, take: Take,
           responses: Optional["ResponseIterator"] = None) -> Call:
    """Sends a call on B; answers a call that can't be sent with an error response."""
    call = Call(request, stream, take)
    if responses is not None:
        responses._call_id = call.id
    try:
        body = _encode(B_CALL, call.id, stream, request, call.blocks)
    except TritonModelException as error:
        take(_error(str(error)), True)
        return call
    _calls[call.id] = call
    try:
        state.side.send(body)
    except BaseException as error:
        _calls.pop(call.id, None)
        OUTPUTS.free(call.blocks.outputs)
        take(_error(str(error)), True)
        if not isinstance(error, Exception):
            raise
    return call


def take_reply(data: Any) -> None:
    """Handles a CALL_REPLY on B."""
    call_id, flags = _get_reply(data, 5)
    last = bool(flags & _LAST)
    response = _decode(data, 14, flags)
    call = _calls.pop(call_id, None) if last else _calls.get(call_id)
    if call is None:
        raise WireError(f"a reply to call {call_id}, which isn't waiting")
    if response is None:
        if not last:
            raise WireError(f"a reply to call {call_id} without a response")
        response = _empty(last, call.stream)
    call.take(response, last)


def execute_async(request: Any, decoupled: bool) -> Any:
    """Calls a model; returns a future of its response, or of an iterator."""
    import asyncio
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    try:
        _check_allowed()
    except TritonModelException as error:
        future.set_exception(error)
        return future

    def settle(value: Any) -> None:
        if not future.done():
            future.set_result(value)

    def tell(value: Any) -> None:
        try:
            loop.call_soon_threadsafe(settle, value)
        except RuntimeError:
            pass  # the loop was closed meanwhile

    if decoupled:
        responses = ResponseIterator()
        # The iterator is returned once its first response has arrived, as in Triton.
        responses._first = lambda: tell(responses)
        _start(request, True, responses._take, responses)
    else:
        _start(request, False, lambda response, last: tell(response))
    return future


class ResponseIterator:
    """The responses of a decoupled model, in order of arrival.

    A finished iterator can be iterated again from the beginning.
    """

    __module__ = "c_python_backend_utils"
    def __init__(self) -> None:
        self._call_id = 0
        self._queue: SimpleQueue = SimpleQueue()
        self._responses: List[InferenceResponse] = []
        self._next = 0
        self._finished = False
        self._first: Optional[Callable[[], None]] = None

    def _take(self, response: InferenceResponse, last: bool) -> None:
        """Takes the next response."""
        self._queue.put((response, last))
        first, self._first = self._first, None
        if first is not None:
            first()

    def __iter__(self) -> "ResponseIterator":
        if self._finished and self._next >= len(self._responses):
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        """Waits for the next response and returns it."""
        if self._finished:
            if self._next < len(self._responses):
                self._next += 1
                return self._responses[self._next - 1]
            raise StopIteration("Iteration is done for the responses.")
        response, last = self._queue.get()
        self._responses.append(response)
        self._next = len(self._responses)
        self._finished = last
        return response

    def cancel(self) -> None:
        """Asks the called model to stop; its last response still arrives."""
        if not self._finished:
            state.side.send(_pack_cancel(B_CANCEL_CALL, self._call_id))
