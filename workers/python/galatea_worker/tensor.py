"""`Tensor`: a named array of a request or a response."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from . import arrays
from .arena import INPUTS, InputBlock
from .arrays import BF16, BYTES
from .enums import as_text, demand
from .errors import TritonModelException


class Tensor:
    """A tensor in memory of the CPU.

    ``Tensor(name, array)`` makes one from a numpy array. The array isn't copied:
    what is written to it before the response is sent is sent.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("_name", "_dtype", "_shape", "_array", "_data", "_block")

    _name: str
    _dtype: int
    _shape: Tuple[int, ...]
    #: The numpy array, once there is one.
    _array: Any
    #: Content as bytes: short inputs, BYTES, and memory of other frameworks.
    _data: Any
    #: Content in the input arena.
    _block: Optional[InputBlock]

    def __init__(self, name: str, array: Any) -> None:
        if arrays.np is None:
            arrays.load()
        if not isinstance(array, arrays.ndarray) \
                or not isinstance(name, (str, bytes, bytearray)):
            raise TypeError(
                "__init__(): incompatible constructor arguments. The following argument "
                "types are supported:\n    1. c_python_backend_utils.Tensor(arg0: str, "
                "arg1: numpy.ndarray)\n\nInvoked with: "
                f"{name!r}, {array!r}")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        code = arrays.TYPES.get(array.dtype)
        if code is None:
            code = arrays.type_of(array)
        if not array.flags.c_contiguous:
            array = arrays.np.ascontiguousarray(array)
        self._name = name if type(name) is str else as_text("name", name)
        self._dtype = code
        self._shape = array.shape
        self._array = array
        self._data = arrays.serialize(array) if code == BYTES else None
        self._block = None

    def name(self) -> str:
        """Name of the tensor."""
        return self._name

    def shape(self) -> List[int]:
        """Length of each dimension."""
        return list(self._shape)

    def triton_dtype(self) -> int:
        """Number of the data type, as of TRITONSERVER_DataType."""
        return self._dtype

    def is_cpu(self) -> bool:
        """True: this server puts tensors into memory of the CPU."""
        return True

    def as_numpy(self) -> Any:
        """The tensor as a numpy array, without a copy.

        BYTES tensors are arrays of ``bytes`` objects. Raises TritonModelException
        for BF16, which numpy doesn't have.
        """
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
        """Content in memory that may be written to."""
        data = self._data
        if type(data) is bytes:
            data = self._data = bytearray(data)
        return data

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> "Tensor":
        """Makes a tensor of a DLPack capsule or of an object with `__dlpack__`."""
        from . import dlpack
        return dlpack.consume(name, tensor)

    def to_dlpack(self) -> Any:
        """The tensor as a DLPack capsule, without a copy."""
        from . import dlpack
        return dlpack.produce(self)

    def __dlpack__(self, stream: Any = None, *, max_version: Any = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        """The tensor as a DLPack capsule, for `from_dlpack` of other libraries."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on the CPU, not on the device {dl_device}")
        from . import dlpack
        return dlpack.produce(self, bool(copy))

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Device of the tensor as DLPack numbers it: the CPU."""
        return (1, 0)


_new = Tensor.__new__


def from_bytes(name: str, code: int, shape: Tuple[int, ...], data: Any) -> Tensor:
    """Tensor over content that came in a frame, or over foreign memory."""
    tensor = _new(Tensor)
    tensor._name = name
    tensor._dtype = code
    tensor._shape = shape
    tensor._array = None
    tensor._data = data
    tensor._block = None
    return tensor


def from_block(name: str, code: int, shape: Tuple[int, ...], block: InputBlock) -> Tensor:
    """Tensor over a block of the input arena."""
    tensor = from_bytes(name, code, shape, None)
    tensor._block = block
    return tensor


def check_tensors(tensors: Sequence[Any], text: str) -> List[Tensor]:
    """List of tensors as it was given; raises `text` where one is None."""
    checked = list(tensors)
    for tensor in checked:
        if type(tensor) is not Tensor:
            if tensor is None:
                raise TritonModelException(text)
            demand("tensor", tensor, Tensor)
    return checked
