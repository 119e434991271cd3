"""A client for very many sequences at once, which keeps many requests in flight."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterable, Iterator

MODEL = "sequences"
#: As many sequences may be live as there are numbers of seven digits from here on, so that all
#: requests of a kind, and all responses, have one length.
FIRST_ID, LIVE_MAX = 1_000_000, 1_000_000
CONNECTIONS, IN_FLIGHT = 8, 64

CONFIG = """\
name: "%s"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  oldest { max_candidate_sequences: %d }
  max_sequence_idle_microseconds: 3600000000
}
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def config() -> str:
    """The model's configuration."""
    return CONFIG % (MODEL, LIVE_MAX)


def request(number: int, *, is_start: bool) -> bytes:
    """A request of a sequence that continues afterwards."""
    parameters = {"sequence_id": FIRST_ID + number, "sequence_start": is_start}
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    body = json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def start(address: str, count: int, begin: int = 0) -> None:
    """Starts this many sequences."""
    numbers = range(begin, begin + count)
    send(address, (request(number, is_start=True) for number in numbers))


def go_on(address: str, live: int, count: int, seed: int = 1) -> None:
    """Sends requests of randomly chosen live sequences."""
    draw = random.Random(seed)
    send(address, (request(draw.randrange(live), is_start=False) for _ in range(count)))


def send(address: str, requests: Iterable[bytes]) -> None:
    """Sends requests over all connections in turn. Every response must be a success."""
    host, _, port = address.partition(":")
    clients = [Client(host, int(port)) for _ in range(CONNECTIONS)]
    try:
        for number, batch in enumerate(_batches(iter(requests))):
            clients[number % CONNECTIONS].send(batch)
        for client in clients:
            client.read()
    finally:
        for client in clients:
            client.close()


def _batches(requests: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := [one for _, one in zip(range(IN_FLIGHT), requests, strict=False)]:
        yield batch


class Client:
    """A connection with a batch of requests in flight."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=120)
        self._reader = self._socket.makefile("rb", 1 << 20)
        self._open = 0

    def send(self, batch: list[bytes]) -> None:
        """Sends a batch once the previous batch has its responses."""
        self.read()
        self._socket.sendall(b"".join(batch))
        self._open = len(batch)

    def read(self) -> None:
        """Reads the responses of the batch."""
        for _ in range(self._open):
            self._read_one()
        self._open = 0

    def _read_one(self) -> None:
        status = self._reader.readline()
        length = 0
        while (line := self._reader.readline()) != b"\r\n":
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        body = self._reader.read(length)
        if not status.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{status!r}: {body!r}")

    def close(self) -> None:
        """Closes the connection."""
        self._reader.close()
        self._socket.close()
