"""`Logger`: lines of a model in the server's log."""

from __future__ import annotations

import sys
from struct import Struct
from typing import Any

from . import state
from .enums import NamedEnum, enumeration
from .native import Made, Parameter, instance, native, text
from .numbers import B_LOG
from .wire import put_text

VERBOSE, INFO, WARNING, ERROR = range(4)
_pack_head = Struct("<BB").pack
_pack_line = Struct("<I").pack


def _send(level: int, message: str, frame: Any) -> None:
    state.side.send(_pack_head(B_LOG, level) + put_text(frame.f_code.co_filename)
                    + _pack_line(frame.f_lineno) + put_text(message))


def _log(level: int, message: str) -> None:
    """Logs on behalf of the caller's caller, because the caller is a front."""
    _send(level, message, sys._getframe(3))


def log_internal(level: int, message: str) -> None:
    """Logs on behalf of the worker itself."""
    _send(level, message, sys._getframe(1))


@enumeration
class LogLevel(NamedEnum):
    """Levels of `Logger.log`, with Triton's numbers."""

    __module__ = "c_python_backend_utils"
    __qualname__ = "Logger.LogLevel"
    __slots__ = ()
    _names = ("INFO", "WARNING", "ERROR", "VERBOSE")


#: Levels on the wire by levels of `Logger.log`.
_LEVELS = (INFO, WARNING, ERROR, VERBOSE)


_MESSAGE = Parameter("message", text, may_be_none=True)


class Logger(Made):
    """Writes to the server's log, with file and line of the caller."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()
    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    @native("log(message: str, level: c_python_backend_utils.Logger.LogLevel = "
            "<LogLevel.INFO: 0>) -> None",
            _MESSAGE, Parameter("level", instance(LogLevel), LogLevel.INFO))
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Logs a message at a level."""
        _log(_LEVELS[level.value], message)

    @staticmethod
    @native("log_info(message: str) -> None", _MESSAGE)
    def log_info(message: str) -> None:
        """Logs a message at the level INFO."""
        _log(INFO, message)

    @staticmethod
    @native("log_warn(message: str) -> None", _MESSAGE)
    def log_warn(message: str) -> None:
        """Logs a message at the level WARNING."""
        _log(WARNING, message)

    @staticmethod
    @native("log_error(message: str) -> None", _MESSAGE)
    def log_error(message: str) -> None:
        """Logs a message at the level ERROR."""
        _log(ERROR, message)

    @staticmethod
    @native("log_verbose(message: str) -> None", _MESSAGE)
    def log_verbose(message: str) -> None:
        """Logs a message at the level VERBOSE."""
        _log(VERBOSE, message)
