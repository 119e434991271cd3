"""Runs a model in ONNX Runtime on requests from sockets, with minimal overhead.

    python fed.py MODEL BATCH PORT

It measures what a server could reach on one core: a single thread reads requests into the
rows of the next batch, executes the batch when it is full, and responds. It knows little
of HTTP: only the end of the header and the length of the body. Of the protocol, it knows
only that the single tensor is at the end of the body. It needs more connections than
rows. It prints a line once it listens, and runs until it is killed.
"""

from __future__ import annotations

import collections
import re
import selectors
import socket
import sys

import direct
import numpy

HEAD_BYTES_MAX = 16_384
HEAD_END = b"\r\n\r\n"
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection:
    """A client, and the row that its request fills."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.row: memoryview | None = None
        self.filled = 0
        self._head_is_read = False

    def take(self, row: memoryview) -> None:
        """Starts a request that is read into this row."""
        self.row, self.filled, self._head_is_read = row, 0, False

    def read(self) -> bool:
        """Reads the available bytes, and returns true if the row is full."""
        assert self.row is not None
        if not self._head_is_read:
            self._read_head(self.row)
        while self.filled < len(self.row):
            try:
                count = self.stream.recv_into(self.row[self.filled :])
            except BlockingIOError:
                return False
            if count == 0:
                raise ConnectionError
            self.filled += count
        return True

    def _read_head(self, row: memoryview) -> None:
        """The clients of this loop send each header in one piece."""
        received = self.stream.recv(HEAD_BYTES_MAX)
        if not received:
            raise ConnectionError
        head, _, body = received.partition(HEAD_END)
        length = CONTENT_LENGTH.search(head)
        assert length is not None, head
        # The tensor is at the end of the body.
        described = int(length[1]) - len(row)
        while len(body) < described:
            body += self.stream.recv(HEAD_BYTES_MAX)
        tensor = body[described:]
        row[: len(tensor)] = tensor
        self.filled, self._head_is_read = len(tensor), True


class Loop:
    """All connections, and the batch that they fill."""

    def __init__(self, path: str, batch: int, port: int) -> None:
        self._session, name, shape = direct.session(path, batch)
        self._values = numpy.zeros(shape, dtype=numpy.float32)
        self._feed = {name: self._values}
        bytes_of_rows = memoryview(self._values).cast("B")
        size = len(bytes_of_rows) // batch
        self._rows = [bytes_of_rows[size * i : size * (i + 1)] for i in range(batch)]
        self._full: list[Connection] = []
        self._free = collections.deque(self._rows)
        self._parked: collections.deque[Connection] = collections.deque()
        self._selector = selectors.EpollSelector()
        self._listener = socket.create_server(("127.0.0.1", port))
        # Clients send the next batch while this one executes; nothing is read during that
        # time.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * size)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serves until the process is killed."""
        self._session.run(None, self._feed)
        print("ready", flush=True)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    stream, _ = self._listener.accept()
                    stream.setblocking(False)
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._watch(Connection(stream))
                else:
                    self._continue(key.data)
            while len(self._full) == len(self._rows):
                self._execute()

    def _watch(self, connection: Connection) -> None:
        self._selector.register(connection.stream, selectors.EVENT_READ, connection)

    def _continue(self, connection: Connection) -> None:
        """Continues reading. Connections without a row wait for the next batch."""
        if connection.row is None:
            if not self._free:
                self._selector.unregister(connection.stream)
                self._parked.append(connection)
                return
            connection.take(self._free.popleft())
        try:
            if connection.read():
                self._full.append(connection)
        except ConnectionError:
            self._selector.unregister(connection.stream)
            if connection.row is not None:
                self._free.append(connection.row)

    def _execute(self) -> None:
        (outputs,) = self._session.run(None, self._feed)
        index = {id(row): number for number, row in enumerate(self._rows)}
        done, self._full = self._full, []
        for connection in done:
            output = outputs[index[id(connection.row)]].tobytes()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(output)}\r\n\r\n"
            connection.row = None
            connection.stream.send(head.encode() + output)
        self._free.extend(self._rows)
        parked, self._parked = self._parked, collections.deque()
        for connection in parked:
            self._watch(connection)
            self._continue(connection)


if __name__ == "__main__":
    Loop(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).run()
