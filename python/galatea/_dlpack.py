"""DLPack: tensor memory exchanged with other libraries, without importing any of them.

Capsules have version 0 of the protocol, which all libraries accept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._enums import DataType, DLDeviceType
from ._errors import InvalidArgumentError, UnsupportedError

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_NAME = b"dltensor"

#: DLPack's (code, bits) by type, and the reverse.
_KINDS = {
    DataType.BOOL: (_BOOL, 8),
    DataType.UINT8: (_UINT, 8),
    DataType.UINT16: (_UINT, 16),
    DataType.UINT32: (_UINT, 32),
    DataType.UINT64: (_UINT, 64),
    DataType.INT8: (_INT, 8),
    DataType.INT16: (_INT, 16),
    DataType.INT32: (_INT, 32),
    DataType.INT64: (_INT, 64),
    DataType.FP16: (_FLOAT, 16),
    DataType.FP32: (_FLOAT, 32),
    DataType.FP64: (_FLOAT, 64),
    DataType.BF16: (_BFLOAT, 16),
}
_TYPES = {kind: data_type for data_type, kind in _KINDS.items()}


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """A tensor with the function that frees it."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# Called by address, because a destructor must not take a reference to its capsule.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

#: Objects that exported tensors need until their user frees them, by address.
_exported: dict[int, Any] = {}


# Both functions are called until the very end of the interpreter, when the module's names are
# gone, so they keep what they need in their defaults.
def _delete(managed: Any, exported: Any = _exported, address: Any = ctypes.addressof) -> None:
    """Frees an exported tensor."""
    exported.pop(address(managed.contents), None)


def _destroy(
    capsule: int,
    exported: Any = _exported,
    name: bytes = _NAME,
    is_valid: Any = _is_valid,
    get_pointer: Any = _get_pointer,
) -> None:
    """Frees the tensor of an unused capsule."""
    if is_valid(capsule, name):
        exported.pop(get_pointer(capsule, name), None)


_delete_function = _Deleter(_delete)
_destroy_function = _Destructor(_destroy)


def export(owner: Any, address: int, data_type: DataType, shape: Sequence[int]) -> Any:
    """Returns a capsule over memory that `owner` keeps until the capsule's user frees it."""
    if data_type not in _KINDS:
        raise InvalidArgumentError(
            f"Unsupported Triton server data type. Can't convert {data_type} to DLPack data type"
        )
    dims = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    managed = _Managed()
    managed.tensor.data = address
    managed.tensor.device = _Device(DLDeviceType.kDLCPU, 0)
    managed.tensor.ndim = len(shape)
    managed.tensor.dtype = _DataType(*_KINDS[data_type], 1)
    managed.tensor.shape = ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete_function
    place = ctypes.addressof(managed)
    _exported[place] = (managed, dims, owner)
    return _new_capsule(place, _NAME, ctypes.cast(_destroy_function, ctypes.c_void_p))


class Memory(NamedTuple):
    """The memory of another library's tensor."""

    address: int
    byte_size: int
    data_type: DataType
    shape: list[int]
    #: Frees the memory when it is dropped.
    capsule: Any


def memory_of(source: Any) -> Memory:
    """The memory of an object that supports DLPack."""
    refused = "Object does not support DLPack protocol: "
    try:
        device = int(source.__dlpack_device__()[0])
        if device not in (DLDeviceType.kDLCPU, DLDeviceType.kDLCUDAHost):
            raise UnsupportedError(f"its memory is on device {device}, not in the CPU's memory")
        capsule = source.__dlpack__()
        if not _is_valid(id(capsule), _NAME):
            raise TypeError("it gives no capsule with a tensor")
    except Exception as error:
        raise InvalidArgumentError(f"{refused}{error}") from None
    tensor = _Managed.from_address(_get_pointer(id(capsule), _NAME)).tensor
    shape = [tensor.shape[index] for index in range(tensor.ndim)]
    if tensor.strides and not _is_contiguous(shape, tensor.strides):
        raise InvalidArgumentError("Only contiguous memory is supported")
    kind = (tensor.dtype.code, tensor.dtype.bits)
    if kind not in _TYPES or tensor.dtype.lanes != 1:
        raise InvalidArgumentError(
            f"Unsupported DLPack data type. Can't convert {kind} to Triton server data type"
        )
    byte_size = tensor.dtype.bits // 8
    for dim in shape:
        byte_size *= dim
    address = (tensor.data or 0) + tensor.byte_offset
    return Memory(address, byte_size, _TYPES[kind], shape, capsule)


def _is_contiguous(shape: list[int], strides: Any) -> bool:
    """True if the elements are in row-major order without gaps."""
    expected = 1
    for index in reversed(range(len(shape))):
        if shape[index] != 1 and strides[index] != expected:
            return 0 in shape
        expected *= shape[index]
    return True
