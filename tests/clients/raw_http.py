"""Raw HTTP, for requests that a client library would never send."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable

from server import REQUEST_SECONDS_MAX, Server


class Connection:
    """A TCP connection with a buffered reader."""

    def __init__(self, server: Server, timeout: float = REQUEST_SECONDS_MAX) -> None:
        """Connects to the main HTTP port."""
        self._socket = socket.create_connection(("127.0.0.1", server.http_port), timeout=timeout)
        self._reader = self._socket.makefile("rb")

    def __enter__(self) -> Connection:
        """It is used as a context manager so that tests don't leave any connection open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes both halves."""
        self._reader.close()
        self._socket.close()

    def send(self, *parts: bytes) -> None:
        """Sends bytes unchanged."""
        self._socket.sendall(b"".join(parts))

    def send_while_accepted(self, parts: Iterable[bytes]) -> bool:
        """Sends until all bytes are sent or the server closes the connection; returns true if
        all were sent."""
        try:
            for part in parts:
                self._socket.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def finish_sending(self) -> None:
        """Closes the sending half."""
        self._socket.shutdown(socket.SHUT_WR)

    def read_head(self) -> bytes:
        """Reads the status line and the headers of a response."""
        head = b""
        while (line := self._reader.readline()) not in (b"\r\n", b""):
            head += line
        return head

    def read_response(self) -> tuple[int, bytes] | None:
        """Reads a response with a Content-Length; returns None if the server has closed the
        connection."""
        try:
            status_line = self._reader.readline()
            if not status_line:
                return None
            length = 0
            while (line := self._reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            return int(status_line.split()[1]), self._reader.read(length)
        except ConnectionResetError:
            return None

    def has_something_to_read(self) -> bool:
        """Returns true if the server has sent something or closed the connection."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def is_closed_by_server(self) -> bool:
        """Returns true if the server has closed the connection."""
        try:
            return self._reader.read(1) == b""
        except ConnectionResetError:
            return True


def post(path: str, body: bytes, *headers: str) -> bytes:
    """The bytes of a POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(path: str, *headers: str) -> bytes:
    """The bytes of a GET request."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()
