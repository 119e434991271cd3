"""`InferenceResponseSender`: answers a request from any thread, once or many times."""

from __future__ import annotations

import threading
from struct import Struct
from typing import Any, List, Optional

from . import state
from .errors import TritonModelException
from .native import (UINT32, Made, Parameter, Signature, anything, declared, instance,
                     native)
from .numbers import B_RESPONSE
from .response import InferenceResponse
from .wire import NO_RESPONSE_BYTE, Blocks, put_response

RESPONSE_COMPLETE_FINAL = 1

_pack_head = Struct("<BQI").pack
_state_lock = threading.Lock()


def _send(self: Any, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
    """Sends a response, or none with the final flag.

    `flags` is 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL.
    """


_send.__name__ = "send"
_send.__qualname__ = "InferenceResponseSender.send"
_SEND = Signature(
    "send(self: c_python_backend_utils.InferenceResponseSender, response: "
    "c_python_backend_utils.InferenceResponse = None, flags: int = 0) -> None",
    Parameter("", anything),
    Parameter("response", instance(InferenceResponse), None, may_be_none=True),
    Parameter("flags", UINT32, 0))


class InferenceResponseSender(Made):
    """Sends responses to one request."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_key", "_wanted", "_closed", "_sent", "_silent", "__weakref__")

    _key: int
    _wanted: Optional[frozenset]
    _closed: bool
    _sent: int
    #: Set if the server does not need to learn about the end, because it already has the answer.
    _silent: bool

    @declared(_send)
    def send(self, *args: Any, **named: Any) -> None:
        response = args[0] if args else named.get("response")
        flags = args[1] if len(args) > 1 else named.get("flags", 0)
        by_name = ("response" in named) + ("flags" in named)
        if by_name != len(named) or len(args) + by_name > 2 or (args and "response" in named) \
                or type(flags) is not int or flags >> 1 \
                or (type(response) is not InferenceResponse and response is not None):
            _, response, flags = _SEND.bind((self, *args), named)
        if flags != RESPONSE_COMPLETE_FINAL and flags != 0:
            raise TritonModelException(
                "Unable to send response. Unsupported flag provided.")
        if response is None:
            if flags == 0:
                raise TritonModelException(
                    "Inference Response object must be provided when the response flags "
                    "is set to zero.")
        self._count(response is not None, flags)
        self._transmit(response, flags)

    @native("is_cancelled(self: c_python_backend_utils.InferenceResponseSender) -> bool",
            owner=lambda: InferenceResponseSender)
    def is_cancelled(self) -> bool:
        """True if the client has cancelled the request."""
        return self._key in state.cancelled

    def _count(self, has_response: bool, flags: int) -> None:
        """Checks that a response is allowed now, and counts it."""
        if self._key == 0:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the "
                "decoupled state of the model.")
        with _state_lock:
            if not state.decoupled:
                if has_response and self._sent > 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more "
                        "than one response.")
                if not has_response and flags and self._sent == 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send "
                        "complete final before sending a response.")
            if self._closed:
                raise TritonModelException(
                    "Unable to send response. Response sender has been closed.")
            if flags:
                self._closed = True
                self._silent = True
            self._sent += 1

    def _transmit(self, response: Optional[InferenceResponse], flags: int) -> None:
        """Sends the frame; answers a response that can't be sent with an error."""
        pause = state.paused.get(self._key)
        if pause is not None:
            pause.wait()
        state.OUTPUTS.wait_for_server()
        blocks = Blocks()
        parts: List[bytes] = [_pack_head(B_RESPONSE, self._key, flags)]
        try:
            put_response(parts, response, self._wanted, blocks)
            if blocks.outputs:
                state.OUTPUTS.mark_sent(blocks.outputs)
            for offset in blocks.inputs:
                state.INPUTS.name_on_side(offset)
            state.side.send(b"".join(parts))
        except BaseException:
            state.OUTPUTS.free(blocks.outputs)
            if flags:
                self._silent = False
            raise

    def _close(self) -> None:
        """Ends the sender silently: the request is answered otherwise."""
        with _state_lock:
            self._closed = True
            self._silent = True

    def _end(self) -> None:
        """Ends the sender with the final flag: the responses that it has sent are the answer."""
        with _state_lock:
            self._closed = True
            is_told, self._silent = self._silent, True
        if not is_told:
            state.side.post(_pack_head(B_RESPONSE, self._key, 1) + NO_RESPONSE_BYTE)

    def __del__(self) -> None:
        # If a model drops the sender before the final response, the client would wait forever.
        try:
            if not self._silent and self._key:
                state.side.post(_pack_head(B_RESPONSE, self._key, 1) + NO_RESPONSE_BYTE)
        except (NameError, AttributeError, TypeError):
            pass  # the interpreter is ending, or the sender was never finished


_new = object.__new__


def make_sender(key: int, wanted: Optional[frozenset],
                closed: bool) -> InferenceResponseSender:
    """Creates a sender for a request, which may already have been answered."""
    sender = _new(InferenceResponseSender)
    sender._key = key
    sender._wanted = wanted
    sender._closed = closed
    sender._sent = 0
    sender._silent = closed
    return sender


def after_fork() -> None:
    """Another thread may have held the lock when the process was forked."""
    global _state_lock
    _state_lock = threading.Lock()


def account_returned(request: Any) -> None:
    """Counts the response that `execute` returned for a request."""
    sender = request._sender
    if sender is not None:
        sender._count(True, RESPONSE_COMPLETE_FINAL)
