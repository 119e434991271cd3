"""A server inside a Python program that uses only the standard library.

    python examples/c_api/in_process.py target/release/libtritonserver.so MODEL_REPOSITORY

The repository has a model "identity" that returns its INT32 input INPUT0 as
OUTPUT0.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)

# Constants from tritonserver.h.
MEMORY_CPU = 0
TYPE_INT32 = 8
MODEL_CONTROL_POLL = 1
MODEL_CONTROL_EXPLICIT = 2
RESPONSE_COMPLETE_FINAL = 1

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
RELEASED = CFUNCTYPE(None, c_void_p, c_uint32, c_void_p)
RESPONSE_CALLBACK = CFUNCTYPE(None, c_void_p, c_uint32, c_void_p)


class Server:
    """A server in this process."""

    def __init__(
        self, library: str, repository: str, control_mode: int = MODEL_CONTROL_EXPLICIT
    ) -> None:
        self._library = ctypes.CDLL(library)
        self._library.TRITONSERVER_ErrorMessage.restype = c_char_p
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        # ctypes keeps no reference to callbacks that C code stores.
        self._allocate, self._free = ALLOCATE(self._on_allocate), FREE(self._on_free)
        self._allocator = c_void_p()
        self._call("ResponseAllocatorNew", byref(self._allocator), self._allocate, self._free, None)

        options = c_void_p()
        self._call("ServerOptionsNew", byref(options))
        self._call("ServerOptionsSetModelRepositoryPath", options, repository.encode())
        self._call("ServerOptionsSetModelControlMode", options, c_uint(control_mode))
        self._call("ServerOptionsSetLogInfo", options, ctypes.c_bool(False))
        self._server = c_void_p()
        self._call("ServerNew", byref(self._server), options)
        self._call("ServerOptionsDelete", options)

    def _call(self, name: str, *arguments: object) -> None:
        """Calls a function that returns an error or null."""
        function = getattr(self._library, f"TRITONSERVER_{name}")
        function.restype = c_void_p
        error = c_void_p(function(*arguments))
        if error:
            message = self._library.TRITONSERVER_ErrorMessage(error).decode()
            self._library.TRITONSERVER_ErrorDelete(error)
            raise RuntimeError(f"{name}: {message}")

    def _on_allocate(
        self, _allocator, _name, size, _type, _id, _userp, buffer, _buffer_userp, type_, id_
    ) -> None:
        memory = ctypes.create_string_buffer(max(size, 1))
        buffer[0], type_[0], id_[0] = ctypes.addressof(memory), MEMORY_CPU, 0
        self._buffers[ctypes.addressof(memory)] = memory

    def _on_free(self, _allocator, buffer, *_) -> None:
        del self._buffers[buffer]

    def load(self, model: str) -> None:
        """Loads a model of the repository."""
        self._call("ServerLoadModel", self._server, model.encode())

    def poll(self) -> None:
        """Loads and unloads models that changed in the repository, in poll mode."""
        self._call("ServerPollModelRepository", self._server)

    def metadata(self) -> dict[str, object]:
        """The server's name, version and extensions."""
        message, base, size = c_void_p(), c_char_p(), c_size_t()
        self._call("ServerMetadata", self._server, byref(message))
        self._call("MessageSerializeToJson", message, byref(base), byref(size))
        document = json.loads(ctypes.string_at(base, size.value))
        self._call("MessageDelete", message)
        return document

    def infer(self, model: str, values: list[int]) -> list[int]:
        """Sends the values as one row and returns the row of the response."""
        released, responded = threading.Event(), threading.Event()
        responses: list[int] = []

        @RELEASED
        def on_release(_request, _flags, _userp) -> None:
            released.set()

        @RESPONSE_CALLBACK
        def on_response(response, flags, _userp) -> None:
            if response:
                responses.append(response)
            if flags & RESPONSE_COMPLETE_FINAL:
                responded.set()

        data = (c_int32 * len(values))(*values)
        shape = (c_int64 * 2)(1, len(values))
        request = c_void_p()
        self._call(
            "InferenceRequestNew", byref(request), self._server, model.encode(), c_int64(-1)
        )
        self._call(
            "InferenceRequestAddInput", request, b"INPUT0", c_uint(TYPE_INT32), shape, c_uint64(2)
        )
        self._call(
            "InferenceRequestAppendInputData",
            request,
            b"INPUT0",
            data,
            c_size_t(ctypes.sizeof(data)),
            c_uint(MEMORY_CPU),
            c_int64(0),
        )
        self._call("InferenceRequestSetReleaseCallback", request, on_release, None)
        self._call(
            "InferenceRequestSetResponseCallback",
            request,
            self._allocator,
            None,
            on_response,
            None,
        )
        self._call("ServerInferAsync", self._server, request, None)
        responded.wait()
        released.wait()
        try:
            return self._read(c_void_p(responses[0]))
        finally:
            self._call("InferenceResponseDelete", c_void_p(responses[0]))
            self._call("InferenceRequestDelete", request)

    def _read(self, response: c_void_p) -> list[int]:
        self._call("InferenceResponseError", response)
        name, datatype, shape, dims = c_char_p(), c_uint(), POINTER(c_int64)(), c_uint64()
        base, size, type_, id_, userp = c_void_p(), c_size_t(), c_uint(), c_int64(), c_void_p()
        self._call(
            "InferenceResponseOutput",
            response,
            c_uint32(0),
            *map(byref, (name, datatype, shape, dims, base, size, type_, id_, userp)),
        )
        count = size.value // ctypes.sizeof(c_int32)
        return list(ctypes.cast(base, POINTER(c_int32 * count)).contents)

    def close(self) -> None:
        """Unloads all models and ends the server."""
        self._call("ServerDelete", self._server)
        self._call("ResponseAllocatorDelete", self._allocator)


def main() -> None:
    """Sends a row to the model and prints the response."""
    library, repository = sys.argv[1:]
    server = Server(library, repository)
    print(server.metadata()["name"])
    server.load("identity")
    print(server.infer("identity", [1, 2, 3]))
    server.close()


if __name__ == "__main__":
    main()
