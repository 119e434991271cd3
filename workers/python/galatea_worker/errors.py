"""Errors of a worker, and the text of an exception that the server shows."""

from __future__ import annotations

import os
import sys
from typing import List, NoReturn, Optional, Tuple

#: The error for operations in processes that only the model knows about.
LOST = "only the process of the model can speak to the server, not its children"
#: The exit status of a worker to which the server sent nonsense.
EXIT_NONSENSE = 70
#: The length beyond which texts of exceptions are cut, because they must fit in a frame.
TEXT_LENGTH_MAX = 1 << 22
#: The prefix of the file names of the worker's own code, which is left out of texts.
OWN_FILES = "<galatea worker>"


class TritonModelException(Exception):
    """Raised by `triton_python_backend_utils` when a model misuses it."""


TritonModelException.__module__ = "c_python_backend_utils"


class WireError(Exception):
    """The server sent something that violates the protocol."""


class BackendError(TritonModelException):
    """A mistake in the model's return value; its text has no class and no source location."""


def format_exception(error: BaseException, hidden: Tuple[str, ...] = ()) -> str:
    """Formats an exception: class, message, then the frames from the innermost outwards.

    Leaves out frames of files whose names begin with an element of `hidden`.

    The form is pybind11's, which clients of Triton know:
    ``ValueError: text\\n\\nAt:\\n  FILE(LINE): FUNCTION\\n``.
    """
    if isinstance(error, BackendError):
        return str(error)
    message, failure = _message(error)
    text = f"{type(error).__name__}: {message}"
    frames = _frames(error, hidden)
    if frames:
        text += "\n\nAt:\n" + "".join(frames)
    if failure:
        text += "\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: " + failure
    return text[:TEXT_LENGTH_MAX]


def _message(error: BaseException) -> Tuple[str, str]:
    """Returns an exception's message with its notes, and the reason if there is none."""
    try:
        text = str(error)
    except Exception as failure:  # a model's own __str__ may fail
        return ("<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>",
                f"{type(failure).__name__}: {failure}")
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        text += f"\n\n__notes__ (len={len(notes)}):"
        text += "".join("\n" + str(note) for note in notes)
    return text or "<EMPTY MESSAGE>", ""


def _frames(error: BaseException, hidden: Tuple[str, ...]) -> List[str]:
    """Lines of the frames that belong to the model and what it called."""
    trace = error.__traceback__
    while trace is not None and _is_own(trace.tb_frame):
        trace = trace.tb_next
    if trace is None:
        return []
    while trace.tb_next is not None:
        trace = trace.tb_next
    lines = []
    frame = trace.tb_frame
    while frame is not None:
        if not _is_own(frame) and not frame.f_code.co_filename.startswith(hidden):
            code = frame.f_code
            lines.append(f"  {code.co_filename}({frame.f_lineno}): {code.co_name}\n")
        frame = frame.f_back
    return lines


def _is_own(frame) -> bool:
    """True if a frame runs the worker's own code."""
    file = frame.f_code.co_filename
    if file.startswith(OWN_FILES):
        return True
    return file == "<string>" and frame.f_back is None


def forget(error: Optional[BaseException]) -> None:
    """Drops an exception's references, so that its tensors are released now."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def complain(text: str) -> None:
    """Writes one line to standard error."""
    try:
        sys.stdout.flush()
        sys.stderr.write(f"python worker: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def leave(code: int) -> NoReturn:
    """Ends the process without steps in which a broken model might hang."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        pass
    os._exit(code)


def die_of_nonsense(error: BaseException) -> NoReturn:
    """Ends the process, because the server's messages can't be trusted any more."""
    complain(f"the server sent nonsense: {error}")
    leave(EXIT_NONSENSE)
