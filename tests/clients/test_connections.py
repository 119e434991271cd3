"""Tests of persistent connections, pipelining, and clients that disconnect."""

from __future__ import annotations

import contextlib
import json

import pytest

from raw_http import Connection, get, post
from server import Server, wait_until

BUSY_ROUNDS = 8000


def slow_request(rounds: int) -> bytes:
    """A request that keeps the slow model's only instance busy."""
    tensor = {"name": "ROUNDS", "shape": [1, 1], "datatype": "INT64", "data": [rounds]}
    return json.dumps({"inputs": [tensor]}).encode()


# row: HTTP-27
def test_a_connection_serves_many_requests(server: Server) -> None:
    """HTTP/1.1 connections stay open, even after errors."""
    with Connection(server) as connection:
        for _ in range(3):
            connection.send(get("/v2/health/live"))
            assert connection.read_response() == (200, b"")
            connection.send(get("/v2/models/absent"))
            assert (connection.read_response() or (0, b""))[0] == 404


def test_connection_close_is_obeyed(server: Server) -> None:
    """The server closes the connection."""
    with Connection(server) as connection:
        connection.send(get("/v2/health/live", "Connection: close"))
        assert connection.read_response() == (200, b"")
        assert connection.is_closed_by_server()


@pytest.mark.galatea_only
# row: HTTP-27
def test_pipelined_responses_are_in_order(server: Server) -> None:
    """A slow request doesn't change the order of responses."""
    with Connection(server) as connection:
        connection.send(
            post("/v2/models/onnx_slow/infer", slow_request(100)),
            get("/v2/health/live"),
            get("/v2/models/absent"),
            get("/v2"),
        )
        statuses = [(connection.read_response() or (0, b""))[0] for _ in range(4)]
    assert statuses == [200, 200, 404, 200]


@pytest.mark.galatea_only
def test_a_request_may_arrive_byte_by_byte(server: Server) -> None:
    """The boundaries of segments have no effect."""
    request = post("/v2/models/onnx_slow/infer", slow_request(1))
    with Connection(server) as connection:
        for index in range(len(request)):
            connection.send(request[index : index + 1])
        assert (connection.read_response() or (0, b""))[0] == 200


def test_chunked_requests(server: Server) -> None:
    """A body may come in chunks."""
    body = slow_request(1)
    head = get("/v2/models/onnx_slow/infer", "Transfer-Encoding: chunked").replace(
        b"GET", b"POST", 1
    )
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with Connection(server) as connection:
        connection.send(head, chunks, b"0\r\n\r\n")
        assert (connection.read_response() or (0, b""))[0] == 200


def test_expect_continue(server: Server) -> None:
    """curl sends this header before bodies over a kilobyte."""
    body = slow_request(1)
    request = post("/v2/models/onnx_slow/infer", body, "Expect: 100-continue")
    head = request[: -len(body)]
    with Connection(server) as connection:
        connection.send(head)
        assert connection.read_response() == (100, b"")
        connection.send(body)
        assert (connection.read_response() or (0, b""))[0] == 200


# row: HTTP-27
def test_a_busy_model_does_not_block_other_connections(server: Server) -> None:
    """Other connections get responses while a model executes."""
    rounds = BUSY_ROUNDS
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(Connection(server)) for _ in range(8)]
        # If the machine is busy, the model may finish before all requests have been sent. If
        # connections are blocked, a longer execution blocks them too.
        while not all_complete_while_busy(server, others, rounds):
            assert rounds < 100 * BUSY_ROUNDS, "no client gets a response while the model works"
            rounds *= 3


def all_complete_while_busy(server: Server, others: list[Connection], rounds: int) -> bool:
    """Returns true if a request with this many rounds runs while all the others are sent and
    completed."""
    before = server.statistics("onnx_slow")["inference_count"]
    with Connection(server) as busy:
        busy.send(post("/v2/models/onnx_slow/infer", slow_request(rounds)))
        if not server.is_triton:
            wait_until(lambda: has_started(server, before), 60, "the model works")
        for connection in others:
            connection.send(get("/v2/health/live"))
            assert connection.read_response() == (200, b"")
        was_busy = server.statistics("onnx_slow")["inference_count"] == before
        assert (busy.read_response() or (0, b""))[0] == 200
    return was_busy


def has_started(server: Server, before: int) -> bool:
    """Returns true if the model is executing the request, or has already executed it."""
    is_over = server.statistics("onnx_slow")["inference_count"] > before
    return is_over or server.is_executing("onnx_slow")


@pytest.mark.parametrize("cut", [10, 60, 120, -1])
def test_clients_may_disconnect_within_a_request(server: Server, cut: int) -> None:
    """An incomplete request has no effect."""
    request = post("/v2/models/onnx_slow/infer", slow_request(1))
    for _ in range(20):
        with Connection(server) as connection:
            connection.send(request[:cut])
    assert server.is_live()


# row: HTTP-26 DYN-18 MET-04
def test_clients_may_disconnect_before_the_response(server: Server) -> None:
    """Abandoned requests leave the queue; the model serves the next client."""
    for _ in range(10):
        with Connection(server) as connection:
            connection.send(post("/v2/models/onnx_slow/infer", slow_request(500)))
    reply = server.infer("onnx_slow", slow_request(1))
    assert reply.status == 200

    def nothing_is_pending() -> bool:
        line = 'nv_inference_pending_request_count{model="onnx_slow",version="1"} '
        (value,) = (one for one in server.metrics().splitlines() if one.startswith(line))
        return float(value.removeprefix(line)) == 0

    wait_until(nothing_is_pending, 30, "no request is pending")


def test_many_connections_at_once(server: Server) -> None:
    """Idle connections don't slow down the others."""
    connections = [Connection(server) for _ in range(200)]
    try:
        for connection in reversed(connections):
            connection.send(get("/v2/health/ready"))
        for connection in connections:
            assert connection.read_response() == (200, b"")
    finally:
        for connection in connections:
            connection.__exit__()
