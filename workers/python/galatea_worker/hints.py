"""Type hints of a function, and the inputs and outputs that they describe.

This module doesn't import numpy: hints that mention arrays have already imported it.
"""

from __future__ import annotations

import ast
import collections.abc as abc
import dataclasses
import inspect
import os
import sys
import typing
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import arrays
from .errors import BackendError

#: Forms of values: one element, a list of them, an array.
ONE, LIST, ARRAY = "one", "list", "array"
#: Name of the only output of a function that doesn't name its outputs.
OUTPUT = "output"
#: Data types of Python's own types.
ELEMENTS: Dict[Any, int] = {
    bool: arrays.BOOL, int: arrays.INT64, float: arrays.FP64, str: arrays.BYTES,
    bytes: arrays.BYTES}

_LISTS = (list, abc.Sequence)
_STREAMS = (abc.Iterator, abc.Iterable, abc.Generator)
_ASYNC_STREAMS = (abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)
_KNOWN = "bool, int, float, str, bytes, a list of one of them, or NDArray[np.float32]"
_EXAMPLE = "list[str] or NDArray[np.float32]"


class HintError(BackendError):
    """A hint that describes no input or output; the text names its source location."""


class _Misfit(Exception):
    """The problem with a hint, without its source location."""


class TensorHint(NamedTuple):
    """An input or output as a function sees it."""

    name: str
    form: str
    #: Type of the elements; None for arrays.
    element: Any
    datatype: int
    #: Shape of the whole value; -1 means any length.
    shape: Tuple[int, ...]
    #: True if the function has a default.
    optional: bool = False

    def dims(self, batching: bool) -> List[int]:
        """Returns the dimensions for a configuration, which omits the batch dimension."""
        if not batching:
            return list(self.shape)
        return list(self.shape[1:]) if self.form == ARRAY else [1]


class Signature(NamedTuple):
    """The inputs and outputs of a function."""

    inputs: List[TensorHint]
    outputs: List[TensorHint]
    #: True if the outputs are fields of what the function gives.
    has_fields: bool
    #: True if each value that the function yields is a response.
    is_stream: bool
    is_async: bool


class Place:
    """The location of a function in its file."""

    def __init__(self, function: Any, file: str) -> None:
        code = getattr(inspect.unwrap(function), "__code__", None)
        self._file = getattr(code, "co_filename", file)
        self._line = getattr(code, "co_firstlineno", 1)

    def of(self, part: str = "") -> str:
        """Returns the file and line of the function, of a parameter, or of the return hint."""
        line = self._lines().get(part, self._line) if part else self._line
        return f"{os.path.basename(self._file)}:{line}"

    def _lines(self) -> Dict[str, int]:
        """Returns the lines of the parameters, by name, and of the hint for `return`."""
        try:
            with open(self._file, encoding="utf-8") as source:
                tree = ast.parse(source.read())
        except (OSError, SyntaxError, ValueError):
            return {}
        for node in ast.walk(tree):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            first = min([node.lineno] + [one.lineno for one in node.decorator_list])
            if first == self._line:
                return _lines_of(node)
        return {}


def _lines_of(node: Any) -> Dict[str, int]:
    given = node.args
    found = given.posonlyargs + given.args + given.kwonlyargs
    found += [one for one in (given.vararg, given.kwarg) if one is not None]
    lines = {one.arg: one.lineno for one in found}
    if node.returns is not None:
        lines["return"] = node.returns.lineno
    return lines


def read(function: Any, batching: bool, file: str = "model.py") -> Signature:
    """Reads the hints of a function; raises HintError for those that don't fit."""
    place = Place(function, file)
    try:
        signature = inspect.signature(function)
    except Exception as error:  # hints are code from Python 3.14 on
        raise HintError(f"{place.of()}: the hints of predict can't be read: "
                        f"{type(error).__name__}: {error}") from None
    names = getattr(inspect.unwrap(function), "__globals__", {})
    inputs = []
    for parameter in signature.parameters.values():
        try:
            inputs.append(_input(parameter, names, batching))
        except _Misfit as misfit:
            raise HintError(f"{place.of(parameter.name)}: parameter `{parameter.name}` "
                            f"{misfit}") from None
    if not inputs:
        raise HintError(f"{place.of()}: predict has no parameters, but a model needs an "
                        "input")
    if batching and all(one.optional for one in inputs):
        raise HintError(f"{place.of()}: all parameters of predict have defaults, but with "
                        "MAX_BATCH_SIZE one input must be in every request")
    try:
        return _result(function, signature, names, inputs, batching)
    except _Misfit as misfit:
        raise HintError(f"{place.of('return')}: {misfit}") from None


def _input(parameter: inspect.Parameter, names: Dict[str, Any],
           batching: bool) -> TensorHint:
    """Returns the input that a parameter stands for."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise _Misfit("stands for many: inputs need a name each")
    if parameter.kind == parameter.POSITIONAL_ONLY:
        raise _Misfit("has no name for callers: take the / out of the parameters")
    if parameter.annotation is parameter.empty:
        raise _Misfit("has no type hint; write for example "
                      f"`{parameter.name}: list[str]`")
    hint = _evaluate(parameter.annotation, names)
    has_default = parameter.default is not parameter.empty
    if not has_default and type(None) in _members(hint):
        raise _Misfit("may be None and so needs a default: write `= None`")
    return _tensor(parameter.name, hint, batching)._replace(optional=has_default)


def _result(function: Any, signature: inspect.Signature, names: Dict[str, Any],
            inputs: List[TensorHint], batching: bool) -> Signature:
    """Returns the outputs and the way in which they are returned."""
    if signature.return_annotation is signature.empty:
        raise _Misfit("predict has no type hint for what it returns; write for example "
                      "`-> list[float]`")
    hint = _evaluate(signature.return_annotation, names)
    function = inspect.unwrap(function)
    yields = inspect.isgeneratorfunction(function)
    yields_async = inspect.isasyncgenfunction(function)
    origin = typing.get_origin(hint)
    is_stream = origin in _STREAMS or origin in _ASYNC_STREAMS
    if (yields or yields_async) and not is_stream:
        wanted = "AsyncIterator" if yields_async else "Iterator"
        raise _Misfit(f"predict yields, so its hint must be {wanted}[...], not "
                      f"{_shown(hint)}")
    is_async = yields_async or inspect.iscoroutinefunction(function)
    if is_stream:
        if is_async != (origin in _ASYNC_STREAMS) or is_async and not yields_async:
            raise _Misfit("an `async def` that yields has the hint AsyncIterator[...], "
                          "any other function that yields Iterator[...]")
        if batching:
            raise _Misfit("a function that yields answers one request at a time: leave "
                          "MAX_BATCH_SIZE out")
        hint = typing.get_args(hint)[0]
    outputs, has_fields = _outputs(hint, batching)
    return Signature(inputs, outputs, has_fields, is_stream, is_async)


def _outputs(hint: Any, batching: bool) -> Tuple[List[TensorHint], bool]:
    """Returns the outputs that a hint names, and true if they are fields of the value."""
    if not _has_fields(hint):
        try:
            return [_tensor(OUTPUT, hint, batching)], False
        except _Misfit as misfit:
            raise _Misfit(f"the result of predict {misfit}") from None
    try:
        fields = typing.get_type_hints(hint, include_extras=True)
    except Exception as error:
        raise _Misfit(f"the hints of {hint.__name__} can't be read: "
                      f"{type(error).__name__}: {error}") from None
    outputs = []
    for name, one in fields.items():
        try:
            outputs.append(_tensor(name, one, batching))
        except _Misfit as misfit:
            raise _Misfit(f"output `{name}` of {hint.__name__} {misfit}") from None
    if not outputs:
        raise _Misfit(f"{hint.__name__} names no output")
    return outputs, True


def _has_fields(hint: Any) -> bool:
    """True if a hint is a TypedDict, a NamedTuple or a dataclass."""
    if not isinstance(hint, type):
        return False
    is_dict = issubclass(hint, dict) and hasattr(hint, "__total__")
    is_tuple = issubclass(hint, tuple) and hasattr(hint, "_fields")
    return is_dict or is_tuple or dataclasses.is_dataclass(hint)


def _evaluate(hint: Any, names: Dict[str, Any]) -> Any:
    """Evaluates a hint in string form, as under `from __future__ import annotations`."""
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, names)
    except Exception as error:
        raise _Misfit(f"has the hint {hint}, which can't be read: "
                      f"{type(error).__name__}: {error}") from None


def _members(hint: Any) -> Tuple[Any, ...]:
    """Returns the members of a union, otherwise an empty tuple."""
    is_union = typing.get_origin(hint) is typing.Union \
        or type(hint).__name__ == "UnionType"
    return typing.get_args(hint) if is_union else ()


def _tensor(name: str, hint: Any, batching: bool) -> TensorHint:
    """The tensor that a hint describes."""
    members = [one for one in _members(hint) if one is not type(None)]
    if len(members) == 1:
        hint = members[0]
    datatype, shape = None, None
    if typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        for note in notes:
            if isinstance(note, tuple):
                shape = _shape(note)
            else:
                datatype = _numpy_datatype(note) or datatype
    origin = typing.get_origin(hint) or hint
    numpy = sys.modules.get("numpy")
    if numpy is not None and origin is numpy.ndarray:
        tensor = _array(name, hint, datatype, shape)
    elif origin in _LISTS:
        tensor = _list(name, hint, shape)
    elif _is_element(hint) and shape is None:
        tensor = TensorHint(name, ONE, hint, ELEMENTS[hint], (1,))
    else:
        raise _Misfit(f"has the hint {_shown(hint)}, which is not {_KNOWN}")
    if batching:
        _check_batch(tensor, shape is not None)
        if tensor.form == ARRAY and shape is None and len(tensor.shape) == 1:
            tensor = tensor._replace(shape=(-1, -1))
    return tensor


def _check_batch(tensor: TensorHint, has_shape: bool) -> None:
    """Refuses a tensor that has no row for each element of a batch."""
    if tensor.form == ONE:
        kind = tensor.element.__name__
        raise _Misfit(f"is one value, but MAX_BATCH_SIZE asks for batches: write list[{kind}]")
    if not has_shape:
        return
    if tensor.form == LIST:
        raise _Misfit("is a list with a shape, but with MAX_BATCH_SIZE a list has an "
                      "element for each row")
    if len(tensor.shape) < 2 or tensor.shape[0] != -1:
        raise _Misfit("has a shape whose first dimension is not the batch: with "
                      "MAX_BATCH_SIZE write for example (-1, 4)")


def _list(name: str, hint: Any, shape: Optional[Tuple[int, ...]]) -> TensorHint:
    inner = (typing.get_args(hint) or (None,))[0]
    if not _is_element(inner):
        raise _Misfit(f"has the hint {_shown(hint)}, which is not {_KNOWN}")
    if shape is not None and len(shape) != 1:
        raise _Misfit("is a list and so has one dimension")
    return TensorHint(name, LIST, inner, ELEMENTS[inner], shape or (-1,))


def _array(name: str, hint: Any, datatype: Optional[int],
           shape: Optional[Tuple[int, ...]]) -> TensorHint:
    given = typing.get_args(hint)
    if len(given) == 2:
        inner = typing.get_args(given[1])
        datatype = datatype or _numpy_datatype(inner[0] if inner else None)
        shape = shape or _numpy_shape(given[0])
    if not datatype:
        raise _Misfit("is an array without one of Triton's data types; write for example "
                      "NDArray[np.float32]")
    return TensorHint(name, ARRAY, None, datatype, shape or (-1,))


def _is_element(hint: Any) -> bool:
    return isinstance(hint, type) and hint in ELEMENTS


def _numpy_datatype(kind: Any) -> Optional[int]:
    """Data type of a type of numpy, None for others."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(kind, numpy.dtype):
        kind = kind.type
    if not isinstance(kind, type) or not issubclass(kind, numpy.generic):
        return None
    if kind is numpy.bytes_:
        return arrays.BYTES
    arrays.load()
    try:
        return arrays.TYPES.get(numpy.dtype(kind))
    except TypeError:  # such as numpy.floating, which stands for several
        return None


def _numpy_shape(hint: Any) -> Optional[Tuple[int, ...]]:
    """Shape of hints such as tuple[int, Literal[4]], None where the rank is open."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is not tuple or Ellipsis in parts:
        return None
    lengths = []
    for part in parts:
        if typing.get_origin(part) is typing.Literal:
            lengths.append(typing.get_args(part)[0])
        else:
            lengths.append(-1)
    return _shape(tuple(lengths))


def _shape(given: Tuple[Any, ...]) -> Tuple[int, ...]:
    for length in given:
        if type(length) is not int or length != -1 and length < 1:
            raise _Misfit(f"has the shape {given!r}, but a shape is a tuple of numbers such "
                          "as (-1, 4), where -1 is any length")
    if not given:
        raise _Misfit("has an empty shape, but a shape has one dimension or more")
    return given


def _shown(hint: Any) -> str:
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "")
