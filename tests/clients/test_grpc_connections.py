"""Tests of gRPC clients' connections: pings in both directions, their age, and the end of the
server."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import make_models
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2

from conftest import StartServer
from latch import Latch
from raw_http2 import (
    ACK,
    DATA,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    NO_ERROR,
    PING,
    Http2Connection,
    frame,
    is_end_of,
    is_goaway,
    is_ping,
    ping,
)
from server import Server, wait_until

SERVICE = "/inference.GRPCInferenceService/"
#: Longer than any test may take: what ends before has ended for another reason.
FOREVER_SECONDS = 10_000
#: Milliseconds that pass while a test waits for frames.
SOON = 200


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A repository with one fast model."""
    path = tmp_path_factory.mktemp("grpc_connections")
    make_models.write_models(path, make_models.TEST_MODELS, ["identity_int32"])
    return path


@pytest.fixture
def strict_server(start_server: StartServer, repository: pathlib.Path) -> Iterator[Server]:
    """A server with the default limits for pings."""
    with start_server(repository) as server:
        yield server.wait_until_ready()


def live(connection: Http2Connection) -> None:
    """Makes a call, and reads its response."""
    connection.read_until(is_end_of(connection.call(SERVICE + "ServerLive", b"")))


def acknowledged(connection: Http2Connection, pings: int) -> None:
    """Reads the replies to pings."""
    for _ in range(pings):
        connection.read_until(lambda one: one.kind == PING and one.flags == ACK)


# row: GRPC-19
def test_too_many_pings_end_the_connection(strict_server: Server) -> None:
    """The first ping and two strikes are tolerated, but the fourth ping isn't."""
    with Http2Connection(strict_server) as connection:
        stream = connection.call(SERVICE + "ServerLive", b"")
        connection.read_until(is_end_of(stream))
        connection.send(ping(), ping(), ping())
        acknowledged(connection, 3)
        connection.send(ping())
        goaway = connection.read_until(is_goaway)
        assert goaway.reason == ENHANCE_YOUR_CALM
        assert goaway.payload[8:] == b"too_many_pings"
        assert connection.read_end() == []
    with tritonclient.grpc.InferenceServerClient(strict_server.grpc_url) as client:
        assert client.is_server_live()


def test_a_flood_of_pings_ends_the_connection(strict_server: Server) -> None:
    """Two hundred pings at once are also too many."""
    with Http2Connection(strict_server) as connection:
        connection.send(ping() * 200)
        goaway = connection.read_until(is_goaway)
        assert (goaway.reason, goaway.payload[8:]) == (ENHANCE_YOUR_CALM, b"too_many_pings")


def test_data_for_the_client_forgives_pings(strict_server: Server) -> None:
    """Clients ping to measure how fast data arrives."""
    with Http2Connection(strict_server) as connection:
        for _ in range(5):
            connection.send(ping(), ping(), ping())
            acknowledged(connection, 3)
            live(connection)


def test_any_number_of_pings_may_be_allowed(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """Without a limit on strikes, all pings get a reply."""
    with (
        start_server(repository, "--grpc-http2-max-ping-strikes=0") as server,
        Http2Connection(server.wait_until_ready()) as connection,
    ):
        connection.send(ping() * 100)
        acknowledged(connection, 100)
        live(connection)


def test_an_interval_may_be_allowed(start_server: StartServer, repository: pathlib.Path) -> None:
    """A client with a call may ping at the flag's interval; without a call, once in two
    hours."""
    flag = "--grpc-http2-min-recv-ping-interval-without-data=0"
    with (
        start_server(repository, flag) as server,
        Http2Connection(server.wait_until_ready()) as connection,
    ):
        connection.call(SERVICE + "ModelStreamInfer", None)
        connection.send(ping() * 20)
        acknowledged(connection, 20)
        # It is still open.
        live(connection)
        with Http2Connection(server) as idle:
            idle.send(ping() * 4)
            assert idle.read_until(is_goaway).reason == ENHANCE_YOUR_CALM


# row: GRPC-19
def test_a_silent_client_is_pinged_and_closed(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """A client with a call that doesn't reply to the server's ping loses its connection."""
    flags = (f"--grpc-keepalive-time={SOON}", f"--grpc-keepalive-timeout={SOON}")
    with (
        start_server(repository, *flags) as server,
        Http2Connection(server.wait_until_ready()) as connection,
        Http2Connection(server) as idle,
    ):
        live(idle)
        connection.call(SERVICE + "ModelStreamInfer", None)
        connection.read_until(is_ping)
        connection.read_end()
        # The other client has no call, and wasn't even pinged: the first ping is the reply.
        idle.send(frame(PING, payload=b"87654321"))
        answer = idle.read_until(lambda one: one.kind == PING)
        assert (answer.flags, answer.payload) == (ACK, b"87654321")
        live(idle)


def test_answers_keep_a_connection(start_server: StartServer, repository: pathlib.Path) -> None:
    """A client that replies is pinged repeatedly."""
    flags = (f"--grpc-keepalive-time={SOON}", "--grpc-keepalive-permit-without-calls=true")
    with (
        start_server(repository, *flags, "--grpc-keepalive-timeout=30000") as server,
        Http2Connection(server.wait_until_ready()) as connection,
    ):
        for _ in range(3):
            payload = connection.read_until(is_ping).payload
            connection.send(frame(PING, ACK, payload=payload))
        live(connection)


@pytest.mark.parametrize("grace", [(), (f"--grpc-max-connection-age-grace={SOON}",)])
# row: GRPC-19
def test_an_old_connection_ends(
    start_server: StartServer, repository: pathlib.Path, grace: tuple[str, ...]
) -> None:
    """When a connection reaches its age, the server announces its end; calls may continue
    during the grace period."""
    with (
        start_server(repository, f"--grpc-max-connection-age={SOON}", *grace) as server,
        Http2Connection(server.wait_until_ready()) as connection,
    ):
        stream = connection.call(SERVICE + "ModelStreamInfer", None)
        goaway = connection.read_until(is_goaway)
        assert goaway.reason == NO_ERROR
        if not grace:
            # The client acknowledges with a ping that comes with the first announcement.
            connection.send(frame(PING, ACK, payload=connection.read_until(is_ping).payload))
            assert connection.read_until(is_goaway).last_stream == stream
            connection.send(frame(DATA, 1, stream))
            connection.read_until(is_end_of(stream))
        assert all(one.kind in (GOAWAY, PING) for one in connection.read_end())


def test_clients_reconnect_when_their_connection_is_old(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """A gRPC client doesn't notice anything."""
    with (
        start_server(repository, "--grpc-max-connection-age=50") as server,
        tritonclient.grpc.InferenceServerClient(server.wait_until_ready().grpc_url) as client,
    ):
        for _ in range(300):
            assert client.is_server_live()


@pytest.mark.galatea_only
def test_a_silent_client_does_not_hold_the_end(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """The server ends although a client without calls doesn't acknowledge anything."""
    with (
        start_server(repository, f"--exit-timeout-secs={FOREVER_SECONDS}") as server,
        Http2Connection(server.wait_until_ready()) as connection,
        Http2Connection(server) as unused,
    ):
        live(connection)
        unused.send(ping())
        acknowledged(unused, 1)
        server.terminate()
        assert server.wait_for_exit() == 0
        assert connection.read_until(is_goaway).reason == NO_ERROR


def test_a_call_of_a_silent_client_is_finished(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A response is sent, however long it takes, and the connection ends after it."""
    latch = Latch(tmp_path, "busy")
    request = service_pb2.ModelInferRequest(model_name="busy", id="silent")
    tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    tensor.contents.int_contents.append(7)
    with (
        start_server(tmp_path, f"--exit-timeout-secs={FOREVER_SECONDS}") as server,
        latch,
        Http2Connection(server.wait_until_ready()) as connection,
        # Its end shows that connections without calls have been closed in the meantime.
        Http2Connection(server) as idle,
    ):
        stream = connection.call(SERVICE + "ModelInfer", request.SerializeToString())
        live(idle)
        if not server.is_triton:
            # The call must have arrived, because a connection without calls is closed.
            wait_until(lambda: server.is_executing("busy"), 60, "the call executes")
        server.terminate()
        if not server.is_triton:
            idle.read_end()
        latch.open()
        data = connection.read_until(lambda one: one.kind == DATA and one.stream == stream)
        assert service_pb2.ModelInferResponse.FromString(data.payload[5:]).id == "silent"
        connection.read_until(is_end_of(stream))
        idle.close()
        assert server.wait_for_exit() == 0
