"""Tests of the findings from `test_hardening.py` that concern connections, time and work in
progress.

| finding | test |
|---|---|
| 1, 5, 11, 14 to 17, 20 | here |
| 5, bytes over all connections | `test_memory_limit.py` |
| 6 a silent gRPC client holds the end | `test_grpc_connections.py` |
| 19 pings at once | `test_grpc_connections.py`, and here what they leave |
| 22 memory after bursts | `test_memory_limit.py` |
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import make_models
import numpy
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2

from conftest import StartServer
from latch import Latch
from raw_http import Connection, get, post
from raw_http2 import (
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    NO_ERROR,
    Http2Connection,
    frame,
    is_end_of,
    is_goaway,
    ping,
)
from resilience import (
    GOOD_MODEL,
    GOOD_REQUEST,
    REPETITIONS,
    grpc_stub,
    unharmed,
    write_identity,
)
from server import REQUEST_SECONDS_MAX, Server, wait_until

pytestmark = pytest.mark.galatea_only

#: Numbers whose text takes long to write.
LONG_TEXT_NUMBERS = 4_000_000


@pytest.fixture(name="busy")
def busy_model(tmp_path: pathlib.Path) -> Iterator[Latch]:
    """A repository with the good model, and a model that waits for a latch."""
    write_identity(tmp_path, GOOD_MODEL)
    with Latch(tmp_path, "busy") as latch:
        yield latch


# Finding 1: scraping.


SCRAPERS = 10
SCRAPES_IN_A_ROW = 20

ONE_ROUND = {
    "inputs": [{"name": "ROUNDS", "shape": [1, 1], "datatype": "INT64", "data": [1]}],
}


def inferences(server: Server, path: str) -> int:
    """The number of the model's executions, according to one of the pages with statistics."""
    if path == "/metrics":
        name = 'nv_inference_count{model="onnx_slow",version="1"}'
        (line,) = (line for line in server.metrics().splitlines() if line.startswith(name))
        return int(float(line.split()[-1]))
    (entry,) = (
        entry
        for entry in server.get("/v2/models/stats").json()["model_stats"]
        if entry["name"] == "onnx_slow"
    )
    return entry["inference_count"]


def test_scraping_leaves_room_for_inference_and_stays_exact(server: Server) -> None:
    """Pipelined scrapes don't delay any inference, and no page is older than the request for it."""
    stop = threading.Event()
    pages = get("/v2/models/stats") + get("/v2/models/onnx_slow/scheduler")

    def scrape() -> None:
        with Connection(server) as connection:
            while not stop.is_set():
                connection.send(pages * SCRAPES_IN_A_ROW)
                for _ in range(2 * SCRAPES_IN_A_ROW):
                    status, body = connection.read_response() or (0, b"")
                    assert status == 200 and json.loads(body)

    with unharmed(server), concurrent.futures.ThreadPoolExecutor(SCRAPERS) as pool:
        scrapers = [pool.submit(scrape) for _ in range(SCRAPERS)]
        try:
            count = inferences(server, "/metrics")
            for path in ["/metrics", "/v2/models/stats"] * 10:
                assert server.infer("onnx_slow", ONE_ROUND).status == 200
                count += 1
                assert inferences(server, path) == count
        finally:
            stop.set()
        for scraper in scrapers:
            scraper.result()


# Finding 5: connections.


def test_the_number_of_connections_is_limited(
    start_server: StartServer, tmp_path: pathlib.Path, busy: Latch
) -> None:
    """Idle connections make room for new ones; while all connections are busy, a new one is
    refused."""
    body = json.dumps(busy.request(7)).encode()
    with start_server(tmp_path, "--connection-limit=4") as server:
        server.wait_until_ready()
        with unharmed(server), contextlib.ExitStack() as stack:
            idle = [stack.enter_context(Connection(server)) for _ in range(20)]
            wait_until(server.is_live, 30, "idle connections make room")
            wait_until(
                lambda: sum(one.has_something_to_read() for one in idle) >= 16,
                30,
                "idle connections are closed",
            )
            senders: list[Connection] = []

            def has_four_requests() -> bool:
                # One may have been closed before its request arrived.
                senders[:] = [one for one in senders if not one.has_something_to_read()]
                while len(senders) < 4:
                    senders.append(stack.enter_context(Connection(server)))
                    senders[-1].send(post("/v2/models/busy/infer", body))
                return server.pending("busy") == 3

            wait_until(has_four_requests, 30, "one request executes and three wait")

            def is_refused() -> bool:
                return server.get("/v2/health/live").status == 503

            wait_until(is_refused, 30, "all places are taken")
            reply = server.get("/v2/health/live")
            assert (reply.status, reply.error()) == (503, "The server has too many connections")
            assert (reply.headers["Retry-After"], reply.headers["Connection"]) == ("1", "close")
            # Metrics have a separate limit.
            assert "nv_inference_count" in server.metrics()
            busy.open()
            for connection in senders:
                assert (connection.read_response() or (0, b""))[0] == 200
            wait_until(server.is_live, 30, "there are places again")


def crowd(server: Server, stack: contextlib.ExitStack, count: int, sent: bytes) -> None:
    """Connections that stay open and have sent these bytes."""
    for _ in range(count):
        connection = stack.enter_context(Connection(server))
        # A refused connection may already be closed.
        with contextlib.suppress(OSError):
            connection.send(sent)


def status_after_connecting(server: Server) -> int:
    """The status of a request; 0 if there is no response."""
    try:
        with Connection(server) as connection:
            connection.send(get("/v2/health/live"))
            return (connection.read_response() or (0, b""))[0]
    except OSError:
        return 0


def test_refused_clients_read_why(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """While hundreds of refused clients stay connected, each additional one gets its 503."""
    with start_server(tmp_path, "--connection-limit=20") as server, contextlib.ExitStack() as stack:
        server.wait_until_ready()
        begun = get("/v2/health/live")[:20]
        crowd(server, stack, 20, begun)
        wait_until(lambda: server.get("/v2/health/live").status == 503, 30, "all places are taken")
        for _ in range(8):
            crowd(server, stack, 100, b"")
            assert [status_after_connecting(server) for _ in range(5)] == [503] * 5


@pytest.mark.parametrize("limit", [[], ["--connection-limit=0"]])
def test_few_descriptors(
    start_server: StartServer, tmp_path: pathlib.Path, limit: list[str]
) -> None:
    """Idle connections make room at once; while none is idle, clients receive an error."""
    launcher = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"]
    with start_server(tmp_path, *limit, launcher=launcher) as server:
        server.wait_until_ready()
        with contextlib.ExitStack() as stack:
            crowd(server, stack, 200, get("/v2/health/live"))
            assert [status_after_connecting(server) for _ in range(20)] == [200] * 20
            assert server.is_live()
        with contextlib.ExitStack() as stack:
            crowd(server, stack, 200, get("/v2/health/live")[:20])
            wait_until(lambda: status_after_connecting(server) == 503, 30, "no descriptor is left")
            assert [status_after_connecting(server) for _ in range(5)] == [503] * 5
        wait_until(server.is_live, 30, "there are places again")


LIVE = "/inference.GRPCInferenceService/ServerLive"


def test_idle_grpc_connections_make_room(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The connections that have been idle longest are closed; those with a call remain."""
    write_identity(tmp_path, GOOD_MODEL)
    with start_server(tmp_path, "--connection-limit=4") as server, contextlib.ExitStack() as stack:
        server.wait_until_ready()
        with unharmed(server):
            busy = stack.enter_context(Http2Connection(server))
            stream = busy.call("/inference.GRPCInferenceService/ModelStreamInfer", None)
            with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
                assert client.is_server_live()
                idle = []
                for _ in range(20):
                    idle.append(stack.enter_context(Http2Connection(server)))
                    idle[-1].read_until(is_end_of(idle[-1].call(LIVE, b"")))

                def sent_away() -> list[Http2Connection]:
                    return [one for one in idle if one.has_something_to_read()]

                wait_until(lambda: len(sent_away()) >= 17, 30, "all but three are sent away")
                for connection in sent_away():
                    goaway = connection.read_until(is_goaway)
                    assert goaway.reason == NO_ERROR
                    assert goaway.payload[8:] == b"too_many_connections"
                    assert connection.read_end() == []
                # A gRPC client reconnects.
                assert client.is_server_live()
                busy.send(frame(DATA, END_STREAM, stream))
                busy.read_until(is_end_of(stream))


def test_slow_heads_and_stalled_bodies_end(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Hundreds of them don't affect a good client, and get 408."""
    flags = ["--connection-head-timeout=1", "--connection-stall-timeout=1"]
    write_identity(tmp_path, GOOD_MODEL)
    with (
        start_server(tmp_path, *flags) as server,
        unharmed(server.wait_until_ready()),
        contextlib.ExitStack() as stack,
    ):
        good = stack.enter_context(Connection(server))
        slow = [stack.enter_context(Connection(server)) for _ in range(400)]
        request = post("/v2/repository/index", b"{}" * 10)
        for index, connection in enumerate(slow):
            connection.send(request[: 40 if index % 2 == 0 else -5])
        for connection in slow:
            status, body = connection.read_response() or (0, b"")
            assert status == 408 and b"did not arrive in time" in body
            assert connection.is_closed_by_server()
        good.send(get("/v2/health/live"))
        assert (good.read_response() or (0, b""))[0] == 200


# Findings 14 and 15: transfer encodings and chunks.


#: A head; the transfer coding is to be filled in.
CHUNKED = (
    b"POST /v2/models/identity_int32/infer HTTP/1.1\r\nHost: x\r\n"
    b"Transfer-Encoding: %s\r\n\r\n"
)


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked, chunked", "gzip", "identity"])
def test_other_transfer_codings_are_refused(server: Server, coding: str) -> None:
    """A body isn't read if two readers could see its end in two different places."""
    with unharmed(server), Connection(server) as connection:
        connection.send(CHUNKED % coding.encode(), b"2\r\n{}\r\n0\r\n\r\n")
        assert (connection.read_response() or (0, b""))[0] == 400
        assert connection.is_closed_by_server()


@pytest.mark.parametrize(
    "chunks", ["zz\r\nabc\r\n", "-3\r\nabc\r\n", "3\r\nabcde\r\n", "3\nabc\r\n"]
)
def test_malformed_chunks_are_refused(server: Server, chunks: str) -> None:
    """The client gets an error before its connection is closed."""
    with unharmed(server), Connection(server) as connection:
        connection.send(CHUNKED % b"chunked", chunks.encode(), b"0\r\n\r\n")
        status, body = connection.read_response() or (0, b"")
        assert (status, json.loads(body)["error"]) == (
            400,
            "the chunks of the request's body are malformed",
        )
        assert connection.is_closed_by_server()


# row: HTTP-21
def test_every_chunk_with_content_counts(server: Server) -> None:
    """This includes those of 512 bytes, and no more than Triton accepts."""
    chunk = b"200\r\n" + b" " * 512 + b"\r\n"
    for count, expected in [(65_536, 200), (65_537, 400)]:
        with unharmed(server), Connection(server) as connection:
            head = CHUNKED.replace(b"models/identity_int32/infer", b"repository/index")
            connection.send(head % b"chunked")
            connection.send_while_accepted([b"2\r\n{}\r\n", chunk * (count - 1), b"0\r\n\r\n"])
            assert (connection.read_response() or (0, b""))[0] == expected


# Finding 16: clients that have stopped sending.


def test_a_client_that_sends_no_more_gets_its_response(
    start_server: StartServer, tmp_path: pathlib.Path, busy: Latch
) -> None:
    """A client that has stopped sending may still be reading."""
    body = json.dumps(busy.request(7)).encode()
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        with unharmed(server), Connection(server) as connection:
            connection.send(post("/v2/models/busy/infer", body))
            connection.finish_sending()
            wait_until(lambda: server.is_executing("busy"), 30, "a request is executed")
            busy.open()
            status, response = connection.read_response() or (0, b"")
            assert (status, json.loads(response)["outputs"][0]["data"]) == (200, [7])


# Finding 17: bodies of refused requests.


@pytest.mark.parametrize("path", ["/v2/absent", "/v2/health/live", "/v2/trace/setting"])
def test_refused_bodies_in_pieces_break_no_pipe(server: Server, path: str) -> None:
    """The response arrives regardless of what is still to be sent, and the connection continues."""
    request = post(path, b"x" * 16_000)
    with unharmed(server):
        for _ in range(20):
            with Connection(server) as connection:
                pieces = [request[start : start + 1000] for start in range(0, len(request), 1000)]
                assert connection.send_while_accepted(pieces)
                assert (connection.read_response() or (0, b""))[0] >= 400
                connection.send(get("/v2/health/live"))
                assert connection.read_response() == (200, b"")


# In addition to the findings: headers.


def test_headers_are_forwarded_as_they_were_sent(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Names keep their case: only exact names are reserved. Tests of the doors cover the values."""
    write_identity(tmp_path, GOOD_MODEL)
    with start_server(tmp_path, "--http-header-forward-pattern=.*iority|_") as server:
        server.wait_until_ready()
        path = f"/v2/models/{GOOD_MODEL}/infer"
        for line in ["MY_Header: abc ", "MY_Empty:", "Priority: 3", "Triton_x: 1"]:
            with Connection(server) as connection:
                connection.send(post(path, json.dumps(GOOD_REQUEST).encode(), line))
                assert (connection.read_response() or (0, b""))[0] == 200
        with Connection(server) as connection:
            connection.send(post(path, json.dumps(GOOD_REQUEST).encode(), "priority: 3"))
            status, body = connection.read_response() or (0, b"")
            assert status == 400 and b"Header 'priority' is reserved" in body


# Finding 11: work for clients that have left.


#: Rounds that take days.
ENDLESS_ROUNDS = 1 << 31


def rounds_message(rounds: int) -> service_pb2.ModelInferRequest:
    """A request for this many rounds."""
    message = service_pb2.ModelInferRequest(model_name="onnx_slow")
    tensor = message.inputs.add(name="ROUNDS", datatype="INT64", shape=[1, 1])
    tensor.contents.int64_contents.append(rounds)
    return message


def leave_http(server: Server, is_executing: Any) -> None:
    """Closes the connection during the request."""
    document = json.loads(json.dumps(ONE_ROUND))
    document["inputs"][0]["data"] = [ENDLESS_ROUNDS]
    with Connection(server) as connection:
        connection.send(post("/v2/models/onnx_slow/infer", json.dumps(document).encode()))
        wait_until(is_executing, 30, "the request is executed")


def leave_grpc(server: Server, is_executing: Any) -> None:
    """Closes the channel during the call."""
    with grpc_stub(server) as stub:
        call = stub.ModelInfer.future(rounds_message(ENDLESS_ROUNDS))
        wait_until(is_executing, 30, "the request is executed")
        assert not call.done()


def cancel_grpc(server: Server, is_executing: Any) -> None:
    """Cancels the call, and stays connected."""
    with grpc_stub(server) as stub:
        call = stub.ModelInfer.future(rounds_message(ENDLESS_ROUNDS))
        wait_until(is_executing, 30, "the request is executed")
        call.cancel()


def leave_stream(server: Server, is_executing: Any) -> None:
    """Ends a stream during its request."""
    with grpc_stub(server) as stub:
        requests = iter([rounds_message(ENDLESS_ROUNDS)])
        call = stub.ModelStreamInfer(requests)
        wait_until(is_executing, 30, "the request is executed")
        call.cancel()


def miss_deadline(server: Server, is_executing: Any) -> None:
    """Waits no longer than the call's deadline."""
    with grpc_stub(server) as stub, pytest.raises(grpc.RpcError) as failure:
        stub.ModelInfer(rounds_message(ENDLESS_ROUNDS), timeout=1)
    assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    "leave", [leave_http, leave_grpc, cancel_grpc, leave_stream, miss_deadline]
)
# row: HTTP-26
def test_an_execution_ends_when_its_client_has_left(
    start_server: StartServer, tmp_path: pathlib.Path, leave: Any
) -> None:
    """A loop of 2**31 rounds continued, and kept the only instance from all other clients."""
    make_models.write_models(tmp_path, make_models.TEST_MODELS, [GOOD_MODEL, "onnx_slow"])
    with start_server(tmp_path, "--exit-timeout-secs=1") as server:
        server.wait_until_ready()
        with unharmed(server):
            for number in range(1, 4):
                leave(server, lambda: server.is_executing("onnx_slow"))
                # The next execution isn't ended together with the previous one.
                for _ in range(3):
                    assert server.infer("onnx_slow", ONE_ROUND).status == 200
                labels = 'model="onnx_slow",reason="CANCELED",version="1"'
                line = f"nv_inference_request_failure{{{labels}}} {number}"
                assert line in server.metrics().splitlines()


# Finding 20: sequences whose clients leave.


def test_starts_whose_clients_left_before_they_were_answered_hold_no_slots(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """300 abandoned starts blocked a good client until they had been idle for long enough."""
    write_identity(tmp_path, GOOD_MODEL)
    batching = "sequence_batching { direct { } max_sequence_idle_microseconds: 3600000000 }"
    latch = Latch(tmp_path, "busy", batching, max_batch_size=2)
    starts = [
        json.dumps(
            {**latch.request(7), "parameters": {"sequence_id": one, "sequence_start": True}}
        ).encode()
        for one in range(1, 302)
    ]
    with start_server(tmp_path) as server, latch:
        server.wait_until_ready()
        with unharmed(server):
            with contextlib.ExitStack() as stack:
                for number, start in enumerate(starts):
                    connection = stack.enter_context(Connection(server))
                    connection.send(post("/v2/models/busy/infer", start))
                    if number == 0:
                        # It is too late to cancel this one, because its execution changes its
                        # sequence.
                        wait_until(lambda: server.is_executing("busy"), 30, "one is executed")
                server.wait_for_pending("busy", len(starts) - 1)
            server.wait_for_pending("busy", 0)
            latch.open()
            # One of two slots is free.
            good = {**latch.request(7), "parameters": {"sequence_id": 999, "sequence_start": True}}
            assert server.infer("busy", good).status == 200


# Finding 19: pings at once.


def test_floods_of_pings_leave_nothing(server: Server) -> None:
    """Each of them ends its connection."""
    with unharmed(server):
        for _ in range(REPETITIONS):
            with Http2Connection(server) as connection:
                connection.send(ping() * 200)
                assert connection.read_until(is_goaway).reason == ENHANCE_YOUR_CALM


def long_inference() -> tuple[str, bytes, list[str]]:
    """The path, body and headers of a request whose response is a long text."""
    data = numpy.arange(LONG_TEXT_NUMBERS, dtype=numpy.int32).tobytes()
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, LONG_TEXT_NUMBERS],
              "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    return "infer", head + data, [f"Inference-Header-Content-Length: {len(head)}"]


def long_generation() -> tuple[str, bytes, list[str]]:
    """The same for the generate extension."""
    return "generate", json.dumps({"INPUT0": list(range(LONG_TEXT_NUMBERS))}).encode(), []


@pytest.mark.parametrize("long", [long_inference, long_generation])
def test_other_connections_are_served_while_a_long_text_is_encoded(
    start_server: StartServer,
    tmp_path: pathlib.Path,
    long: Callable[[], tuple[str, bytes, list[str]]],
) -> None:
    """One thread serves all connections, and responds between the execution and the response."""
    write_identity(tmp_path, "identity")
    action, body, headers = long()
    with start_server(tmp_path, "--http-thread-count=1") as server:
        server.wait_until_ready()
        with Connection(server) as large, Connection(server) as other:
            large.send(post(f"/v2/models/identity/{action}", body, *headers))

            def is_executed() -> bool:
                other.send(get("/v2/models/identity/stats"))
                _, text = other.read_response() or (0, b"")
                return json.loads(text)["model_stats"][0]["execution_count"] == 1

            wait_until(is_executed, REQUEST_SECONDS_MAX, "it is executed")
            answered = 0
            while not large.has_something_to_read():
                other.send(get("/v2/health/live"))
                assert other.read_response() == (200, b"")
                answered += 1
            status, text = large.read_response() or (0, b"")
    assert (status, text.count(b",") > LONG_TEXT_NUMBERS) == (200, True)
    assert answered > 10


def test_other_connections_are_served_while_a_long_text_is_read(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The same for a request with a long text, whose response isn't a text."""
    write_identity(tmp_path, "identity")
    data = "[" + "1234567," * (LONG_TEXT_NUMBERS - 1) + "7]"
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, LONG_TEXT_NUMBERS], "data": 0}
    request = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    body = json.dumps(request).replace('"data": 0', f'"data": {data}').encode()
    with start_server(tmp_path, "--http-thread-count=1") as server:
        server.wait_until_ready()
        with Connection(server) as large, Connection(server) as other:
            large.send(post("/v2/models/identity/infer", body))
            answered = 0
            while not large.has_something_to_read():
                other.send(get("/v2/health/live"))
                assert other.read_response() == (200, b"")
                answered += 1
            status, response = large.read_response() or (0, b"")
    assert status == 200 and len(response) > LONG_TEXT_NUMBERS * 4
    assert answered > 100


def test_other_connections_are_served_while_a_long_text_to_generate_is_read(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The last element is invalid, so the response is short."""
    write_identity(tmp_path, "identity")
    body = b'{"INPUT0":[' + b"1234567," * (LONG_TEXT_NUMBERS - 1) + b'"x"]}'
    with start_server(tmp_path, "--http-thread-count=1") as server:
        server.wait_until_ready()
        with Connection(server) as large, Connection(server) as other:
            large.send(post("/v2/models/identity/generate", body))
            answered = 0
            while not large.has_something_to_read():
                other.send(get("/v2/health/live"))
                assert other.read_response() == (200, b"")
                answered += 1
            status, text = large.read_response() or (0, b"")
    assert (status, "error" in json.loads(text)) == (500, True), text
    assert answered > 100
