"""Calls of the C API, which the package's extension exports: arguments, results and errors.

An argument of a wrong type is a `TypeError`. An error of the server is raised as an exception. A
call never holds the interpreter lock.
"""

from __future__ import annotations

import ctypes
import enum
import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from galatea import _errors, _galatea

_library = ctypes.CDLL(_galatea.__file__)

#: The classes of errors by their codes in C.
_CLASSES: list[type[_errors.TritonError]] = [
    _errors.UnknownError,
    _errors.InternalError,
    _errors.NotFoundError,
    _errors.InvalidArgumentError,
    _errors.UnavailableError,
    _errors.UnsupportedError,
    _errors.AlreadyExistsError,
    _errors.CancelledError,
]


def function(name: str, result: Any = ctypes.c_void_p) -> Any:
    """A function of the C API, by its name without ``TRITONSERVER_``; most return an error."""
    found = _library[f"TRITONSERVER_{name}"]
    found.restype = result
    return found


_code = function("ErrorCode", ctypes.c_int)
_message = function("ErrorMessage", ctypes.c_char_p)
_delete = function("ErrorDelete", None)
_new = function("ErrorNew")


def exception(error: int) -> _errors.TritonError:
    """The exception for an error, which stays its owner's."""
    handle = ctypes.c_void_p(error)
    return _CLASSES[_code(handle)](_message(handle).decode())


def check(error: int | None) -> None:
    """Raises the error that a call returned."""
    if error:
        raised = exception(error)
        _delete(ctypes.c_void_p(error))
        raise raised


def error_of(raised: Exception) -> int:
    """Creates an error in C from an exception, for the server."""
    kinds = [code for code, kind in enumerate(_CLASSES) if isinstance(raised, kind)]
    message: int = _new(ctypes.c_int(kinds[-1] if kinds else 0), str(raised).encode())
    return message


class Argument(NamedTuple):
    """The conversion of an argument."""

    convert: Callable[[Any], Any]


class Result(NamedTuple):
    """A result that a call stores behind a pointer: its type in C, and the conversion of it."""

    ctype: Any
    convert: Callable[[Any], Any]


def _whole(ctype: Any, bits: int, signed: bool) -> Argument:
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def convert(value: Any) -> Any:
        number = operator.index(value)
        if not least <= number <= most:
            raise TypeError(f"{number} is not between {least} and {most}")
        return ctype(number)

    return Argument(convert)


def _text(value: Any) -> Any:
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes):
        raise TypeError(f"a text is needed, not {type(value).__name__}")
    return ctypes.c_char_p(value)


def one_of(kind: type[enum.IntEnum]) -> Argument:
    """An argument that is a value of an enumeration."""

    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"a {kind.__name__} is needed, not {type(value).__name__}")
        return ctypes.c_int(value)

    return Argument(convert)


def handle_of(kind: type[Handle]) -> Argument:
    """An argument that is an object of the C API."""

    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"a {kind.__name__} is needed, not {type(value).__name__}")
        return value.handle

    return Argument(convert)


INT = _whole(ctypes.c_int, 32, signed=True)
UNSIGNED = _whole(ctypes.c_uint32, 32, signed=False)
INT64 = _whole(ctypes.c_int64, 64, signed=True)
UNSIGNED64 = _whole(ctypes.c_uint64, 64, signed=False)
SIZE = _whole(ctypes.c_size_t, 64, signed=False)
ADDRESS = _whole(ctypes.c_void_p, 64, signed=False)
DOUBLE = Argument(lambda value: ctypes.c_double(value))
BOOL = Argument(lambda value: ctypes.c_bool(bool(value)))
TEXT = Argument(_text)

BOOL_RESULT = Result(ctypes.c_bool, bool)
DOUBLE_RESULT = Result(ctypes.c_double, float)
INT64_RESULT = Result(ctypes.c_int64, int)
UNSIGNED_RESULT = Result(ctypes.c_uint32, int)
UNSIGNED64_RESULT = Result(ctypes.c_uint64, int)
SIZE_RESULT = Result(ctypes.c_size_t, int)
ADDRESS_RESULT = Result(ctypes.c_void_p, lambda value: value or 0)
TEXT_RESULT = Result(ctypes.c_char_p, lambda value: (value or b"").decode())


def one_of_result(kind: type[enum.IntEnum]) -> Result:
    """A result that is a value of an enumeration."""
    return Result(ctypes.c_int, kind)


def owned_result(kind: type[Handle]) -> Result:
    """A result that is an object, which the caller owns."""
    return Result(ctypes.c_void_p, lambda value: kind._of(value, owned=True))


class Handle:
    """An object of the C API. An owned object is deleted with its last reference."""

    #: The name of the function that deletes such an object.
    _delete: str
    _owned = False

    def _adopt(self, address: int, *, owned: bool) -> None:
        self.handle = ctypes.c_void_p(address)
        self._owned = owned

    @classmethod
    def _of(cls, address: int, *, owned: bool) -> Any:
        made = cls.__new__(cls)
        made._adopt(address, owned=owned)
        return made

    def _make(self, name: str, *arguments: Any) -> None:
        """Creates the object with a function whose first argument receives it."""
        address = ctypes.c_void_p()
        check(function(name)(ctypes.byref(address), *arguments))
        self._adopt(address.value or 0, owned=True)

    def __del__(self) -> None:
        """Deletes the object. The last reference's owner can't be notified of an error."""
        if self._owned and not sys.is_finalizing():
            self._owned = False
            try:
                check(function(self._delete)(self.handle))
            except _errors.TritonError as error:
                print(error)


def handles(kind: type[Handle], values: Any) -> tuple[Any, int]:
    """An array of objects, and their number."""
    convert = handle_of(kind).convert
    addresses = [convert(value) for value in values]
    return (ctypes.c_void_p * len(addresses))(*addresses), len(addresses)


def method(name: str, *arguments: Argument, results: tuple[Result, ...] = ()) -> Any:
    """A method that passes the object first to a call. It returns the result, or a tuple."""
    call = function(name)

    def call_method(self: Handle, *values: Any) -> Any:
        if len(values) != len(arguments):
            raise TypeError(f"{name} takes {len(arguments)} arguments, not {len(values)}")
        converted = [one.convert(value) for one, value in zip(arguments, values)]
        stored = [one.ctype() for one in results]
        check(call(self.handle, *converted, *map(ctypes.byref, stored)))
        read = tuple(one.convert(cell.value) for one, cell in zip(results, stored))
        return read[0] if len(read) == 1 else read or None

    return call_method


def attribute(getter: str, result: Result, setter: str = "", argument: Any = None) -> property:
    """A property that is read and written with calls."""
    written = method(setter, argument) if setter else None
    return property(method(getter, results=(result,)), written)
