"""Shared code of the programs that call the functions of tritonserver.h."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char_p,
    c_int64,
    c_size_t,
    c_uint,
    c_void_p,
)

ALLOCATE = CFUNCTYPE(
    c_void_p,
    c_void_p,
    c_char_p,
    c_size_t,
    c_uint,
    c_int64,
    c_void_p,
    POINTER(c_void_p),
    POINTER(c_void_p),
    POINTER(c_uint),
    POINTER(c_int64),
)
FREE = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_uint, c_int64)
DONE = CFUNCTYPE(None, c_void_p, c_uint, c_void_p)

TYPE_INT32, FINAL = 8, 1
TIMEOUT_SECONDS = 60


class Functions:
    """The functions of a library, and memory for responses."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        for name in ("ErrorMessage", "ErrorCodeString", "InferenceTraceActivityString"):
            getattr(self.library, f"TRITONSERVER_{name}").restype = c_char_p
        self.buffers: dict[int, object] = {}
        # ctypes keeps no reference to callbacks that C code stores.
        self.memory_callbacks = (
            ALLOCATE(self.allocate),
            FREE(lambda _allocator, buffer, *_: self.buffers.pop(buffer) and None),
        )

    def call(self, name: str, *arguments: object) -> str | None:
        """Calls a function that returns an error or null."""
        function = getattr(self.library, f"TRITONSERVER_{name}")
        function.restype = c_void_p
        error = c_void_p(function(*arguments))
        if not error:
            return None
        code = self.library.TRITONSERVER_ErrorCodeString(error).decode()
        text = self.library.TRITONSERVER_ErrorMessage(error).decode()
        self.library.TRITONSERVER_ErrorDelete(error)
        return f"{code}: {text}"

    def check_call(self, name: str, *arguments: object) -> None:
        """Calls a function that must not fail."""
        error = self.call(name, *arguments)
        assert error is None, f"{name}: {error}"

    def read(self, name: str, subject: c_void_p, kind: type) -> object:
        """The value that a function returns for an object."""
        place = kind()
        error = self.call(name, subject, byref(place))
        return error or (place.value.decode() if kind is c_char_p else place.value)

    def new_allocator(self) -> c_void_p:
        """An allocator for the outputs of responses."""
        allocator = c_void_p()
        self.check_call("ResponseAllocatorNew", byref(allocator), *self.memory_callbacks, None)
        return allocator

    def allocate(
        self, _allocator, _name, size, _type, _id, _userp, buffer, buffer_userp, type_, id_
    ) -> None:
        memory = ctypes.create_string_buffer(max(size, 1))
        buffer[0], buffer_userp[0] = ctypes.addressof(memory), None
        type_[0], id_[0] = 0, 0
        self.buffers[ctypes.addressof(memory)] = memory
