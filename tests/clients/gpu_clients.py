"""A client with GPU memory, which it shares with the server.

The driver in tests/devices stands in for NVIDIA's, in the server and in the test.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import pathlib
from collections.abc import Iterator
from typing import Any

import tritonclient.http

from server import Server

ALLOWED = "--allow-client-shm=true"
SIZE = 4096


class Client:
    """The driver in the test's own process: either the one in a directory, or the machine's."""

    def __init__(self, library: pathlib.Path | None) -> None:
        name = "libcuda.so.1"
        self.driver = ctypes.CDLL(str(library / name) if library else name)
        self.call("cuInit", 0)
        #: Contexts end with their last use, and with them their memory.
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: Any) -> None:
        assert getattr(self.driver, name)(*arguments) == 0, name

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """A device's context."""
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device] = context
        self.call("cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class Memory:
    """GPU memory that the test allocates."""

    def __init__(self, client: Client, device: int, byte_size: int = SIZE) -> None:
        self.client, self.device, self.byte_size = client, device, byte_size
        self.address = ctypes.c_uint64()
        raw_handle = (ctypes.c_ubyte * 64)()
        with client.on(device):
            client.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(byte_size))
            client.call("cuIpcGetMemHandle", raw_handle, self.address)
        self.raw_handle = bytes(raw_handle)

    def _copy(self, to: Any, source: Any, byte_size: int) -> None:
        stream = ctypes.c_void_p()
        with self.client.on(self.device):
            call = self.client.call
            call("cuStreamCreateWithPriority", ctypes.byref(stream), 0, 0)
            call("cuMemcpyAsync", to, source, ctypes.c_size_t(byte_size), stream)
            call("cuStreamSynchronize", stream)
            call("cuStreamDestroy_v2", stream)

    def put(self, content: bytes, offset: int = 0) -> None:
        """Writes to the memory."""
        buffer = ctypes.create_string_buffer(content, len(content))
        to = ctypes.c_uint64(self.address.value + offset)
        self._copy(to, ctypes.c_uint64(ctypes.addressof(buffer)), len(content))

    def get(self, byte_size: int, offset: int = 0) -> bytes:
        """The contents of the memory."""
        buffer = ctypes.create_string_buffer(byte_size)
        source = ctypes.c_uint64(self.address.value + offset)
        self._copy(ctypes.c_uint64(ctypes.addressof(buffer)), source, byte_size)
        return buffer.raw

    def free(self) -> None:
        with self.client.on(self.device):
            self.client.call("cuMemFree_v2", self.address)


def register(server: Server, name: str, one: Memory, byte_size: int = SIZE) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url) as http:
        handle = base64.b64encode(one.raw_handle)
        http.register_cuda_shared_memory(name, handle, one.device, byte_size)


def unregister(server: Server, name: str = "") -> None:
    with tritonclient.http.InferenceServerClient(server.http_url) as http:
        http.unregister_cuda_shared_memory(name)
