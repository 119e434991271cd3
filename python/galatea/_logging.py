"""Lines of the program in the server's log."""

from __future__ import annotations

import os
import sys

from . import _galatea
from ._enums import LogLevel


def LogMessage(level: LogLevel, message: str) -> None:
    """Writes a line to the server's log, with the caller's place."""
    frame = sys._getframe(1)
    file = os.path.basename(frame.f_code.co_filename)
    _galatea.log_message(int(level), file, frame.f_lineno, message)
