"""Servers of object stores, and a proxy in front of them that delays and cuts connections and
records requests."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import email.utils
import hashlib
import hmac
import http.client
import os
import pathlib
import re
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence

import pytest

from perf_tools import find
from server import free_ports, wait_until

BUCKET = "models"
ACCOUNT = "devstoreaccount1"
# The published key of Azurite's only account, which isn't a secret.
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


@dataclasses.dataclass(frozen=True)
class Store:
    """A running server of an object store."""

    port: int
    process: subprocess.Popen[bytes]

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> bytes:
        """Sends a request, which must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            content = response.read()
            assert response.status < 300, (method, path, response.status, content)
            return content
        finally:
            connection.close()

    def put(self, path: str, content: bytes) -> None:
        """Writes an object."""
        raise NotImplementedError

    def upload(self, folder: pathlib.Path, prefix: str = "") -> None:
        """Writes all files in a directory."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}{path.relative_to(folder)}", path.read_bytes())


class S3(Store):
    """moto, which keeps its objects in memory."""

    # It accepts any signature, but requires one.
    SIGNED = {
        "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, "
        "SignedHeaders=host, Signature=0"
    }

    def put(self, path: str, content: bytes) -> None:
        """Writes an object."""
        headers = {**self.SIGNED, "Content-Type": "application/octet-stream"}
        self.request("PUT", f"/{BUCKET}/{urllib.parse.quote(path)}", content, headers)

    def delete(self, path: str) -> None:
        """Removes an object."""
        self.request("DELETE", f"/{BUCKET}/{urllib.parse.quote(path)}", headers=self.SIGNED)

    def demand_known_keys(self) -> None:
        """From now on, keys that moto didn't issue are refused."""
        self.request("POST", "/moto-api/reset-auth", b"0")


class Azure(Store):
    """Azurite."""

    def put(self, path: str, content: bytes) -> None:
        """Writes a blob."""
        self.signed("PUT", f"/{BUCKET}/{path}", content, {"x-ms-blob-type": "BlockBlob"})

    def signed(
        self, method: str, path: str, body: bytes, headers: dict[str, str], query: str = ""
    ) -> None:
        """Sends a request with the account's signature."""
        date = email.utils.format_datetime(datetime.datetime.now(datetime.UTC), usegmt=True)
        extra = {**headers, "x-ms-date": date, "x-ms-version": "2021-08-06"}
        listed = "".join(f"{name}:{extra[name]}\n" for name in sorted(extra))
        parameters = "".join(f"\n{pair.replace('=', ':')}" for pair in query.split("&") if pair)
        length = str(len(body)) if body else ""
        kind = "application/octet-stream"
        text = (
            f"{method}\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{listed}"
            f"/{ACCOUNT}/{ACCOUNT}{path}{parameters}"
        )
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
        signature = base64.b64encode(digest).decode()
        extra |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Type": kind}
        self.request(method, f"/{ACCOUNT}{path}" + (f"?{query}" if query else ""), body, extra)


class Gcs(Store):
    """fake-gcs-server."""

    def put(self, path: str, content: bytes) -> None:
        """Writes an object."""
        name = urllib.parse.quote(path, safe="")
        headers = {"Content-Type": "application/octet-stream"}
        query = f"uploadType=media&name={name}"
        self.request("POST", f"/upload/storage/v1/b/{BUCKET}/o?{query}", content, headers)


def answers(port: int) -> bool:
    """Returns true if a server accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def running(
    command: Sequence[str | pathlib.Path], port: int, log: pathlib.Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server until the test ends."""
    with log.open("wb") as output:
        process = subprocess.Popen([*command], stdout=output, stderr=output)
    try:
        wait_until(lambda: answers(port) or process.poll() is not None, 90, "the store answers")
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def moto(folder: pathlib.Path) -> Iterator[S3]:
    """An S3 server with an empty bucket; the test is skipped without `moto_server`."""
    program = find("moto_server", "GALATEA_MOTO_SERVER")
    (port,) = free_ports(1)
    command = [program, "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, folder / "moto.log") as process:
        store = S3(port, process)
        store.request("PUT", f"/{BUCKET}", headers=S3.SIGNED)
        yield store


@contextlib.contextmanager
def azurite(folder: pathlib.Path) -> Iterator[Azure]:
    """An Azure blob server with an empty container. It only runs on request."""
    if not (program := os.environ.get("GALATEA_AZURITE_BLOB")):
        pytest.skip("GALATEA_AZURITE_BLOB is not set")
    (port,) = free_ports(1)
    options = ["--skipApiVersionCheck", "--inMemoryPersistence"]
    command = [program, "--blobPort", str(port), *options]
    with running(command, port, folder / "azurite.log") as process:
        store = Azure(port, process)
        store.signed("PUT", f"/{BUCKET}", b"", {}, "restype=container")
        yield store


@contextlib.contextmanager
def fake_gcs(folder: pathlib.Path) -> Iterator[Gcs]:
    """A Google Cloud Storage server with an empty bucket. It only runs on request."""
    if not (program := os.environ.get("GALATEA_FAKE_GCS_SERVER")):
        pytest.skip("GALATEA_FAKE_GCS_SERVER is not set")
    (port,) = free_ports(1)
    address = ["-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    command = [program, "-scheme", "http", "-backend", "memory", *address]
    with running(command, port, folder / "gcs.log") as process:
        store = Gcs(port, process)
        content = {"Content-Type": "application/json"}
        store.request("POST", "/storage/v1/b", b'{"name": "%s"}' % BUCKET.encode(), content)
        yield store


class Proxy:
    """Forwards connections, delays the servers' responses, and remembers the clients' requests."""

    def __init__(self, target: int, delay_seconds: float = 0.0) -> None:
        """Listens. `cut_after` is the number of bytes after which a response is cut, once."""
        self.target = target
        self.delay_seconds = delay_seconds
        self.cut_after: int | None = None
        #: Answers pass while it is open; `stalled` counts those that wait.
        self.gate = threading.Event()
        self.gate.set()
        self.stalled = 0
        #: Status lines of the next answers, which the proxy gives itself.
        self.refusals: list[str] = []
        #: What is done once, before a request that begins so is passed on.
        self.before_request: tuple[str, Callable[[], None]] | None = None
        self.asked: list[str] = []
        self.keys: set[str] = set()
        self.open_requests = 0
        self.open_requests_max = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accepts no more connections."""
        # A thread that waits in accept would keep the port open.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def take_asked(self) -> list[str]:
        """The objects and lists that were requested since the last call."""
        with self.lock:
            asked, self.asked = self.asked, []
        return asked

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                for line in re.findall(rb"(?m)^(?:GET|HEAD|PUT|POST) \S+", data):
                    with self.lock:
                        self.asked.append(urllib.parse.unquote(line.decode()))
                        self.open_requests += 1
                        self.open_requests_max = max(self.open_requests_max, self.open_requests)
                self.keys |= set(re.findall(r"Credential=(\w+)/", data.decode("latin-1")))
                if self._refuse(client):
                    break
                self._do_before(data)
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _refuse(self, client: socket.socket) -> bool:
        with self.lock:
            status = self.refusals.pop(0) if self.refusals else ""
        if status:
            head = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            client.sendall(head.encode())
        return bool(status)

    def _do_before(self, data: bytes) -> None:
        with self.lock:
            before = self.before_request
            if before is None or not data.startswith(before[0].encode()):
                return
            self.before_request = None
        before[1]()

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if data.startswith(b"HTTP/1.1 "):
                    # sleep: a distant store takes a while, whatever the test does
                    time.sleep(self.delay_seconds)
                    with self.lock:
                        self.stalled += not self.gate.is_set()
                    self.gate.wait()
                    with self.lock:
                        self.open_requests -= 1
                with self.lock:
                    cut = self.cut_after is not None and self.cut_after < len(data)
                    if self.cut_after is not None:
                        self.cut_after = None if cut else self.cut_after - len(data)
                if cut:
                    break
                client.sendall(data)
        for side in (server, client):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy(store: Store, delay_seconds: float = 0.0) -> Iterator[Proxy]:
    """A proxy in front of a store."""
    between = Proxy(store.port, delay_seconds)
    try:
        yield between
    finally:
        between.close()
