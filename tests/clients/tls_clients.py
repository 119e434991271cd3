"""Clients that use TLS, and servers for them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import pathlib
import queue
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import gevent.ssl
import numpy
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from server import REQUEST_SECONDS_MAX, START_SECONDS_MAX, Server, wait_until
from tls_files import Identity

MODEL = "echo"

CONFIG = """\
backend: "identity"
max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def write_echo(repository: pathlib.Path) -> pathlib.Path:
    """A repository with a model that returns its input."""
    (repository / MODEL / "1").mkdir(parents=True)
    (repository / MODEL / "config.pbtxt").write_text(CONFIG)
    return repository


def wait_until_open(server: Server) -> Server:
    """Waits until all ports are open, whatever their protocol."""

    def is_open() -> bool:
        assert server.process.poll() is None, server.log()[-4000:]
        return "Started Metrics Service" in server.log()

    wait_until(is_open, START_SECONDS_MAX, "the server has started")
    return server


def context(root: pathlib.Path, client: Identity | None = None, **options: Any) -> ssl.SSLContext:
    """A client's TLS settings; `options` are attributes of the context."""
    made = ssl.create_default_context(cafile=str(root))
    if client is not None:
        made.load_cert_chain(client.certificate, client.key)
    for name, value in options.items():
        setattr(made, name, value)
    return made


@contextlib.contextmanager
def connect(port: int, settings: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    """A connection whose handshake is complete; if the stream ends without a closing message,
    that is an error."""
    with socket.create_connection(("127.0.0.1", port), REQUEST_SECONDS_MAX) as plain:
        with settings.wrap_socket(
            plain, server_hostname="localhost", suppress_ragged_eofs=False
        ) as stream:
            yield stream


def https(server: Server, settings: ssl.SSLContext) -> http.client.HTTPSConnection:
    """A connection of Python's own client."""
    return http.client.HTTPSConnection(
        "localhost", server.http_port, timeout=REQUEST_SECONDS_MAX, context=settings
    )


def status_of(connection: http.client.HTTPSConnection, path: str = "/v2/health/live") -> int:
    """The status of a request without a body."""
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    return response.status


def served_serial(port: int, root: pathlib.Path) -> int:
    """The serial number of the certificate that a new connection receives."""
    with connect(port, context(root)) as stream:
        certificate = stream.getpeercert()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


def over_http(server: Server, root: pathlib.Path, client: Identity | None, data: Any) -> Any:
    """Sends numbers to an echo model over HTTP."""
    library = tritonclient.http
    options: dict[str, Any] = {"ca_certs": str(root)}
    if client is not None:
        options |= {"certfile": str(client.certificate), "keyfile": str(client.key)}
    connection = library.InferenceServerClient(
        f"localhost:{server.http_port}",
        ssl=True,
        ssl_options=options,
        ssl_context_factory=functools.partial(
            gevent.ssl.create_default_context, cafile=str(root)
        ),
    )
    with contextlib.closing(connection):
        return connection.infer(MODEL, _inputs(library, data)).as_numpy("OUTPUT0")


def over_http_aio(server: Server, root: pathlib.Path, client: Identity | None, data: Any) -> Any:
    """The same over HTTP with asyncio."""

    async def echo() -> Any:
        library = tritonclient.http.aio
        async with library.InferenceServerClient(
            f"localhost:{server.http_port}", ssl=True, ssl_context=context(root, client)
        ) as connection:
            result = await connection.infer(MODEL, _inputs(library, data))
            return result.as_numpy("OUTPUT0")

    return asyncio.run(echo())


def grpc_options(root: pathlib.Path, client: Identity | None) -> dict[str, Any]:
    """The arguments of a gRPC client."""
    options: dict[str, Any] = {"ssl": True, "root_certificates": str(root)}
    if client is not None:
        options |= {
            "private_key": str(client.key),
            "certificate_chain": str(client.certificate),
        }
    return options


def over_grpc(server: Server, root: pathlib.Path, client: Identity | None, data: Any) -> Any:
    """The same with a gRPC call."""
    library = tritonclient.grpc
    with library.InferenceServerClient(
        f"localhost:{server.grpc_port}", **grpc_options(root, client)
    ) as connection:
        return connection.infer(MODEL, _inputs(library, data)).as_numpy("OUTPUT0")


def over_grpc_aio(server: Server, root: pathlib.Path, client: Identity | None, data: Any) -> Any:
    """The same with an asyncio gRPC call."""

    async def echo() -> Any:
        library = tritonclient.grpc.aio
        async with library.InferenceServerClient(
            f"localhost:{server.grpc_port}", **grpc_options(root, client)
        ) as connection:
            result = await connection.infer(MODEL, _inputs(library, data))
            return result.as_numpy("OUTPUT0")

    return asyncio.run(echo())


def over_grpc_stream(
    server: Server, root: pathlib.Path, client: Identity | None, data: Any
) -> Any:
    """The same on a gRPC stream."""
    library = tritonclient.grpc
    replies: queue.Queue[Any] = queue.Queue()
    with library.InferenceServerClient(
        f"localhost:{server.grpc_port}", **grpc_options(root, client)
    ) as connection:
        connection.start_stream(lambda result, error: replies.put(error or result))
        connection.async_stream_infer(MODEL, _inputs(library, data))
        reply = replies.get(timeout=REQUEST_SECONDS_MAX)
        connection.stop_stream()
    if isinstance(reply, BaseException):
        raise reply
    return reply.as_numpy("OUTPUT0")


ECHOES = {
    "HTTP": over_http,
    "HTTP, asyncio": over_http_aio,
    "gRPC": over_grpc,
    "gRPC, asyncio": over_grpc_aio,
    "gRPC stream": over_grpc_stream,
}


def vector(count: int = 4) -> Any:
    """Some numbers."""
    return numpy.arange(count, dtype=numpy.float32)


def _inputs(library: Any, data: Any) -> list[Any]:
    tensor = library.InferInput("INPUT0", data.shape, "FP32")
    tensor.set_data_from_numpy(data)
    return [tensor]
