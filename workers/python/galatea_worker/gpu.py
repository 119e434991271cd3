"""GPU memory.

The server shares its memory through handles of NVIDIA's driver, which is called through ctypes,
so no framework has to be installed. The worker copies the tensors that it sends to host memory.
Devices have the driver's numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from struct import Struct
from typing import Any, Dict, Iterator, Optional, Tuple

from .arena import INPUTS, InputBlock
from .errors import TritonModelException

_LAZY_PEER_ACCESS = 1
#: The device, the handle, the offset of the tensor in the handle's memory, and its length.
_DESCRIPTION = Struct("<I64sQQ")
DESCRIPTION_BYTES = _DESCRIPTION.size


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class _Driver:
    """NVIDIA's driver in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._contexts: Dict[int, ctypes.c_void_p] = {}
        self._streams: Dict[int, ctypes.c_void_p] = {}
        self._lock = threading.Lock()
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver; raises an exception for its error."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            why = text.value.decode() if text.value else f"error {code}"
            raise TritonModelException(f"{name} failed: {why}")

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Makes the device the current one of this thread."""
        self.call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _context(self, device: int) -> ctypes.c_void_p:
        """Returns the context that all libraries of the process share."""
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                number, context = ctypes.c_int(), ctypes.c_void_p()
                self.call("cuDeviceGet", ctypes.byref(number), device)
                self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
                self._contexts[device] = context
            return context

    def stream(self, device: int) -> int:
        """Returns a stream, for waiting for producers of tensors and for copies."""
        known = self._streams.get(device)
        if known is not None:
            return known.value or 0
        with self.on(device), self._lock:
            stream = self._streams.get(device)
            if stream is None:
                stream = ctypes.c_void_p()
                self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 0, 0)
                self._streams[device] = stream
        return stream.value or 0

    def wait_for(self, device: int, stream: int) -> None:
        """Waits until the work that is queued on the stream is done."""
        with self.on(device):
            self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def open(self, device: int, handle: bytes) -> int:
        """Opens memory of another process and returns its address."""
        address = ctypes.c_uint64()
        with self.on(device):
            self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address),
                      _Handle.from_buffer_copy(handle), _LAZY_PEER_ACCESS)
        return address.value

    def close(self, device: int, address: int) -> None:
        """Closes memory of another process."""
        with self.on(device):
            self.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def download(self, device: int, source: int, target: Any) -> None:
        """Copies memory of the device into a buffer of ctypes, and waits for the copy."""
        stream = ctypes.c_void_p(self.stream(device))
        with self.on(device):
            self.call("cuMemcpyAsync", ctypes.c_uint64(ctypes.addressof(target)),
                      ctypes.c_uint64(source), ctypes.c_size_t(ctypes.sizeof(target)), stream)
            self.call("cuStreamSynchronize", stream)


_driver: Optional[_Driver] = None
_loading = threading.Lock()


def driver() -> _Driver:
    """NVIDIA's driver, loaded when the first tensor needs it."""
    global _driver
    with _loading:
        if _driver is None:
            try:
                _driver = _Driver()
            except OSError as error:
                raise TritonModelException(f"there is no CUDA driver: {error}") from None
        return _driver


def is_available() -> bool:
    """True if this process can use a GPU."""
    try:
        driver()
    except TritonModelException:
        return False
    return True


class _Shared:
    """An input in the server's memory, opened on first use and closed with its last user."""

    __slots__ = ("block", "device", "handle", "offset", "length", "_base", "_lock")

    def __init__(self, block: InputBlock, device: int, handle: bytes, offset: int,
                 length: int) -> None:
        self.block = block
        self.device = device
        self.handle = handle
        self.offset = offset
        self.length = length
        self._base = 0
        self._lock = threading.Lock()

    def address(self) -> int:
        """Returns the address of the tensor in this process."""
        with self._lock:
            if not self._base:
                self._base = driver().open(self.device, self.handle)
            return self._base + self.offset

    def __del__(self) -> None:
        if self._base:
            try:
                driver().close(self.device, self._base)
            except (NameError, TypeError, AttributeError, TritonModelException):
                pass  # the interpreter is ending, or the device is lost


class _Own:
    """Memory of this process, and the object that keeps it."""

    __slots__ = ("device", "length", "owner", "_address")

    def __init__(self, device: int, address: int, length: int, owner: Any) -> None:
        self.device = device
        self.length = length
        self.owner = owner
        self._address = address

    def address(self) -> int:
        """Returns the address of the tensor."""
        return self._address


def memory_at(offset: int) -> _Shared:
    """Returns the memory that a block of the input arena describes."""
    INPUTS.check(offset, DESCRIPTION_BYTES)
    block = InputBlock(offset, DESCRIPTION_BYTES)
    return _Shared(block, *_DESCRIPTION.unpack_from(INPUTS.memory, offset))


def own_memory(place: Tuple[int, int], length: int, owner: Any) -> _Own:
    """Memory of this process, at a device and an address."""
    return _Own(place[0], place[1], length, owner)


def input_block(tensor: Any) -> Optional[InputBlock]:
    """Returns the block that describes the tensor, if it is an unchanged input."""
    memory = tensor._memory
    return memory.block if type(memory) is _Shared else None


def length_of(tensor: Any) -> int:
    """Bytes of the tensor."""
    length: int = tensor._memory.length
    return length


def download(tensor: Any, target: Any) -> None:
    """Copies the tensor into a ctypes buffer of the same length."""
    memory = tensor._memory
    driver().download(memory.device, memory.address(), target)
