"""HTTP/2 connections, frame by frame, for clients that behave in ways that libraries don't."""

from __future__ import annotations

import contextlib
import dataclasses
import select
import socket
from collections.abc import Callable, Iterator

from server import Server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
NO_ERROR, ENHANCE_YOUR_CALM = 0, 11
TIMEOUT_SECONDS = 60


@dataclasses.dataclass
class Frame:
    """A frame that the server sent."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def reason(self) -> int:
        """The error code of a GOAWAY frame."""
        return int.from_bytes(self.payload[4:8])

    @property
    def last_stream(self) -> int:
        """The last stream that a GOAWAY frame names."""
        return int.from_bytes(self.payload[:4])


class Http2Connection:
    """A connection whose client only does what a test requests."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.grpc_port), TIMEOUT_SECONDS)
        self._unread = b""
        self._next_stream = 1
        self.send(PREFACE, frame(SETTINGS))

    def send(self, *parts: bytes) -> None:
        """Sends bytes in one system call."""
        self._socket.sendall(b"".join(parts))

    def call(self, path: str, message: bytes | None) -> int:
        """Starts a call, with a message if it is complete, and returns its stream."""
        stream = self._next_stream
        self._next_stream += 2
        self.send(frame(HEADERS, END_HEADERS, stream, request_head(path)))
        if message is not None:
            body = b"\0" + len(message).to_bytes(4) + message
            self.send(frame(DATA, END_STREAM, stream, body))
        return stream

    def frames(self) -> Iterator[Frame]:
        """The server's frames until it closes the connection."""
        while True:
            length = int.from_bytes(self._unread[:3])
            if len(self._unread) < 9 or len(self._unread) < 9 + length:
                data = b""
                with contextlib.suppress(ConnectionResetError):
                    data = self._socket.recv(65536)
                if not data:
                    return
                self._unread += data
                continue
            head, payload = self._unread[:9], self._unread[9 : 9 + length]
            self._unread = self._unread[9 + length :]
            yield Frame(head[3], head[4], int.from_bytes(head[5:]), payload)

    def read_until(self, predicate: Callable[[Frame], bool]) -> Frame:
        """The next frame that satisfies the predicate; other frames are skipped."""
        for one in self.frames():
            if predicate(one):
                return one
        raise ConnectionError("the server closed the connection")

    def read_end(self) -> list[Frame]:
        """The remaining frames, after the server has closed the connection."""
        return list(self.frames())

    def has_something_to_read(self) -> bool:
        """Returns true if the server has sent more, or closed the connection."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def __enter__(self) -> Http2Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame."""
    head = len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4)
    return head + payload


def ping() -> bytes:
    """A ping of the client."""
    return frame(PING, payload=b"12345678")


def is_ping(one: Frame) -> bool:
    """Returns true if the frame is a ping from the server."""
    return one.kind == PING and not one.flags & ACK


def is_goaway(one: Frame) -> bool:
    """Returns true if the frame announces the end of the connection."""
    return one.kind == GOAWAY


def is_end_of(stream: int) -> Callable[[Frame], bool]:
    """Returns true if the frame ends the response on a stream."""
    return lambda one: one.stream == stream and one.kind in (HEADERS, DATA) and bool(one.flags & 1)


def request_head(path: str) -> bytes:
    """The encoded header block of a call, without any compression."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    head = b""
    for name, value in headers.items():
        # A literal without indexing, with a new name, both without Huffman coding.
        head += b"\0" + bytes([len(name)]) + name.encode()
        head += bytes([len(value)]) + value.encode()
    return head
