"""DLPack: tensors exchanged with other frameworks, without importing any of them."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Tuple

from . import arrays, gpu
from .arena import INPUTS
from .arrays import (BF16, BOOL, BYTES, FP16, FP32, FP64, INT8, INT16, INT32, INT64,
                     ITEM_BYTES, UINT8, UINT16, UINT32, UINT64)
from .errors import TritonModelException

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"

#: DLPack's (code, bits) by Triton's data type, and the reverse.
_KINDS: Dict[int, Tuple[int, int]] = {
    BOOL: (_BOOL, 8), UINT8: (_UINT, 8), UINT16: (_UINT, 16), UINT32: (_UINT, 32),
    UINT64: (_UINT, 64), INT8: (_INT, 8), INT16: (_INT, 16), INT32: (_INT, 32),
    INT64: (_INT, 64), FP16: (_FLOAT, 16), FP32: (_FLOAT, 32), FP64: (_FLOAT, 64),
    BF16: (_BFLOAT, 16)}
_CODES = {kind: code for code, kind in _KINDS.items()}


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32),
                ("dtype", _DataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    """A tensor together with the function that frees it."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p),
                     ("deleter", _Deleter)]

_api = ctypes.pythonapi
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = _api.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api))

#: Data type, shape, bytes in host memory, and GPU memory instead of these.
Content = Tuple[int, Tuple[int, ...], Any, Any]

#: Objects that exported tensors need until their user frees them, by address.
_exported: Dict[int, Any] = {}


# Both functions are called until the very end of the interpreter, when the module's names are
# gone, so they keep what they need in their defaults.
def _delete(managed: Any, exported: Dict[int, Any] = _exported,
            address: Any = ctypes.addressof) -> None:
    """Frees an exported tensor."""
    exported.pop(address(managed.contents), None)


def _destroy(capsule: int, exported: Dict[int, Any] = _exported, name: bytes = _NAME,
             is_valid: Any = _is_valid, get_pointer: Any = _get_pointer) -> None:
    """Frees the tensor of an unused capsule."""
    if is_valid(capsule, name):
        exported.pop(get_pointer(capsule, name), None)


_delete_function = _Deleter(_delete)
_destroy_function = _Destructor(_destroy)


def produce(tensor: Any, copy: bool = False) -> Any:
    """Returns a capsule of a tensor or of a copy; its memory lives until the user frees it."""
    code = tensor._dtype
    if code == BYTES:
        raise TritonModelException("DLPack does not have support for string tensors.")
    address, owner = _memory(tensor)
    shape = tensor._shape
    if copy and address:
        size = ITEM_BYTES[code]
        for dim in shape:
            size *= dim
        owner = (ctypes.c_char * size).from_buffer_copy(ctypes.string_at(address, size))
        address = ctypes.addressof(owner)
    return capsule(tensor, address, (_CPU, 0), owner)


def capsule(tensor: Any, address: int, device: Tuple[int, int], owner: Any) -> Any:
    """Returns a capsule of a tensor whose contents are at an address on a device."""
    code, shape = tensor._dtype, tensor._shape
    dims = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    managed = _Managed()
    content = managed.tensor
    content.data = address
    content.device = _Device(*device)
    content.ndim = len(shape)
    content.dtype = _DataType(*_KINDS[code], 1)
    content.shape = ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete_function
    place = ctypes.addressof(managed)
    _exported[place] = (managed, dims, owner, tensor)
    return _new_capsule(place, _NAME, ctypes.cast(_destroy_function, ctypes.c_void_p))


def _memory(tensor: Any) -> Tuple[int, Any]:
    """Returns the address of a tensor's contents, and the object that keeps them there."""
    array = tensor._array
    if array is not None:
        if not array.flags.c_contiguous:
            array = arrays.np.ascontiguousarray(array)
        return array.__array_interface__["data"][0], array
    block = tensor._block
    if block is not None:
        if block.length == 0:
            return 0, None
        content = (ctypes.c_char * block.length).from_buffer(INPUTS.memory, block.offset)
    else:
        data = tensor._writable()
        if len(data) == 0:
            return 0, None
        content = (ctypes.c_char * len(data)).from_buffer(data)
    return ctypes.addressof(content), content


class _Import:
    """A foreign tensor, which tells its owner when nothing uses it any more."""

    def __init__(self, managed: _Managed) -> None:
        self.managed = managed

    def __del__(self) -> None:
        if self.managed.deleter:
            self.managed.deleter(ctypes.byref(self.managed))


def take(source: Any) -> Content:
    """Returns the contents of a capsule, or of an object that provides one."""
    if type(source).__name__ == "PyCapsule":
        return _from_capsule(source)
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule         or "
            "have `__dlpack__` and `__dlpack_device__` attributes")
    kind, device = (int(part) for part in source.__dlpack_device__())
    _check_device(kind)
    if kind != _CUDA:
        return _from_capsule(source.__dlpack__(stream=None))
    driver = gpu.driver()
    # The producer makes this stream wait for its own, and this thread waits for the stream.
    stream = driver.stream(device)
    content = _from_capsule(source.__dlpack__(stream=stream))
    driver.wait_for(device, stream)
    return content


def _check_device(kind: int) -> None:
    if kind == _CUDA:
        if not gpu.is_available():
            raise TritonModelException(
                "DLPack capsule passed pointer to memory allocated on GPU device,           "
                "when GPU is not available")
    elif kind not in (_CPU, _CUDA_HOST):
        raise TritonModelException(
            f"DLDevice type {kind} is not support by Python backend.")


def _from_capsule(capsule: Any) -> Content:
    """Returns the contents of a capsule, which is consumed."""
    if not _is_valid(id(capsule), _NAME):
        raise TritonModelException(
            "The DLPack capsule has been used, or it isn't one of a tensor.")
    managed = _Managed.from_address(_get_pointer(id(capsule), _NAME))
    content = managed.tensor
    rank = content.ndim
    shape = tuple(content.shape[index] for index in range(rank))
    if content.strides:
        _check_strides(shape, [content.strides[index] for index in range(rank)])
    _check_device(content.device.type)
    code = _type_of(content.dtype)
    size = ITEM_BYTES[code]
    for dim in shape:
        size *= dim
    _set_name(capsule, _USED_NAME)
    owner = _Import(managed)
    if size == 0:
        return code, shape, b"", None
    address = content.data + content.byte_offset
    if content.device.type == _CUDA:
        return code, shape, None, gpu.own_memory((content.device.id, address), size, owner)
    memory = (ctypes.c_char * size).from_address(address)
    memory._owner = owner  # type: ignore[attr-defined]
    return code, shape, memoryview(memory).cast("B"), None


def _check_strides(shape: Tuple[int, ...], strides: List[int]) -> None:
    """Refuses tensors that aren't contiguous in row-major order."""
    if 0 in shape:
        return
    expected = 1
    for dim, stride in zip(reversed(shape), reversed(strides)):
        if dim != 1:
            if stride != expected:
                raise TritonModelException(
                    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that "
                    "are stored in C-Order are supported.")
            expected *= dim


def _type_of(dtype: _DataType) -> int:
    """Triton's data type of a data type of DLPack."""
    if dtype.code == _BFLOAT and dtype.lanes == 1 and dtype.bits != 16:
        raise TritonModelException(
            f"Expected BF16 tensor to have 16 bits, but had: {dtype.bits}")
    code = _CODES.get((dtype.code, dtype.bits)) if dtype.lanes == 1 else None
    if code is None:
        raise TritonModelException("Dtype is invalid.")
    return code
