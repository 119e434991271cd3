"""Process state that the modules share."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict

from .arena import INPUTS, OUTPUTS
from .channel import NoChannel

#: Socket B.
side: Any = NoChannel()
#: Sends a body on A and returns the next frame; reads one frame from A.
exchange: Callable[[bytes], Any] = NoChannel.refuse
read_a: Callable[[], Any] = NoChannel.refuse
#: The thread that runs the main loop and the model's `execute`.
main_thread = threading.get_ident()
#: True if the model has the decoupled transaction policy.
decoupled = False
#: True if `initialize` has returned.
initialized = False
#: True if `finalize` has begun.
finalizing = False
#: Names of the model and its instance, and the model's version directory.
model_name = ""
instance_name = ""
model_dir = ""
#: Path of model.py.
model_path = ""
#: Keys of requests that clients have cancelled, the oldest first.
cancelled: Dict[int, None] = {}
#: The maximum number of cancelled requests that are remembered.
CANCELLED_MAX = 65536


#: Requests whose clients read slowly: their senders wait for the event.
paused: Dict[int, threading.Event] = {}


def pause(key: int) -> None:
    """Makes the sender of a request wait."""
    paused.setdefault(key, threading.Event())


def resume(key: int) -> None:
    """Makes the sender of a request continue."""
    event = paused.pop(key, None)
    if event is not None:
        event.set()


def cancel(key: int) -> None:
    """Remembers that a request is cancelled."""
    cancelled[key] = None
    resume(key)
    if len(cancelled) > CANCELLED_MAX:
        del cancelled[next(iter(cancelled))]


__all__ = ["INPUTS", "OUTPUTS", "cancel"]
