"""Clients that share memory: their objects, regions, and inferences over each protocol."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import pathlib
import queue
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import np_to_triton_dtype

from server import Server

PAGE = mmap.PAGESIZE
PROTOCOLS = ["http", "grpc", "http aio", "grpc aio", "grpc stream"]


class Object:
    """A shared memory object."""

    def __init__(self, byte_size: int) -> None:
        """Creates an object filled with zeros."""
        self.key = f"/galatea_test_{uuid.uuid4().hex}"
        self.path = pathlib.Path("/dev/shm") / self.key[1:]
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.resize(byte_size)

    def resize(self, byte_size: int) -> None:
        """Shortens or lengthens the object."""
        os.ftruncate(self.file, byte_size)

    def put(self, content: bytes, offset: int = 0) -> None:
        """Writes to the object."""
        assert os.pwrite(self.file, content, offset) == len(content)

    def get(self, byte_size: int, offset: int = 0) -> bytes:
        """The contents of the object."""
        return os.pread(self.file, byte_size, offset)

    def close(self) -> None:
        """Removes the object."""
        os.close(self.file)
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def shared_object(byte_size: int) -> Iterator[Object]:
    """An object that is removed at the end."""
    one = Object(byte_size)
    try:
        yield one
    finally:
        one.close()


def register(server: Server, name: str, key: str, byte_size: int, offset: int = 0) -> None:
    """Registers a region over HTTP."""
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        client.register_system_shared_memory(name, key, byte_size, offset)


def unregister(server: Server, name: str = "") -> None:
    """Unregisters a region, or all of them, over HTTP."""
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        client.unregister_system_shared_memory(name)


def infer(
    server: Server,
    protocol: str,
    model: str,
    inputs: dict[str, np.ndarray | tuple[str, list[int], str, int, int]],
    outputs: dict[str, tuple[str, int, int] | None],
) -> Any:
    """An inference. A tuple is a location: the region, the byte size and the offset.

    An input in a region also has a shape and a type before these.
    """
    kind = tritonclient.http if protocol.startswith("http") else tritonclient.grpc
    tensors, wanted = [], []
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            tensor = kind.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
            tensor.set_data_from_numpy(value)
        else:
            datatype, shape, region, byte_size, offset = value
            tensor = kind.InferInput(name, shape, datatype)
            tensor.set_shared_memory(region, byte_size, offset)
        tensors.append(tensor)
    for name, place in outputs.items():
        output = kind.InferRequestedOutput(name)
        if place is not None:
            output.set_shared_memory(*place)
        wanted.append(output)
    return SENDERS[protocol](server, model, tensors, wanted)


def _http(server: Server, model: str, inputs: list[Any], outputs: list[Any]) -> Any:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        return client.infer(model, inputs, outputs=outputs)


def _grpc(server: Server, model: str, inputs: list[Any], outputs: list[Any]) -> Any:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        return client.infer(model, inputs, outputs=outputs)


def _http_aio(server: Server, model: str, inputs: list[Any], outputs: list[Any]) -> Any:
    async def send() -> Any:
        async with tritonclient.http.aio.InferenceServerClient(server.http_url) as client:
            return await client.infer(model, inputs, outputs=outputs)

    return asyncio.run(send())


def _grpc_aio(server: Server, model: str, inputs: list[Any], outputs: list[Any]) -> Any:
    async def send() -> Any:
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc_url) as client:
            return await client.infer(model, inputs, outputs=outputs)

    return asyncio.run(send())


def _grpc_stream(server: Server, model: str, inputs: list[Any], outputs: list[Any]) -> Any:
    replies: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: replies.put(error or result))
        client.async_stream_infer(model, inputs, outputs=outputs)
        reply = replies.get(timeout=60)
        client.stop_stream()
    if isinstance(reply, Exception):
        raise reply
    return reply


SENDERS = {
    "http": _http,
    "grpc": _grpc,
    "http aio": _http_aio,
    "grpc aio": _grpc_aio,
    "grpc stream": _grpc_stream,
}
