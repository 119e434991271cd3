"""Enumerations of the public module, and checks of arguments."""

from __future__ import annotations

import enum
from typing import Any


class NamedEnum(enum.IntEnum):
    """An enumeration whose members are shown with their names, whatever the version."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __format__ = object.__format__  # type: ignore[assignment]


def demand(what: str, value: Any, kind: Any) -> None:
    """Raises TypeError for an argument of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be {kind.__name__}, not {type(value).__name__}: "
                        f"incompatible arguments, invoked with {value!r}")


def as_text(what: str, value: Any) -> str:
    """The value as a text. Bytes are taken too, as the elements of BYTES tensors are."""
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    demand(what, value, str)
    return value


def demand_number(what: str, value: Any, low: int, high: int) -> int:
    """The value as an integer; raises TypeError for others and for large ones."""
    if type(value) is int and low <= value <= high:
        return value
    if not hasattr(value, "__index__") or not low <= value.__index__() <= high:
        raise TypeError(f"{what} must be an integer from {low} to {high}: incompatible "
                        f"arguments, invoked with {value!r}")
    return value.__index__()
