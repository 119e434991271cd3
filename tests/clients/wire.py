"""The order in which gRPC requests reach a server, and in which their calls end.

A proxy reads both from the connection, because the client library neither sends concurrent
calls in the order in which they were started, nor reports their ends in that order.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from server import Server

FRAME_HEADER_BYTES = 9
DATA, HEADERS = 0, 1
END_STREAM = 1


class Tap:
    """Forwards connections to a server's gRPC endpoint, and records the streams."""

    def __init__(self, server: Server) -> None:
        self._port = server.grpc_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        #: The HTTP/2 streams of whole requests, as they were sent.
        self.requests: list[int] = []
        #: The same of whole responses.
        self.responses: list[int] = []
        #: How many bytes the server has sent.
        self.response_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def grpc_url(self) -> str:
        """The address that a client uses instead of the server's."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Ends all connections."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                for way in ((client, server, self.requests), (server, client, self.responses)):
                    threading.Thread(target=self._forward, args=way, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, ended: list[int]) -> None:
        unread = b""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                unread = _record_streams(unread + data, ended)
                if ended is self.responses:
                    self.response_bytes += len(data)
                target.sendall(data)


def _record_streams(frames: bytes, ended: list[int]) -> bytes:
    """Reads whole frames, and returns the remaining bytes."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    frames = frames.removeprefix(preface)
    while len(frames) >= FRAME_HEADER_BYTES:
        end = FRAME_HEADER_BYTES + int.from_bytes(frames[:3])
        if len(frames) < end:
            break
        if frames[3] in (DATA, HEADERS) and frames[4] & END_STREAM:
            ended.append(int.from_bytes(frames[5:9]) & 0x7FFF_FFFF)
        frames = frames[end:]
    return frames
