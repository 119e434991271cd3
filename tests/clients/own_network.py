"""A separate network, for clients that support only Triton's ports."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterator

import pytest

#: HTTP, gRPC and metrics.
STANDARD_PORTS = (8000, 8001, 8002)

CLONE_NEWNET = 0x40000000
GET_FLAGS, SET_FLAGS = 0x8913, 0x8914
INTERFACE_IS_UP = 1


def raise_loopback() -> None:
    """Starts the `lo` interface of a new network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        form = "16sh14x"
        request = fcntl.ioctl(one, GET_FLAGS, struct.pack(form, b"lo", 0))
        _, flags = struct.unpack(form, request)
        fcntl.ioctl(one, SET_FLAGS, struct.pack(form, b"lo", flags | INTERFACE_IS_UP))


def skip_unless_free() -> None:
    """Without permission to create a network, the machine's ports have to be free."""
    for port in STANDARD_PORTS:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is in use, and only root may make a network")


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Gives this thread, and the processes that it starts, exclusive use of Triton's
    ports."""
    library = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as machine:
        if library.unshare(CLONE_NEWNET) != 0:
            skip_unless_free()
            yield
            return
        try:
            raise_loopback()
            yield
        finally:
            assert library.setns(machine.fileno(), CLONE_NEWNET) == 0
