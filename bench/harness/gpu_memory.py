"""Requests whose tensors are sent over plain HTTP, in system shared memory, or in GPU memory."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import http.client
import json
import mmap
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

WAYS = ["http", "system", "cuda"]
MODEL = "identity"
JSON_HEADER = "Inference-Header-Content-Length"


class Driver:
    """NVIDIA's driver in this process, for one GPU."""

    def __init__(self, gpu: int) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), gpu)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with {code}")

    def allocate(self, byte_size: int) -> tuple[ctypes.c_uint64, bytes]:
        """Memory, with the handle by which other processes open it."""
        address, handle = ctypes.c_uint64(), (ctypes.c_ubyte * 64)()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(byte_size))
        self.call("cuIpcGetMemHandle", handle, address)
        return address, bytes(handle)

    def free(self, address: ctypes.c_uint64) -> None:
        """Frees memory."""
        self.call("cuMemFree_v2", address)


class Client:
    """A connection, with its registered regions."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
        """Sends a request, and returns the body of the response."""
        self._connection.request("POST", path, body, headers or {})
        reply = self._connection.getresponse()
        content = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {content[:300]!r}")
        return content

    def latencies(self, body: bytes, headers: dict[str, str], seconds: float) -> list[float]:
        """Sends requests one after the other for some time, and returns the time that each took."""
        taken, end = [], time.monotonic() + seconds
        while not taken or time.monotonic() < end:
            begin = time.monotonic()
            self.post(f"/v2/models/{MODEL}/infer", body, headers)
            taken.append(time.monotonic() - begin)
        return taken


def _tensors(count: int, region: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The input and output of a request. The output is in the second half of the region."""
    source: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32", "shape": [1, count]}
    target: dict[str, Any] = {"name": "OUTPUT0"}
    if region is None:
        source["parameters"] = {"binary_data_size": 4 * count}
        target["parameters"] = {"binary_data": True}
        return source, target
    place = {"shared_memory_region": region, "shared_memory_byte_size": 4 * count}
    source["parameters"] = place
    target["parameters"] = {**place, "shared_memory_offset": 4 * count}
    return source, target


@contextlib.contextmanager
def _region(client: Client, way: str, byte_size: int, gpu: int) -> Iterator[str | None]:
    """A registered region with room for the input and output; `None` for plain HTTP."""
    if way == "http":
        yield None
        return
    name = f"bench-{os.getpid()}"
    kind = f"{way}sharedmemory"
    if way == "system":
        path = pathlib.Path("/dev/shm") / name
        with path.open("w+b") as file:
            file.truncate(byte_size)
            with mmap.mmap(file.fileno(), byte_size) as memory:
                memory[:] = bytes(byte_size)
        body: dict[str, Any] = {"key": f"/{name}", "offset": 0, "byte_size": byte_size}
    else:
        driver = Driver(gpu)
        address, handle = driver.allocate(byte_size)
        raw = {"b64": base64.b64encode(handle).decode()}
        body = {"raw_handle": raw, "device_id": gpu, "byte_size": byte_size}
    client.post(f"/v2/{kind}/region/{name}/register", json.dumps(body).encode())
    try:
        yield name
    finally:
        client.post(f"/v2/{kind}/region/{name}/unregister", b"")
        if way == "system":
            path.unlink()
        else:
            driver.free(address)


def latencies(port: int, way: str, mebibytes: int, gpu: int, seconds: float) -> list[float]:
    """The latencies of requests with a tensor of this size in both directions."""
    byte_size, client = mebibytes << 20, Client(port)
    with _region(client, way, 2 * byte_size, gpu) as region:
        source, target = _tensors(byte_size // 4, region)
        head = json.dumps({"inputs": [source], "outputs": [target]}).encode()
        if region is None:
            return client.latencies(head + bytes(byte_size), {JSON_HEADER: str(len(head))}, seconds)
        return client.latencies(head, {}, seconds)
