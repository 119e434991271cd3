"""Triton's private module for lines of the log."""

from galatea import (
    LogLevel,
    LogMessage,
)

__all__ = [
    "LogLevel",
    "LogMessage",
]
