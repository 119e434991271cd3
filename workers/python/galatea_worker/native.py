"""Calls of functions as Triton's extension module takes them.

Models were written for functions that pybind11 created. These accept anything convertible, such
as bytes where a string is expected, and refuse everything else with a text that lists the
signature and the call. `native` gives a Python function such a front.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple


class Unfit(Exception):
    """An argument that can't be converted."""


#: Marks a required parameter.
NEEDED: Any = object()

Convert = Callable[[Any], Any]


class Parameter:
    """A parameter: its name, if it can be given by name, and its conversion."""

    __slots__ = ("name", "convert", "default", "may_be_none")

    def __init__(self, name: str, convert: Convert, default: Any = NEEDED,
                 may_be_none: bool = False) -> None:
        self.name = name
        self.convert = convert
        self.default = default
        self.may_be_none = may_be_none


class Signature:
    """A function's parameters, and the text for refusing a wrong call."""

    __slots__ = ("text", "is_constructor", "parameters")

    def __init__(self, text: str, *parameters: Parameter) -> None:
        self.text = text
        self.is_constructor = text.startswith("__init__(")
        self.parameters = parameters

    def bind(self, args: Sequence[Any], named: Dict[str, Any]) -> List[Any]:
        """Returns the values of all parameters; raises TypeError for arguments that don't fit."""
        try:
            return self._bind(args, named)
        except Unfit:
            raise self.refusal(args, named) from None

    def _bind(self, args: Sequence[Any], named: Dict[str, Any]) -> List[Any]:
        if len(args) > len(self.parameters):
            raise Unfit
        values = []
        taken = 0
        for index, parameter in enumerate(self.parameters):
            by_name = bool(parameter.name) and parameter.name in named
            if index < len(args):
                if by_name:
                    raise Unfit
                value = args[index]
            elif by_name:
                value = named[parameter.name]
                taken += 1
            elif parameter.default is NEEDED:
                raise Unfit
            else:
                values.append(parameter.default)
                continue
            if value is None and not parameter.may_be_none:
                raise Unfit
            values.append(parameter.convert(value))
        if taken != len(named):
            raise Unfit
        return values

    def refusal(self, args: Sequence[Any], named: Dict[str, Any]) -> TypeError:
        """Error of a call that doesn't fit, in pybind11's words."""
        name, _, rest = self.text.partition("(")
        signature, kind = "(" + rest, "function"
        if self.is_constructor:
            kind = "constructor"
            signature = _constructor(rest)
            args = args[1:]
        shown = ", ".join(map(_show, args))
        if named:
            shown += ("; " if args else "") + "kwargs: " + ", ".join(
                f"{key}={_show(value)}" for key, value in named.items())
        return TypeError(
            f"{name}(): incompatible {kind} arguments. The following argument types are "
            f"supported:\n    1. {signature}\n\nInvoked with: {shown}")


def _constructor(rest: str) -> str:
    """Returns a signature after its opening parenthesis, as a call of the class."""
    owner, _, rest = rest[len("self: "):].partition(", ")
    return f"{owner}({rest[:rest.rindex(' -> ')]}"


def _show(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return "<repr raised Error>"


def text(value: Any) -> str:
    """Converts a string. Bytes are accepted too, as elements of BYTES tensors."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Unfit from None
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    raise Unfit


def number(low: int, high: int) -> Convert:
    """Converts an integer between two bounds, or a value that rounds to one; never a float."""
    def convert(value: Any) -> int:
        if isinstance(value, float):
            raise Unfit
        if not isinstance(value, int):
            value = _whole(value)
        if not low <= value <= high:
            raise Unfit
        return int(value)
    return convert


def _whole(value: Any) -> int:
    """The integer that an object is, or that it is when it is rounded."""
    try:
        return value.__index__()
    except Exception:
        pass
    if not (hasattr(type(value), "__int__") or hasattr(type(value), "__float__")):
        raise Unfit
    try:
        return int(value)
    except Exception:
        raise Unfit from None


UINT32 = number(0, (1 << 32) - 1)
UINT64 = number(0, (1 << 64) - 1)
INT64 = number(-1 << 63, (1 << 63) - 1)


def real(value: Any) -> float:
    """Converts a floating-point number; refuses strings."""
    if isinstance(value, (str, bytes, bytearray)):
        raise Unfit
    try:
        return float(value)
    except Exception:
        raise Unfit from None


def boolean(value: Any) -> bool:
    """Converts a value to a boolean; None is false."""
    if value is None or hasattr(type(value), "__bool__"):
        try:
            return bool(value)
        except Exception:
            raise Unfit from None
    raise Unfit


def cast(convert: Convert, value: Any) -> Any:
    """Converts a value with a function of its own; raises RuntimeError for others."""
    try:
        return convert(value)
    except Unfit:
        raise RuntimeError(
            f"Unable to cast Python instance of type {type(value)} to C++ type '?' (#define "
            "PYBIND11_DETAILED_ERROR_MESSAGES or compile in debug mode for details)") from None


def anything(value: Any) -> Any:
    """Any object."""
    return value


def instance(kind: Any) -> Convert:
    """An object of a class, or None where the parameter may be that."""
    def convert(value: Any) -> Any:
        if value is not None and not isinstance(value, kind):
            raise Unfit
        return value
    return convert


def sequence(convert_one: Convert) -> Convert:
    """Converts a list from anything that can be indexed; refuses strings."""
    def convert(value: Any) -> List[Any]:
        if isinstance(value, (str, bytes, dict)) \
                or not hasattr(type(value), "__getitem__"):
            raise Unfit
        try:
            items: Iterable[Any] = list(value)
        except Exception:
            raise Unfit from None
        return [convert_one(one) for one in items]
    return convert


def native(signature: str, *parameters: Parameter,
           owner: Optional[Callable[[], type]] = None) -> Callable[[Any], Any]:
    """Makes a function take its arguments as the signature says.

    `owner` gives the class of a method, whose `self` is checked too.
    """
    if owner is not None:
        parameters = (_self(owner), *parameters)
    bound = Signature(signature, *parameters)

    def front(function: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            return function(*bound.bind(args, named))
        return declared(function)(call)
    return front


def _self(owner: Callable[[], type]) -> Parameter:
    def convert(value: Any) -> Any:
        if not isinstance(value, owner()):
            raise Unfit
        return value
    return Parameter("", convert)


def declared(function: Any) -> Callable[[Any], Any]:
    """Gives a function's front its name, its docstring and the signature of its parameters."""
    def dress(call: Any) -> Any:
        for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
            setattr(call, name, getattr(function, name))
        call.__wrapped__ = function
        return call
    return dress


def _bare(self: Any) -> Any:
    """The parameters of a method that takes nothing."""


def bare(method: Any) -> Any:
    """Wraps a method without parameters, which refuses arguments by itself."""
    method.__wrapped__ = _bare
    return method


class Made:
    """Base of classes that only the server instantiates, with `object.__new__`."""

    __slots__ = ()

    def __new__(cls, *args: Any, **named: Any) -> Any:
        raise TypeError(f"{cls.__module__}.{cls.__name__}: No constructor defined!")
