"""`Logger`: lines of a model in the server's log."""

from __future__ import annotations

import sys
from struct import Struct
from typing import Any

from . import state
from .enums import NamedEnum, as_text, demand
from .wire import B_LOG, put_text

VERBOSE, INFO, WARNING, ERROR = range(4)
_pack_head = Struct("<BB").pack
_pack_line = Struct("<I").pack


def _send(level: int, message: str, frame: Any) -> None:
    message = as_text("message", message)
    state.side.send(_pack_head(B_LOG, level) + put_text(frame.f_code.co_filename)
                    + _pack_line(frame.f_lineno) + put_text(message))


def log_internal(level: int, message: str) -> None:
    """Logs for the worker itself."""
    _send(level, message, sys._getframe(1))


class LogLevel(NamedEnum):
    """Levels of `Logger.log`, with Triton's numbers."""

    __module__ = "c_python_backend_utils"
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


#: Levels on the wire by levels of `Logger.log`.
_LEVELS = (INFO, WARNING, ERROR, VERBOSE)


class Logger:
    """Writes to the server's log, with file and line of the caller."""

    __module__ = "c_python_backend_utils"
    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Logs a message at a level."""
        demand("level", level, LogLevel)
        _send(_LEVELS[level], message, sys._getframe(1))

    @staticmethod
    def log_info(message: str) -> None:
        """Logs a message at the level INFO."""
        _send(INFO, message, sys._getframe(1))

    @staticmethod
    def log_warn(message: str) -> None:
        """Logs a message at the level WARNING."""
        _send(WARNING, message, sys._getframe(1))

    @staticmethod
    def log_error(message: str) -> None:
        """Logs a message at the level ERROR."""
        _send(ERROR, message, sys._getframe(1))

    @staticmethod
    def log_verbose(message: str) -> None:
        """Logs a message at the level VERBOSE."""
        _send(VERBOSE, message, sys._getframe(1))
