"""Python values for a request's tensors, and tensors for a function's return values."""

from __future__ import annotations

import operator
from struct import Struct, error as StructError
from typing import Any, List, Optional, Tuple

from . import arrays, tensor as tensors
from .errors import BackendError
from .hints import ARRAY, ONE, TensorHint
from .tensor import Tensor

_FORMATS = {bool: "?", int: "q", float: "d"}
_U32 = Struct("<I")


class InputError(Exception):
    """An input that can't be converted to a value."""


def decode(hint: TensorHint, tensor: Tensor) -> Any:
    """Decodes the value of an input according to its hint."""
    if hint.form == ARRAY:
        return tensor.as_numpy()
    block = tensor._block
    data = tensor._data if block is None else block.view()
    if hint.datatype == arrays.BYTES:
        values = _elements(data)
        if hint.element is str:
            values = [_text(hint, value) for value in values]
    else:
        values = memoryview(data).cast("B").cast(_FORMATS[hint.element]).tolist()
    return values[0] if hint.form == ONE else values


def _elements(data: Any) -> List[Any]:
    """The elements of BYTES content, whose lengths the server has checked."""
    view = memoryview(data)
    values: List[Any] = []
    position = 0
    while position < len(view):
        start = position + 4
        position = start + _U32.unpack_from(view, position)[0]
        values.append(bytes(view[start:position]))
    return values


def _text(hint: TensorHint, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"input '{hint.name}' is not UTF-8: {error}") from None


def encode(hint: TensorHint, value: Any, rows: Optional[int]) -> Tensor:
    """Encodes the tensor of an output; `rows` is the size of the batch, if there is one."""
    if value is None:
        raise BackendError(f"predict gave None for output '{hint.name}'")
    if hint.form == ARRAY:
        return _encode_array(hint, value, rows)
    if hint.form == ONE:
        return _pack(hint, [value], (1,))
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise BackendError(f"predict gave {_kind(value)} for output '{hint.name}', whose "
                           f"hint is a list of {hint.element.__name__}")
    values = value.tolist() if hasattr(value, "tolist") else list(value)
    _check_shape(hint, (len(values),), rows)
    return _pack(hint, values, (len(values),) if rows is None else (len(values), 1))


def _pack(hint: TensorHint, values: List[Any], shape: Tuple[int, ...]) -> Tensor:
    """Packs elements into contents."""
    convert = _CONVERSIONS[hint.element]
    try:
        converted = [convert(value) for value in values]
        if hint.datatype == arrays.BYTES:
            data = b"".join(_U32.pack(len(one)) + one for one in converted)
        else:
            data = Struct(f"<{len(converted)}{_FORMATS[hint.element]}").pack(*converted)
    except (TypeError, ValueError, OverflowError, StructError) as error:
        raise BackendError(f"predict gave what is no {hint.element.__name__} for output "
                           f"'{hint.name}': {error}") from None
    return tensors.from_bytes(hint.name, hint.datatype, shape, data)


def _bool(value: Any) -> bool:
    if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b":
        return bool(value)
    raise TypeError(f"{value!r} is {_kind(value)}")


def _float(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{value!r} is {_kind(value)}")
    return float(value)


def _utf8(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is {_kind(value)}")
    return value.encode("utf-8")


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{value!r} is {_kind(value)}")
    return bytes(value)


_CONVERSIONS = {bool: _bool, int: operator.index, float: _float, str: _utf8,
                bytes: _bytes}


def _encode_array(hint: TensorHint, value: Any, rows: Optional[int]) -> Tensor:
    """Encodes an array, or an object that numpy converts to one, as a tensor."""
    arrays.load()
    numpy = arrays.np
    wanted = arrays.DTYPES[hint.datatype]
    try:
        array = numpy.asarray(value, wanted if hint.datatype == arrays.BYTES else None)
    except ValueError as error:  # lists whose lengths differ
        raise BackendError(f"predict gave what is no array for output '{hint.name}': "
                           f"{error}") from None
    if array.dtype != wanted:
        if not numpy.can_cast(array.dtype, wanted, "same_kind"):
            raise BackendError(f"predict gave {array.dtype} for output '{hint.name}', whose "
                               f"hint is {wanted}")
        array = array.astype(wanted)
    _check_shape(hint, array.shape, rows)
    return Tensor(hint.name, array)


def _check_shape(hint: TensorHint, shape: Tuple[int, ...], rows: Optional[int]) -> None:
    """Refuses a shape that differs from the hint's, or whose batch differs from the inputs'."""
    fits = len(shape) == len(hint.shape) and all(
        wanted in (-1, length) for wanted, length in zip(hint.shape, shape))
    if not fits:
        raise BackendError(f"predict gave the shape {list(shape)} for output "
                           f"'{hint.name}', whose hint says {list(hint.shape)}")
    if rows is not None and shape[0] != rows:
        raise BackendError(f"predict gave {shape[0]} rows for output '{hint.name}', but the "
                           f"batch has {rows}")


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def split(hint: TensorHint, tensor: Tensor, sizes: List[int]) -> List[Tensor]:
    """The rows of each request of a batch."""
    if len(sizes) == 1:
        return [tensor]
    if hint.form == ARRAY:
        return _split_array(tensor, sizes)
    if hint.datatype == arrays.BYTES:
        contents = [_U32.pack(len(one)) + one for one in _elements(tensor._data)]
    else:
        width = arrays.ITEM_BYTES[hint.datatype]
        data = tensor._data
        contents = [data[at:at + width] for at in range(0, len(data), width)]
    found, position = [], 0
    for size in sizes:
        content = b"".join(contents[position:position + size])
        found.append(tensors.from_bytes(hint.name, hint.datatype, (size, 1), content))
        position += size
    return found


def _split_array(tensor: Tensor, sizes: List[int]) -> List[Tensor]:
    found, position = [], 0
    array = tensor.as_numpy()
    for size in sizes:
        found.append(Tensor(tensor.name(), array[position:position + size]))
        position += size
    return found


__all__ = ["InputError", "decode", "encode", "split"]
