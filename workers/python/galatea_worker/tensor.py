"""`Tensor`: a named array of a request or a response."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from . import arrays
from .arena import INPUTS, InputBlock
from .arrays import BF16, BYTES
from .errors import TritonModelException
from .native import Parameter, Signature, Unfit, anything, bare, declared, native, text

_CUDA = 2
_NOT_READABLE = "Tensor is stored in GPU and cannot be converted to NumPy."


def _tensor(self: Any, name: str, array: Any, /) -> None:
    """Makes a tensor of a numpy array."""


def _array(value: Any) -> Any:
    if not isinstance(value, arrays.ndarray):
        raise Unfit
    return value


def _dlpack(self: Any, stream: Any = None, *, max_version: Any = None,
            dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
    """The tensor as a DLPack capsule, for `from_dlpack` of other libraries."""


_dlpack.__name__ = "__dlpack__"
_dlpack.__qualname__ = "Tensor.__dlpack__"
_DLPACK = Signature(
    "__dlpack__(self: c_python_backend_utils.Tensor, stream: object = None) -> capsule",
    Parameter("", anything), Parameter("stream", anything, None, may_be_none=True))
_tensor.__name__ = _tensor.__qualname__ = "__init__"
_TENSOR = Signature(
    "__init__(self: c_python_backend_utils.Tensor, arg0: str, arg1: numpy.ndarray) -> None",
    Parameter("", anything), Parameter("", text), Parameter("", _array))
_NAME = Signature("name(self: c_python_backend_utils.Tensor) -> str")
_AS_NUMPY = Signature("as_numpy(self: c_python_backend_utils.Tensor) -> numpy.ndarray")


class Tensor:
    """A tensor in CPU memory.

    ``Tensor(name, array)`` creates one from a numpy array. The array isn't copied: changes to it
    before the response is sent take effect.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("_name", "_dtype", "_shape", "_array", "_data", "_block")

    _name: str
    _dtype: int
    _shape: Tuple[int, ...]
    #: The numpy array, once there is one.
    _array: Any
    #: The contents as bytes: short inputs, BYTES, and memory of other frameworks.
    _data: Any
    #: The contents in the input arena.
    _block: Optional[InputBlock]

    @declared(_tensor)
    def __init__(self, *args: Any, **named: Any) -> None:
        if arrays.np is None:
            arrays.load()
        if named or len(args) != 2 or type(args[0]) is not str \
                or not args[0].isascii() or not isinstance(args[1], arrays.ndarray):
            args = tuple(_TENSOR.bind((self, *args), named)[1:])
        name, array = args
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        code = arrays.TYPES.get(array.dtype)
        if code is None:
            code = arrays.type_of(array)
        if not array.flags.c_contiguous:
            array = arrays.np.ascontiguousarray(array)
        self._name = name
        self._dtype = code
        self._shape = array.shape
        self._array = array
        self._data = arrays.serialize(array) if code == BYTES else None
        self._block = None

    @bare
    def name(self, *rest: Any, **more: Any) -> str:
        """Name of the tensor."""
        if rest or more:
            raise _NAME.refusal((self, *rest), more)
        try:
            return self._name
        except AttributeError:
            raise _NAME.refusal((self,), more) from None

    @native("shape(self: c_python_backend_utils.Tensor) -> list[int]", owner=lambda: Tensor)
    def shape(self) -> List[int]:
        """Length of each dimension."""
        return list(self._shape)

    @native("triton_dtype(self: c_python_backend_utils.Tensor) -> TRITONSERVER_datatype_enum",
            owner=lambda: Tensor)
    def triton_dtype(self) -> int:
        """Raises TypeError: Triton's module has no type for the number."""
        raise TypeError(
            "Unable to convert function return value to a Python type! The signature was\n\t"
            "(self: c_python_backend_utils.Tensor) -> TRITONSERVER_datatype_enum")

    @native("is_cpu(self: c_python_backend_utils.Tensor) -> bool", owner=lambda: Tensor)
    def is_cpu(self) -> bool:
        """True: this server puts tensors in CPU memory."""
        return True

    @bare
    def as_numpy(self, *rest: Any, **more: Any) -> Any:
        """The tensor as a numpy array, without a copy.

        BYTES tensors are arrays of ``bytes`` objects. Raises TritonModelException
        for BF16, which numpy doesn't have.
        """
        if rest or more:
            raise _AS_NUMPY.refusal((self, *rest), more)
        array = self._array
        if array is None:
            array = self._array = self._make_array()
        return array

    def _make_array(self) -> Any:
        if arrays.np is None:
            arrays.load()
        code = self._dtype
        if code == BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use "
                "to_dlpack() and from_dlpack() instead.")
        block = self._block
        if code == BYTES:
            data = self._data if block is None else block.view()
            return arrays.deserialize(data).reshape(self._shape)
        if block is None:
            return arrays.ndarray(self._shape, arrays.DTYPES[code], self._writable())
        array = arrays.ndarray(
            self._shape, arrays.DTYPES[code], INPUTS.memory, block.offset)
        block.follow(array)
        return array

    def _writable(self) -> Any:
        """Returns the contents in writable memory."""
        data = self._data
        if type(data) is bytes:
            data = self._data = bytearray(data)
        return data

    @staticmethod
    @native("from_dlpack(self: str, arg0: object) -> c_python_backend_utils.Tensor",
            Parameter("", text), Parameter("", anything, may_be_none=True))
    def from_dlpack(name: str, tensor: Any) -> "Tensor":
        """Makes a tensor of a DLPack capsule or of an object with `__dlpack__`."""
        if name == "":
            raise TritonModelException("Tensor name cannot be an empty string.")
        from . import dlpack
        code, shape, data, memory = dlpack.take(tensor)
        if memory is not None:
            return on_gpu(name, code, shape, memory)
        return from_bytes(name, code, shape, data)

    @native("to_dlpack(self: c_python_backend_utils.Tensor) -> capsule", owner=lambda: Tensor)
    def to_dlpack(self) -> Any:
        """The tensor as a DLPack capsule, without a copy."""
        from . import dlpack
        return dlpack.produce(self)

    @declared(_dlpack)
    def __dlpack__(self, *args: Any, **named: Any) -> Any:
        dl_device, copy = named.pop("dl_device", None), named.pop("copy", None)
        named.pop("max_version", None)
        _DLPACK.bind((self, *args), named)
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on the CPU, not on the device {dl_device}")
        from . import dlpack
        return dlpack.produce(self, bool(copy))

    @native("__dlpack_device__(self: c_python_backend_utils.Tensor) -> tuple[int, int]",
            owner=lambda: Tensor)
    def __dlpack_device__(self) -> Tuple[int, int]:
        """Device of the tensor as DLPack numbers it: the CPU."""
        return (1, 0)


class GpuTensor(Tensor):
    """A tensor in GPU memory."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_memory",)

    _memory: Any

    def is_cpu(self) -> bool:
        """False: the tensor is in GPU memory."""
        return False

    def as_numpy(self) -> Any:
        """Raises TritonModelException, because numpy has no arrays in GPU memory."""
        raise TritonModelException(_NOT_READABLE)

    def __dlpack__(self, stream: Any = None, *, max_version: Any = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        """Returns the tensor as a DLPack capsule; no work on it is pending."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on GPU {self._memory.device}, not on the "
                              f"device {dl_device}")
        if copy:
            raise BufferError("a tensor on a GPU is not copied")
        return self.to_dlpack()

    def to_dlpack(self) -> Any:
        """The tensor as a DLPack capsule, without a copy."""
        from . import dlpack
        memory = self._memory
        return dlpack.capsule(self, memory.address(), (_CUDA, memory.device), memory)

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Device of the tensor as DLPack numbers it."""
        return (_CUDA, self._memory.device)


_new = Tensor.__new__


def from_bytes(name: str, code: int, shape: Tuple[int, ...], data: Any) -> Tensor:
    """Creates a tensor over contents that came in a frame, or over foreign memory."""
    tensor = _new(Tensor)
    tensor._name = name
    tensor._dtype = code
    tensor._shape = shape
    tensor._array = None
    tensor._data = data
    tensor._block = None
    return tensor


def from_block(name: str, code: int, shape: Tuple[int, ...], block: InputBlock) -> Tensor:
    """Creates a tensor over a block of the input arena."""
    tensor = from_bytes(name, code, shape, None)
    tensor._block = block
    return tensor


def on_gpu(name: str, code: int, shape: Tuple[int, ...], memory: Any) -> GpuTensor:
    """Creates a tensor over GPU memory."""
    tensor = GpuTensor.__new__(GpuTensor)
    tensor._name = name
    tensor._dtype = code
    tensor._shape = shape
    tensor._array = tensor._data = tensor._block = None
    tensor._memory = memory
    return tensor


def check_tensors(tensors: Sequence[Any], text: str) -> List[Tensor]:
    """Returns the list of tensors as given; raises `text` if one is None."""
    checked = list(tensors)
    for tensor in checked:
        if type(tensor) is not Tensor:
            if tensor is None:
                raise TritonModelException(text)
    return checked
