"""The worker's uses of numpy, which it imports when a model first needs it."""

from __future__ import annotations

from struct import Struct
from typing import Any, Dict, List, Tuple

from .errors import TritonModelException

BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64 = range(1, 10)
FP16, FP32, FP64, BYTES, BF16 = range(10, 15)

#: Bytes of one element by data type; 0 where elements vary in length.
ITEM_BYTES: Tuple[int, ...] = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2)

#: Names in configurations, without `TYPE_`.
CONFIG_NAMES = ("", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16",
                "INT32", "INT64", "FP16", "FP32", "FP64", "STRING", "BF16")

_NUMPY_NAMES = ("", "bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16",
                "int32", "int64", "float16", "float32", "float64", "object_")
_U32 = Struct("<I")

np: Any = None
ndarray: Any = None
#: numpy's data type by Triton's.
DTYPES: List[Any] = []
#: Triton's data type by numpy's.
TYPES: Dict[Any, int] = {}


def load() -> None:
    """Imports numpy once."""
    global np, ndarray
    if np is not None:
        return
    import numpy
    DTYPES[:] = [None] + [numpy.dtype(getattr(numpy, name)) for name in _NUMPY_NAMES[1:]]
    TYPES.update((dtype, code) for code, dtype in enumerate(DTYPES) if code)
    ndarray = numpy.ndarray
    np = numpy


def type_of(array: Any) -> int:
    """Triton's data type of an array."""
    code = TYPES.get(array.dtype)
    if code is None:
        if array.dtype.type is np.bytes_:
            return BYTES
        raise TritonModelException("NumPy dtype is not supported.")
    return code


def address_of(buffer: Any) -> int:
    """Address of the first byte of a buffer."""
    load()
    return np.frombuffer(buffer, np.uint8, 1).__array_interface__["data"][0]


def serialize(array: Any) -> bytes:
    """Serializes the elements of an array of objects or bytes, each after its length."""
    parts: List[bytes] = []
    for item in array.ravel().tolist():
        if type(item) is not bytes:
            item = str(item).encode("utf-8")
        parts.append(_U32.pack(len(item)))
        parts.append(item)
    return b"".join(parts)


def deserialize(data: Any) -> Any:
    """Returns an array of objects from elements that are each preceded by their length."""
    load()
    view = memoryview(data)
    end = len(view)
    items: List[bytes] = []
    position = 0
    while position < end:
        if position + 4 > end:
            raise TritonModelException(
                "Invalid bytes tensor data: incomplete length field")
        (length,) = _U32.unpack_from(view, position)
        position += 4
        if position + length > end:
            raise TritonModelException(
                "Invalid bytes tensor data: string extends beyond buffer")
        items.append(view[position:position + length].tobytes())
        position += length
    array = np.empty(len(items), dtype=np.object_)
    array[:] = items
    return array
