"""The sockets between server and worker, as frames.

A is one socket in each direction, for executions; B is a single socket for both directions, for
everything else.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
from collections import deque
from struct import Struct
from typing import Optional, Union

from .errors import LOST, TritonModelException, WireError

#: The maximum length of a frame.
FRAME_BYTES_MAX = 64 << 20
#: The number of bytes requested by the first read of a frame; most frames are shorter.
_FIRST_READ = 65536
#: The interval at which a waiting reader executes Python code, without a global lock.
_WAKE_MILLISECONDS = 50

_U32 = Struct("<I")
_unpack_u32 = _U32.unpack_from
_pack_u32 = _U32.pack

Frame = Union[bytes, bytearray]


class Closed(Exception):
    """The other side has closed the socket."""


class FrameReader:
    """Reads frames from a socket; a typical frame takes one system call.

    A frame is returned with its four-byte length in front: the kind is byte 4, and the payload
    begins at 5.
    """

    __slots__ = ("_receive", "_receive_into", "_rest")

    def __init__(self, sock: socket.socket) -> None:
        self._receive = sock.recv
        self._receive_into = sock.recv_into
        self._rest = b""

    def read(self) -> Frame:
        """Waits for the next frame."""
        if self._rest:
            data = self._rest
            self._rest = b""
        else:
            data = self._receive(_FIRST_READ)
        if len(data) > 4 and _unpack_u32(data)[0] + 4 == len(data):
            return data
        return self._read_slowly(data)

    def _read_slowly(self, data: Frame) -> Frame:
        """Reads a frame that arrived in parts, or together with the next one."""
        while len(data) < 4:
            chunk = self._receive(_FIRST_READ)
            if not chunk:
                raise Closed
            data = bytes(data) + chunk
        size = _unpack_u32(data)[0]
        if size < 1 or size > FRAME_BYTES_MAX:
            raise WireError(f"a frame of {size} bytes")
        total = size + 4
        if len(data) >= total:
            self._rest = data[total:]
            return data[:total]
        frame = bytearray(total)
        frame[: len(data)] = data
        view = memoryview(frame)[len(data):]
        while view:
            count = self._receive_into(view)
            if count == 0:
                raise Closed
            view = view[count:]
        return frame


class WaitingReader(FrameReader):
    """A reader that keeps sleeping while the other side reads what was sent to it.

    On a socket for both directions, `recv` also wakes when the other side has read something.
    """

    __slots__ = ("_wait", "_milliseconds")

    def __init__(self, sock: socket.socket, milliseconds: Optional[int] = None) -> None:
        super().__init__(sock)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self._wait = poll.poll
        #: The interval at which the reader executes Python code: without a global lock, an
        #: object that one thread created and another dropped is freed only when the first
        #: executes Python code again. The end of a request must not wait for the next frame.
        self._milliseconds = milliseconds

    def read(self) -> Frame:
        """Waits for the next frame."""
        if not self._rest:
            while not self._wait(self._milliseconds):
                pass
        return super().read()


def reader(sock: socket.socket, both_ways: bool = False) -> FrameReader:
    """Returns the reader that suits the socket and the interpreter."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    if has_lock and not both_ways:
        return FrameReader(sock)
    return WaitingReader(sock, None if has_lock else _WAKE_MILLISECONDS)


class NoChannel:
    """Replaces the sockets in processes other than the model's own."""

    @staticmethod
    def refuse(*_: object) -> None:
        """Raises an error, because there would be no answer."""
        raise TritonModelException(LOST)

    send = refuse
    sent = 0

    def post(self, body: bytes) -> None:
        """Drops messages that only free memory of the model's process."""


class SideChannel:
    """Writes to socket B from any thread.

    Frames of one thread stay in order. Frames from the garbage collector (`post`) never wait for
    the lock, because it may interrupt the thread that holds the lock.
    """

    __slots__ = ("_sock", "_lock", "_posted", "sent")

    def __init__(self, sock: socket.socket) -> None:
        self._sock: Optional[socket.socket] = sock
        self._lock = threading.Lock()
        self._posted: deque = deque()
        #: The number of frames sent.
        self.sent = 0

    def send(self, body: bytes) -> None:
        """Sends a frame; waits while the socket is full."""
        with self._lock:
            self._write(body)
        if self._posted:
            self._drain()

    def post(self, body: bytes) -> None:
        """Sends a frame now, or leaves it to the thread that is already sending."""
        self._posted.append(body)
        self._drain()

    def _drain(self) -> None:
        posted = self._posted
        while posted and self._lock.acquire(False):
            try:
                while posted:
                    self._write(posted.popleft())
            except (OSError, TritonModelException, IndexError):
                posted.clear()
            finally:
                self._lock.release()

    def _write(self, body: bytes) -> None:
        sock = self._sock
        if sock is None:
            NoChannel.refuse()
            return
        if len(body) > FRAME_BYTES_MAX:
            raise TritonModelException(
                f"a message of {len(body)} bytes is longer than {FRAME_BYTES_MAX} bytes")
        sock.sendall(_pack_u32(len(body)) + body)
        self.sent += 1

    def close_in_child(self) -> None:
        """Makes the channel useless in a forked process."""
        self._lock = threading.Lock()
        self._posted.clear()
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
