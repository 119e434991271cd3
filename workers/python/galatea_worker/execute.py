"""One execution: requests in, one result frame out."""

from __future__ import annotations

from struct import Struct
from typing import Any, List

from . import state
from .arena import INPUTS, OUTPUTS
from .channel import FRAME_BYTES_MAX, Closed
from .errors import BackendError, forget, format_exception
from .numbers import RESULT
from .request import RELEASE_ALL, RELEASE_RESCHEDULE, InferenceRequest, Own, get_requests
from .response import InferenceResponse, TritonError
from .sender import account_returned
from .wire import NO_RESPONSE_BYTE, Blocks, pack_u32, pack_u64, put_offsets, put_response, put_text

_pack_count = Struct("<BBI").pack
_pack_head = Struct("<QI").pack
_NO_RELEASES = b"\0\0\0\0"
_ANSWERED, _NOTHING, _FAILED = 0, 1, 2
_INTERNAL = 1


class Executor:
    """Runs the model's `execute` for one frame after another."""

    __slots__ = ("_model", "_own", "_blocks")

    def __init__(self, model: Any, own: Own) -> None:
        self._model = model
        self._own = own
        #: Output blocks of the last result, which are free once the server sends another frame.
        self._blocks = Blocks()

    def execute(self, data: Any) -> bytes:
        """Executes a frame of requests; returns the result frame with its length."""
        INPUTS.executing = True
        requests = get_requests(data, self._own)
        data = None
        blocks = Blocks()
        try:
            parts = self._run(requests, blocks)
        except Closed:  # while another model was called
            raise
        except BaseException as error:  # SystemExit too: the worker goes on
            OUTPUTS.free(blocks.outputs)
            blocks = Blocks()
            parts = _failed(requests, error, blocks)
        del requests
        self._blocks = blocks
        return _finish(parts, blocks)

    def server_has_read(self) -> None:
        """Takes back the blocks of the last result, because the server has copied them."""
        blocks = self._blocks
        if blocks.outputs:
            OUTPUTS.free(blocks.outputs)
            blocks.outputs = []
        if blocks.inputs:
            INPUTS.next_frame()
            blocks.inputs = []

    def _run(self, requests: List[InferenceRequest], blocks: Blocks) -> List[bytes]:
        """Calls `execute` and encodes its return value."""
        try:
            execute = self._model.execute
        except AttributeError:
            raise BackendError(
                f"Python model {state.model_path} does not implement `execute` "
                "method.") from None
        returned = execute(requests)
        if type(returned) is not list and returned is not None:
            from . import coroutines
            if coroutines.is_coroutine(returned):
                if state.decoupled:
                    parts = _nothing(requests)
                    coroutines.run_in_background(returned)
                    return parts
                returned = coroutines.run(returned)
        if returned is None:
            return _nothing(requests)
        return _answered(requests, returned, blocks)


def _nothing(requests: List[InferenceRequest]) -> List[bytes]:
    """Returns a result without responses: senders answer, now or later."""
    parts = [_pack_count(RESULT, _NOTHING, len(requests))]
    for request in requests:
        parts.append(_pack_head(request._key, request._release_flags) + NO_RESPONSE_BYTE)
        _leave_to_sender(request)
    return parts


def _leave_to_sender(request: InferenceRequest) -> None:
    """Leaves the answer to the request's sender, or to the sender's end."""
    sender = request.get_response_sender()
    if request._release_flags == RELEASE_RESCHEDULE:
        sender._close()


def _answered(requests: List[InferenceRequest], returned: Any,
              blocks: Blocks) -> List[bytes]:
    """Result with the responses that `execute` returned."""
    _check_returned(requests, returned)
    for request, response in zip(requests, returned):
        if type(response) is InferenceResponse and request._sender is None \
                and request._release_flags != RELEASE_RESCHEDULE:
            continue
        if response is not None:
            _check_response(request, response)
    parts = [_pack_count(RESULT, _ANSWERED, len(requests))]
    for request, response in zip(requests, returned):
        parts.append(_pack_head(request._key, request._release_flags))
        put_response(parts, response, request._wanted, blocks)
        if response is None:
            _leave_to_sender(request)
        else:
            request._done = True
    return parts


def _check_returned(requests: List[InferenceRequest], returned: Any) -> None:
    """Checks the return value of `execute` as a whole."""
    if state.decoupled:
        raise BackendError(
            f"Python model '{state.instance_name}' is using the decoupled mode and the "
            "execute function must return None.")
    if type(returned) is not list and not isinstance(returned, list):
        raise BackendError(
            f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(requests) != len(returned):
        raise BackendError(
            "Number of InferenceResponse objects do not match the number of "
            f"InferenceRequest objects. InferenceRequest(s) size is:{len(requests)}, and "
            f"InferenceResponse(s) size is:{len(returned)}\n")


def _check_response(request: InferenceRequest, response: Any) -> None:
    """Checks one element of the list that `execute` returned."""
    if request._release_flags == RELEASE_RESCHEDULE:
        raise BackendError(
            "Expected a None object in the execute function return list for reschduled "
            f"request, found type '{type(response)}'.")
    if not isinstance(response, InferenceResponse):
        raise BackendError(
            "Expected an 'InferenceResponse' object in the execute function return "
            f"list, found type '{type(response)}'.")
    try:
        account_returned(request)
    except Exception as error:
        raise BackendError(str(error)) from None


def failure_text(error: BaseException) -> str:
    """Returns the text that a client reads about an exception in its execution."""
    return (f"Failed to process the request(s) for model '{state.instance_name}', "
            f"message: {format_exception(error)}")


def _failed(requests: List[InferenceRequest], error: BaseException,
            blocks: Blocks) -> List[bytes]:
    """Fails all requests except those whose single response has already been sent."""
    text = failure_text(error)
    forget(error)
    if not state.decoupled and any(map(_is_waiting_for_the_end, requests)):
        return _failed_apart(requests, text, blocks)
    for request in requests:
        request._done = True
        if request._sender is not None:
            request._sender._close()
    return [bytes((RESULT, _FAILED, _INTERNAL)) + put_text(text)]


def _is_waiting_for_the_end(request: InferenceRequest) -> bool:
    """True if a response was sent to a request, and not the final flag."""
    sender = request._sender
    return sender is not None and sender._sent > 0 and not sender._silent


def _failed_apart(requests: List[InferenceRequest], text: str, blocks: Blocks) -> List[bytes]:
    """Returns an error for each request without a response: a client keeps what it received."""
    parts = [_pack_count(RESULT, _ANSWERED, len(requests))]
    for request in requests:
        parts.append(_pack_head(request._key, RELEASE_ALL))
        if _is_waiting_for_the_end(request):
            parts.append(NO_RESPONSE_BYTE)
            request._sender._end()  # type: ignore[union-attr]
            continue
        put_response(parts, InferenceResponse(error=TritonError(text)), None, blocks)
        request._done = True
        if request._sender is not None:
            request._sender._close()
    return parts


def _finish(parts: List[bytes], blocks: Blocks) -> bytes:
    """Appends the input blocks that nothing uses any more."""
    INPUTS.executing = False
    released = INPUTS.take_released()
    parts.append(put_offsets(released) if released else _NO_RELEASES)
    parts.append(pack_u64(state.side.sent))
    if blocks.inputs:
        INPUTS.hold(blocks.inputs, released)
    body = b"".join(parts)
    if len(body) > FRAME_BYTES_MAX:
        error = BackendError(f"the responses of {len(body)} bytes are longer than "
                             f"{FRAME_BYTES_MAX} bytes")
        return _finish_again(_failed([], error, Blocks()), parts[-2:])
    return pack_u32(len(body)) + body


def _finish_again(parts: List[bytes], trailer: List[bytes]) -> bytes:
    """Replaces an overlong result by a failure with the same trailer."""
    body = b"".join(parts + trailer)
    return pack_u32(len(body)) + body
