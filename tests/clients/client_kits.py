"""The four clients of `tritonclient` behind a common interface."""

from __future__ import annotations

import asyncio
import inspect
import threading
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import np_to_triton_dtype

from server import Server

LIBRARIES: dict[str, ModuleType] = {
    "http": tritonclient.http,
    "grpc": tritonclient.grpc,
    "http aio": tritonclient.http.aio,
    "grpc aio": tritonclient.grpc.aio,
}
RESPONSE_SECONDS_MAX = 60.0


def public_names(owner: type | ModuleType) -> list[str]:
    """The methods and properties of a class, or the functions of a module."""
    if isinstance(owner, ModuleType):
        functions = inspect.getmembers(owner, inspect.isfunction)
        return [name for name, one in functions if one.__module__ == owner.__name__]
    return [name for name, _ in inspect.getmembers(owner) if not name.startswith("_")]


class Kit:
    """A client, and the names of the methods that were called on it."""

    def __init__(self, kind: str, server: Server) -> None:
        """Connects when the first method is called."""
        self.kind = kind
        self.server = server
        self.is_http = kind.startswith("http")
        self.library = LIBRARIES[kind]
        self.called: set[str] = set()
        self.client = self.library.InferenceServerClient(
            server.http_url if self.is_http else server.grpc_url
        )

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method, and waits for its result if it is a coroutine."""
        self.called.add(method)
        result = getattr(self.client, method)(*arguments, **named)
        return await result if inspect.iscoroutine(result) else result

    async def read(self, method: str, *arguments: Any, **named: Any) -> Any:
        """The result of a method as JSON, in which numbers over gRPC are texts."""
        if not self.is_http:
            await self.call(method, *arguments, **named)
            named = {**named, "as_json": True}
        return await self.call(method, *arguments, **named)

    def input(self, array: np.ndarray, name: str = "INPUT0") -> Any:
        """A tensor of a request."""
        tensor = self.library.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        return tensor.set_data_from_numpy(array)

    def output(self, **options: Any) -> Any:
        """A requested output."""
        return self.library.InferRequestedOutput("OUTPUT0", **options)


class Responses:
    """The results that a client's callbacks receive in another thread."""

    def __init__(self, count: int) -> None:
        """Waits for that many results."""
        self.found: list[tuple[Any, Any]] = []
        self._count = count
        self._complete = threading.Event()

    def __call__(self, result: Any, error: Any) -> None:
        """Takes one result."""
        self.found.append((result, error))
        if len(self.found) == self._count:
            self._complete.set()

    def wait(self) -> list[tuple[Any, Any]]:
        """Returns everything, both results and errors."""
        assert self._complete.wait(RESPONSE_SECONDS_MAX), self.found
        return self.found

    def results(self) -> list[Any]:
        """Returns all results, none of which may be an error."""
        pairs = self.wait()
        assert [error for _, error in pairs if error is not None] == []
        return [result for result, _ in pairs]


async def close(kit: Kit) -> None:
    """Closes the connection of any kind of client."""
    if "close" not in kit.called:
        result = kit.client.close()
        if asyncio.iscoroutine(result):
            await result
