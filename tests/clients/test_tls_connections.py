"""Tests of TLS connections: new certificates while they are in use, slow handshakes, clients
that leave, and the server's stop."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy
import pytest
import tritonclient.grpc
from conftest import StartServer
from latch import Latch

from raw_http import post
from server import Server, wait_until
from tls_clients import (
    MODEL,
    connect,
    context,
    grpc_options,
    https,
    over_grpc,
    served_serial,
    status_of,
    vector,
    wait_until_open,
    write_echo,
)
from tls_files import Authority, Identity

pytestmark = pytest.mark.galatea_only

RELOAD_SECONDS_MAX = 60.0

#: More than the I/O threads of a server, and enough to be noticed if they blocked.
SLOW_CLIENTS = 200

#: The beginning of the first message of a handshake.
HELLO = bytes([22, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3]) + bytes(64)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of servers and clients."""
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model that returns its input."""
    return write_echo(tmp_path_factory.mktemp("echo"))


class Volume:
    """Files as Kubernetes mounts them: links through a directory that is replaced atomically."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._number = 0
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(pathlib.Path("..data") / name)

    def show(self, certificate: bytes, key: bytes) -> None:
        """Replaces the files with new ones."""
        self._number += 1
        version = self._folder / f"version_{self._number}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate)
        (version / "tls.key").write_bytes(key)
        (self._folder / "..next").symlink_to(version.name)
        os.replace(self._folder / "..next", self._folder / "..data")

    def show_identity(self, identity: Identity) -> None:
        """The same for the files of an identity."""
        self.show(identity.certificate.read_bytes(), identity.key.read_bytes())

    def flags(self, door: str) -> list[str]:
        """The flags of a door."""
        return Identity(self._folder / "tls.crt", self._folder / "tls.key", 0).flags(door)


@contextlib.contextmanager
def load(server: Server, root: pathlib.Path) -> Iterator[list[BaseException]]:
    """Sends requests over both protocols on new and on kept connections; yields their failures."""
    failures: list[BaseException] = []
    ends = threading.Event()
    count = [0]

    def run(once: Callable[[], None]) -> None:
        try:
            while not ends.is_set():
                once()
                count[0] += 1
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    kept = https(server, context(root))
    stub = tritonclient.grpc.InferenceServerClient(
        f"localhost:{server.grpc_port}", **grpc_options(root, None)
    )

    def on_kept() -> None:
        assert status_of(kept) == 200

    def on_new() -> None:
        with contextlib.closing(https(server, context(root))) as connection:
            assert status_of(connection) == 200

    def infer() -> None:
        tensor = tritonclient.grpc.InferInput("INPUT0", [4], "FP32")
        tensor.set_data_from_numpy(vector())
        assert numpy.array_equal(stub.infer(MODEL, [tensor]).as_numpy("OUTPUT0"), vector())

    threads = [threading.Thread(target=run, args=(once,)) for once in (on_kept, on_new, infer)]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        kept.close()
        stub.close()
    assert count[0] > len(threads)


def test_new_certificates_are_taken_under_load(
    start_server: StartServer,
    repository: pathlib.Path,
    authority: Authority,
    tmp_path: pathlib.Path,
) -> None:
    """No request fails, connections stay open, and broken files change nothing."""
    volume = Volume(tmp_path)
    first, second, third = (authority.issue("server") for _ in range(3))
    volume.show_identity(first)
    with start_server(repository, *volume.flags("http"), *volume.flags("grpc")) as server:
        wait_until_open(server)
        ports = (server.http_port, server.grpc_port)

        def is_served(identity: Identity) -> bool:
            return all(served_serial(port, authority.file) == identity.serial for port in ports)

        def wait_for(text: str, count: int = 2) -> None:
            wait_until(lambda: server.log().count(text) >= count, RELOAD_SECONDS_MAX, text)

        with load(server, authority.file) as failures:
            assert is_served(first)
            volume.show_identity(second)
            wait_until(lambda: is_served(second), RELOAD_SECONDS_MAX, "the second is served")
            volume.show(third.certificate.read_bytes(), second.key.read_bytes())
            wait_for("is not the key of the first certificate")
            volume.show(third.certificate.read_bytes()[:100], third.key.read_bytes())
            wait_for("is no valid PEM")
            shutil.rmtree((tmp_path / "..data").resolve())
            wait_for("can't be read: No such file or directory")
            assert is_served(second)
            volume.show_identity(third)
            wait_until(lambda: is_served(third), RELOAD_SECONDS_MAX, "the third is served")
        assert not failures, failures
        log = server.log()
    # It is logged once for each door, however often the files were checked.
    assert log.count("the certificate stays as it is: ") == 6
    assert log.count("have changed and are in use") == 4


def test_a_pipe_does_not_end_the_following(
    start_server: StartServer,
    repository: pathlib.Path,
    authority: Authority,
    tmp_path: pathlib.Path,
) -> None:
    """A named pipe that nothing writes to is reported, and the next valid file is used."""
    first, second = authority.issue("server"), authority.issue("server")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(first.certificate, certificate)
    shutil.copy(first.key, key)
    flags = Identity(certificate, key, 0).flags("http")
    with start_server(repository, *flags) as server:
        wait_until_open(server)
        certificate.unlink()
        os.mkfifo(certificate)
        reason = "it is no regular file, so changes are not followed"
        wait_until(lambda: reason in server.log(), RELOAD_SECONDS_MAX, "the pipe is told of")
        assert served_serial(server.http_port, authority.file) == first.serial
        for source, target in ((second.certificate, certificate), (second.key, key)):
            shutil.copy(source, tmp_path / "next")
            os.replace(tmp_path / "next", target)
        wait_until(
            lambda: served_serial(server.http_port, authority.file) == second.serial,
            RELOAD_SECONDS_MAX,
            "the second is served",
        )
        # The server's stop doesn't wait for the pipe.
        server.terminate()
        assert server.wait_for_exit() == 0
    assert server.log().count("the certificate stays as it is: ") == 1


def test_new_roots_are_taken(
    start_server: StartServer,
    repository: pathlib.Path,
    authority: Authority,
    tmp_path: pathlib.Path,
) -> None:
    """Clients of an authority that was removed aren't accepted, even if they were accepted
    before."""
    other = Authority(tmp_path, "other")
    roots = tmp_path / "roots.pem"
    roots.write_bytes(authority.file.read_bytes())
    identity, client = authority.issue("server"), authority.issue("client")
    flags = [*identity.flags("http"), "--http-use-ssl-mutual=1", f"--http-root-cert={roots}"]
    with start_server(repository, *flags) as server:
        wait_until_open(server)
        before = context(authority.file, client)
        assert status_of(https(server, before)) == 200
        roots.write_bytes(other.file.read_bytes())

        def is_let_in(settings: ssl.SSLContext) -> bool:
            try:
                return status_of(https(server, settings)) == 200
            except OSError:
                return False

        after = context(authority.file, other.issue("client"))
        wait_until(lambda: is_let_in(after), RELOAD_SECONDS_MAX, "the new roots are in use")
        # This client has a ticket from its earlier session.
        assert not is_let_in(before)


def test_slow_handshakes_hold_nothing_up(
    start_server: StartServer, repository: pathlib.Path, authority: Authority
) -> None:
    """Clients that send nothing, or half a message."""
    identity = authority.issue("server")
    flags = [*identity.flags("http"), *identity.flags("grpc")]
    with start_server(repository, *flags) as server, contextlib.ExitStack() as stack:
        wait_until_open(server)
        for number in range(SLOW_CLIENTS):
            port = (server.http_port, server.grpc_port)[number % 2]
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            if number % 4 < 2:
                slow.sendall(HELLO)
        assert status_of(https(server, context(authority.file))) == 200
        over_grpc(server, authority.file, None, vector())
        # The stop doesn't wait for them either.
        server.terminate()
        assert server.wait_for_exit() == 0


@contextlib.contextmanager
def busy(
    start_server: StartServer, tmp_path: pathlib.Path, authority: Authority
) -> Iterator[tuple[Server, Latch]]:
    """A server with TLS and a model that is busy."""
    repository = tmp_path / "models"
    repository.mkdir()
    identity = authority.issue("server")
    with Latch(repository, "latch") as latch:
        flags = [*identity.flags("http"), *identity.flags("grpc")]
        with start_server(repository, *flags) as server:
            yield wait_until_open(server), latch


def latch_request(latch: Latch) -> bytes:
    """A request to the busy model."""
    return post("/v2/models/latch/infer", json.dumps(latch.request(1)).encode())


def canceled(server: Server) -> int:
    """The number of the busy model's requests that were cancelled."""
    lines = server.metrics().splitlines()
    lines = [line for line in lines if line.startswith("nv_inference_request_failure{")]
    (line,) = (line for line in lines if 'model="latch"' in line and 'reason="CANCELED"' in line)
    return int(line.split()[-1])


@pytest.mark.parametrize("how", ["close_notify", "end of the stream", "reset"])
def test_a_client_that_leaves_is_noticed(
    start_server: StartServer, tmp_path: pathlib.Path, authority: Authority, how: str
) -> None:
    """Its request waits behind a running one, and is cancelled."""
    with busy(start_server, tmp_path, authority) as (server, latch):
        settings = context(authority.file)
        with connect(server.http_port, settings) as first:
            first.sendall(latch_request(latch))
            wait_until(lambda: is_busy(server, settings), 60, "the first request is executed")
            with connect(server.http_port, settings) as second:
                second.sendall(latch_request(latch))
                wait_until(lambda: pending(server) == 1, 60, "the second request waits")
                leave(second, how)
                wait_until(lambda: canceled(server) == 1, 60, "the second request is gone")
            latch.open()
            assert b" 200 OK" in first.recv(1 << 16)


def test_a_grpc_client_that_leaves_is_noticed(
    start_server: StartServer, tmp_path: pathlib.Path, authority: Authority
) -> None:
    """Its connection ends while a call is in the queue."""
    with busy(start_server, tmp_path, authority) as (server, latch):
        settings = context(authority.file)
        tensor = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
        tensor.set_data_from_numpy(numpy.ones(1, numpy.int32))
        with connect(server.http_port, settings) as first:
            first.sendall(latch_request(latch))
            wait_until(lambda: is_busy(server, settings), 60, "the first request is executed")
            with tritonclient.grpc.InferenceServerClient(
                f"localhost:{server.grpc_port}", **grpc_options(authority.file, None)
            ) as second:
                second.async_infer("latch", [tensor], lambda result, error: None)
                wait_until(lambda: pending(server) == 1, 60, "the second request waits")
            wait_until(lambda: canceled(server) == 1, 60, "the second request is gone")
            latch.open()
            assert b" 200 OK" in first.recv(1 << 16)


def is_busy(server: Server, settings: ssl.SSLContext) -> bool:
    """Returns true if the model is executing a request."""
    with contextlib.closing(https(server, settings)) as connection:
        connection.request("GET", "/v2/models/latch/scheduler")
        instances = json.load(connection.getresponse())["instances"]
    return any(instance["state"] == "busy" for instance in instances)


def pending(server: Server) -> int:
    """The number of the model's requests that are waiting."""
    return sum(
        int(float(line.split()[-1]))
        for line in server.metrics().splitlines()
        if line.startswith('nv_inference_pending_request_count{model="latch"')
    )


def leave(stream: ssl.SSLSocket, how: str) -> None:
    """Ends a connection, with or without TLS's closing message."""
    if how == "close_notify":
        stream.settimeout(0)
        with contextlib.suppress(ssl.SSLError, OSError):
            stream.unwrap()
    elif how == "end of the stream":
        socket.socket.shutdown(stream, socket.SHUT_WR)
    else:
        linger = (1).to_bytes(4, "little") + bytes(4)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        socket.socket.close(stream)


def test_the_stop_waits_for_responses(
    start_server: StartServer, tmp_path: pathlib.Path, authority: Authority
) -> None:
    """Requests in progress get their responses, and the connection ends as TLS requires."""
    with busy(start_server, tmp_path, authority) as (server, latch):
        settings = context(authority.file)
        with connect(server.http_port, settings) as stream:
            # An open connection may bring further requests while the server stops.
            closing = latch_request(latch).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            stream.sendall(closing)
            wait_until(lambda: is_busy(server, settings), 60, "the request is executed")
            server.terminate()
            wait_until(lambda: "HTTP service connections" in server.log(), 60, "the server stops")
            latch.open()
            received = b""
            # Without the closing message, this raises an error.
            while piece := stream.recv(1 << 16):
                received += piece
        assert b" 200 OK" in received and b"OUTPUT0" in received
        assert server.wait_for_exit() == 0


def test_a_cut_request_is_dropped(
    start_server: StartServer, repository: pathlib.Path, authority: Authority
) -> None:
    """The connection may be cut anywhere, even within a TLS record."""
    identity = authority.issue("server")
    with start_server(repository, *identity.flags("http"), *identity.flags("grpc")) as server:
        wait_until_open(server)
        document = {"inputs": [{"name": "INPUT0", "shape": [4], "datatype": "FP32", "data": [1] * 4}]}
        request = post(f"/v2/models/{MODEL}/infer", json.dumps(document).encode())
        settings = context(authority.file)
        for cut in (1, 20, len(request) - 1):
            with connect(server.http_port, settings) as stream:
                stream.sendall(request[:cut])
                socket.socket.shutdown(stream, socket.SHUT_WR)
        # Records that were changed in transit.
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = settings.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", server.http_port), 60) as plain:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    plain.sendall(outgoing.read())
                    incoming.write(plain.recv(1 << 16))
            client.write(request)
            record = bytearray(outgoing.read())
            record[-1] ^= 1
            plain.sendall(record)
            # The client receives an alert, followed by the end.
            while plain.recv(1 << 16):
                pass
        assert status_of(https(server, settings)) == 200
        over_grpc(server, authority.file, None, vector())
    assert server.process.returncode == 0


def echo_request(elements: int) -> tuple[bytes, bytes]:
    """A request in binary form, and the part of its response that follows the JSON."""
    tensor = numpy.arange(elements, dtype=numpy.float32).tobytes()
    header = {
        "inputs": [
            {
                "name": "INPUT0",
                "shape": [elements],
                "datatype": "FP32",
                "parameters": {"binary_data_size": len(tensor)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(header).encode()
    length = f"Inference-Header-Content-Length: {len(text)}"
    return post(f"/v2/models/{MODEL}/infer", text + tensor, length), tensor


def in_chunks(request: bytes, size: int) -> bytes:
    """The request with its body in chunks."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", framed]) + b"0\r\n\r\n"


def response(stream: BinaryIO) -> tuple[int, bytes]:
    """The status and the body of the next response."""
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, stream.read(length)


def test_one_connection_takes_every_form(
    start_server: StartServer, repository: pathlib.Path, authority: Authority
) -> None:
    """Bodies of all sizes: in chunks, one after the other, and after a header of another form."""
    identity = authority.issue("server")
    large, large_tensor = echo_request(1 << 20)
    small, small_tensor = echo_request(4)
    unusual = small.replace(b"\r\n", b"\r\nTE: trailers\r\n", 1)
    waiting, _, rest = small.replace(b"\r\n", b"\r\nExpect: 100-continue\r\n", 1).partition(
        b"\r\n\r\n"
    )
    with start_server(repository, *identity.flags("http"), *identity.flags("grpc")) as server:
        wait_until_open(server)
        with connect(server.http_port, context(authority.file)) as stream:
            reader = stream.makefile("rb")
            # The response waits for its reader, and the second request waits after the first.
            stream.sendall(large + small)
            for tensor in (large_tensor, small_tensor):
                status, body = response(reader)
                assert status == 200 and body.endswith(tensor)
            for size, expected in ((1, small_tensor), (100_000, large_tensor)):
                request = small if expected is small_tensor else large
                stream.sendall(in_chunks(request, size))
                status, body = response(reader)
                assert status == 200 and body.endswith(expected)
            stream.sendall(waiting + b"\r\n\r\n")
            assert reader.readline() == b"HTTP/1.1 100 Continue\r\n"
            assert reader.readline() == b"\r\n"
            stream.sendall(rest)
            status, body = response(reader)
            assert status == 200 and body.endswith(small_tensor)
            stream.sendall(small + unusual + small)
            for _ in range(3):
                status, body = response(reader)
                assert status == 200 and body.endswith(small_tensor)
