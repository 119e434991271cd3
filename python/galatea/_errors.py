"""Errors as exceptions, with the names of Triton's."""

from __future__ import annotations

from typing import Any, ClassVar


class TritonError(Exception):
    """An error of the server. The first argument is its message."""

    #: The name of the error's code in C, without its prefix.
    code: ClassVar[str] = "UNKNOWN"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the error without the response, which belongs to a server of this process."""
        return type(self), self.args[:1]


class UnknownError(TritonError):
    """A failure that fits no other class."""


class InternalError(TritonError):
    """The server broke one of its own rules, or a model failed."""

    code = "INTERNAL"


class NotFoundError(TritonError):
    """A model, a version or an item does not exist."""

    code = "NOT_FOUND"


class InvalidArgumentError(TritonError):
    """The arguments are wrong; a retry does not help."""

    code = "INVALID_ARG"


class UnavailableError(TritonError):
    """The server can't do it at the moment; a later retry may help."""

    code = "UNAVAILABLE"


class UnsupportedError(TritonError):
    """The server or the model does not support it."""

    code = "UNSUPPORTED"


class AlreadyExistsError(TritonError):
    """The object to be created already exists."""

    code = "ALREADY_EXISTS"


class CancelledError(UnknownError):
    """The request was cancelled. Triton's package raises :class:`UnknownError`."""

    code = "CANCELLED"


#: The public errors, in the modules that programs import.
ERRORS = (
    TritonError,
    UnknownError,
    InternalError,
    NotFoundError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
    AlreadyExistsError,
    CancelledError,
)
