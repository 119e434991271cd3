"""Enumerations as in Triton's extension module: not integers, but with the same numbers."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from .native import Parameter, Signature, UINT32


class _Members(type):
    """Shows an enumeration's members."""

    @property
    def __members__(cls) -> Dict[str, Any]:
        return {name: getattr(cls, name) for name in cls._names}  # type: ignore[attr-defined]

    def __iter__(cls) -> Any:
        raise TypeError(f"'{type(cls).__name__}' object is not iterable")


class NamedEnum(metaclass=_Members):
    """A named number, which equals the plain number."""

    __slots__ = ("_number",)
    _names: Tuple[str, ...] = ()
    _number: int

    def __init__(self, *args: Any, **named: Any) -> None:
        owner = type(self)
        full = f"{owner.__module__}.{owner.__qualname__}"
        value = Parameter("value", UINT32)
        _, self._number = Signature(
            f"__init__(self: {full}, value: int) -> None", _SELF, value,
        ).bind((self, *args), named)

    @property
    def name(self) -> str:
        """Name of the member."""
        names = self._names
        return names[self._number] if self._number < len(names) else "???"

    @property
    def value(self) -> int:
        """Number of the member."""
        return self._number

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self._number}>"

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __int__(self) -> int:
        return self._number

    __index__ = __int__
    __hash__ = __int__  # type: ignore[assignment]

    def __eq__(self, other: Any) -> bool:
        return bool(self._number == other)

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __reduce__(self) -> Any:
        return type(self), (self._number,)


_SELF = Parameter("", lambda value: value)


def enumeration(owner: Any) -> Any:
    """Creates the members of a class, which its `_names` list."""
    for number, name in enumerate(owner._names):
        member = owner.__new__(owner)
        member._number = number
        setattr(owner, name, member)
    return owner
