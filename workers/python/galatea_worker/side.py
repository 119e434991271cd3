"""The thread that reads socket B: cancellations, freed blocks, answers."""

from __future__ import annotations

import socket
from typing import Any

from . import state
from .channel import Closed, reader
from .errors import WireError, die_of_nonsense, leave
from .numbers import (
    B_CALL_REPLY, B_CANCELLED, B_FREE, B_IS_READY, B_PAUSE, B_REPLY, B_RESUME)
from .wire import StructError, finish, get_offsets, get_u64


def run(sock: socket.socket) -> None:
    """Reads frames until the server closes the socket."""
    read = reader(sock, both_ways=True).read
    try:
        while True:
            _take(read())
    except (Closed, OSError):
        if state.finalizing:
            return
    except (WireError, StructError, IndexError, ValueError, OverflowError) as error:
        die_of_nonsense(error)
    leave(1)


def _take(data: Any) -> None:
    """Handles a frame."""
    kind = data[4]
    if kind == B_FREE:
        state.OUTPUTS.free(get_offsets(data, 5), strict=True)
    elif kind == B_CANCELLED:
        finish(data, 13)
        state.cancel(get_u64(data, 5)[0])
    elif kind == B_PAUSE:
        finish(data, 13)
        state.pause(get_u64(data, 5)[0])
    elif kind == B_RESUME:
        finish(data, 13)
        state.resume(get_u64(data, 5)[0])
    elif kind == B_IS_READY:
        finish(data, 13)
        from . import readiness
        readiness.ask(get_u64(data, 5)[0])
    elif kind == B_CALL_REPLY:
        from . import bls
        bls.take_reply(data)
    elif kind == B_REPLY:
        from . import control
        control.take_reply(data)
    else:
        raise WireError(f"a frame of kind {kind} on socket B")
