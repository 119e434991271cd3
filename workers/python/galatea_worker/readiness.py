"""`is_ready` of a model, which is asked alongside executions.

The check runs in a thread of its own: neither an execution nor the reader of socket B waits for
it.
"""

from __future__ import annotations

import _thread
from queue import SimpleQueue
from struct import Struct
from typing import Any, Optional

from . import state
from .errors import BackendError, WireError, forget, format_exception
from .numbers import B_READY
from .wire import put_text

_pack_head = Struct("<BQB").pack
_NO, _YES, _FAILED = 0, 1, 2
_INTERNAL = b"\1"

#: Questions that the thread has not answered yet; None until the model exists.
_questions: Optional["SimpleQueue[int]"] = None


def start(model: Any) -> None:
    """Starts answering questions."""
    global _questions
    _questions = SimpleQueue()
    # Not started with `threading`, whose frames would appear in the texts of exceptions.
    _thread.start_new_thread(_run, (model, _questions))


def ask(number: int) -> None:
    """Handles the server's question if the model is ready."""
    if _questions is None:
        raise WireError("a question for the readiness of a model without is_ready")
    _questions.put(number)


def _run(model: Any, questions: "SimpleQueue[int]") -> None:
    while True:
        number = questions.get()
        try:
            ready = _is_ready(model)
        except BaseException as error:  # sys.exit too
            frame = _pack_head(B_READY, number, _FAILED) + _INTERNAL
            frame += put_text(format_exception(error))
            forget(error)
        else:
            frame = _pack_head(B_READY, number, _YES if ready else _NO)
        try:
            state.side.send(frame)
        except Exception:  # the server is gone, and with it soon this process
            return


def _is_ready(model: Any) -> bool:
    """Returns the model's answer; raises an error if it is not a boolean."""
    ready = model.is_ready()
    from . import coroutines
    if coroutines.is_coroutine(ready):
        ready = coroutines.run(ready)
    if not isinstance(ready, bool):
        raise BackendError("is_ready() must return a boolean value")
    return ready
