"""Tests of the generate extension with decoupled and other models, using curl, http.client and
sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from compiling import build_examples
from conftest import ROOT, StartServer
from load_models import WORDS
from raw_http import Connection
from server import REQUEST_SECONDS_MAX, Reply, Server, resident_kilobytes, wait_until
from test_decoupled_examples import REPEAT, SQUARE, write
from transports import TRANSPORTS, GrpcStream

EXAMPLES = ROOT / "examples" / "backends"
TEXT = """
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] }
"""
MODELS = {"repeat_int32": REPEAT, "square_int32": SQUARE % 0, "text": TEXT, "words": WORDS}
EVENTS = "text/event-stream; charset=utf-8"
#: Ten minutes, in milliseconds: longer than any test.
NEVER = 600_000


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with the models for the example backends."""
    backends = tmp_path_factory.mktemp("backends")
    build_examples(EXAMPLES, backends)
    repository = tmp_path_factory.mktemp("generate_models")
    for name, config in MODELS.items():
        write(repository, name, config)
    with start_server(repository, f"--backend-directory={backends}") as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def generate(server: Server, model: str, request: Any, stream: bool = False) -> Reply:
    """Sends a request to one of the two endpoints."""
    endpoint = "generate_stream" if stream else "generate"
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return server.request("POST", f"/v2/models/{model}/{endpoint}", body)


def events(body: bytes) -> list[Any]:
    """The documents of a body of events."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts), parts
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def repeat(values: list[int], delays: list[int] | None = None) -> dict[str, Any]:
    """A request to repeat_int32."""
    return {"IN": values, "DELAY": delays or [0] * len(values), "WAIT": 0}


# row: GEN-01 GEN-03
def test_text_in_text_out(server: Server) -> None:
    """A scalar fills the dimensions, and a single element is returned as a scalar."""
    reply = generate(server, "text", {"INPUT0": "h\u00e9llo", "id": "42", "temperature": 0.5})
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    assert reply.body.decode() == (
        '{"OUTPUT0":"h\u00e9llo","id":"42","model_name":"text","model_version":"1",'
        '"param0":"an example string parameter","param1":42,"param2":false,"param3":123.123}'
    )
    reply = generate(server, "text", {"parameters": {"INPUT0": ["a", "b"]}})
    assert reply.json()["OUTPUT0"] == ["a", "b"]


@pytest.mark.parametrize("values", [[], [7], [4, -2, 0, 1]])
# row: GEN-05
def test_every_response_is_an_event(server: Server, values: list[int]) -> None:
    """The order is the one in which the model sends them."""
    number = values[0] if values else 0
    request = repeat(values) if values else {"IN": number}
    model = "repeat_int32" if values else "square_int32"
    reply = generate(server, model, request, stream=True)
    assert (reply.status, reply.headers["Content-Type"]) == (200, EVENTS)
    documents = events(reply.body) if reply.body else []
    expected = [
        {"IDX": index, "OUT": value, "model_name": "repeat_int32", "model_version": "1"}
        for index, value in enumerate(values)
    ]
    assert documents == expected


# row: GEN-04
def test_one_response_of_a_decoupled_model(server: Server) -> None:
    """Without events, there is exactly one response."""
    assert generate(server, "repeat_int32", repeat([5])).json()["OUT"] == 5
    for number in [0, 2]:
        reply = generate(server, "square_int32", {"IN": number})
        assert reply.status == 200
        assert reply.error().startswith("generate expects model to produce exactly 1 response")


def test_the_example_with_the_tensors_of_a_language_model(server: Server) -> None:
    """The response contains the prompt's words, all at once or one by one."""
    prompt = {"text_input": "to be or", "max_tokens": 4}
    answer = generate(server, "words", prompt).json()["text_output"]
    assert answer == "to be or to be or to"
    short = {"text_input": "to be or", "exclude_input_in_output": True}
    assert generate(server, "words", short).json()["text_output"] == "to be or"
    reply = generate(server, "words", {**prompt, **short, "stream": True}, stream=True)
    words = [one["text_output"] for one in events(reply.body)]
    assert words == ["to", " be", " or", " to"]
    for text, count in [("", 2), (" ", 1)]:
        one = {"text_input": text, "max_tokens": count, "exclude_input_in_output": True}
        assert generate(server, "words", one).json()["text_output"].strip() == ""
    for count in (-1, 65537):
        refused = generate(server, "words", {**prompt, "max_tokens": count})
        assert refused.error() == "max_tokens must be from 0 to 65536"


# row: HTTP-23 DEC-03
def test_the_ways_to_a_decoupled_model(server: Server) -> None:
    """Streams of both protocols get all responses; calls for a single response fail with the
    reason."""
    transactions = "doesn't support models with decoupled transaction policy"
    values = [4, 5, 6]
    reply = generate(server, "repeat_int32", repeat(values), stream=True)
    assert [one["OUT"] for one in events(reply.body)] == values
    tensors = {
        "IN": np.array(values, np.int32),
        "DELAY": np.zeros(3, np.uint32),
        "WAIT": np.zeros(1, np.uint32),
    }
    with GrpcStream(server) as stream:
        stream.send("repeat_int32", tensors)
        found = [stream.receive()[1]["OUT"].tolist() for _ in values]
    assert found == [[value] for value in values]
    given = [
        {"name": name, "shape": [len(one)], "datatype": kind, "data": one.tolist()}
        for (name, one), kind in zip(tensors.items(), ["INT32", "UINT32", "UINT32"], strict=True)
    ]
    refused = server.infer("repeat_int32", {"inputs": given})
    assert (refused.status, refused.error()) == (501, f"HTTP end point {transactions}")
    with contextlib.closing(TRANSPORTS["grpc"](server)) as calls:
        with pytest.raises(InferenceServerException, match=transactions) as caught:
            calls.infer("repeat_int32", tensors)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


# row: GEN-06
def test_errors(server: Server) -> None:
    """Errors before an execution have their own status; errors during an execution are events."""
    for stream in [False, True]:
        reply = generate(server, "square_int32", {"OUT": 1}, stream)
        assert (reply.status, reply.headers["Content-Type"]) == (400, "application/json")
        assert "missing required input(s) ['IN']" in reply.error()
        assert generate(server, "nothing", {"IN": 1}, stream).status == 404
    reply = generate(server, "repeat_int32", repeat([1, 2], [0]), stream=True)
    assert (reply.status, reply.headers["Content-Type"]) == (400, EVENTS)
    (event,) = events(reply.body)
    assert "as many elements" in event["error"]


def test_many_events(server: Server) -> None:
    """Thousands arrive, and the connection continues to work."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.http_port, timeout=REQUEST_SECONDS_MAX
    )
    for _ in range(2):
        connection.request("POST", "/v2/models/square_int32/generate_stream", b'{"IN":20000}')
        response = connection.getresponse()
        documents = events(response.read())
        assert len(documents) == 20000
        assert all(document["OUT"] == 20000 for document in documents)
    connection.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(server: Server) -> None:
    """The requests are sent as in the documentation, with both versions of HTTP/1."""
    url = f"http://127.0.0.1:{server.http_port}/v2/models/repeat_int32/generate_stream"
    for version in ["--http1.1", "--http1.0"]:
        command = ["curl", "-sS", version, "-d", json.dumps(repeat([3, 4])), url]
        body = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
        assert [event["OUT"] for event in events(body)] == [3, 4]


def test_events_arrive_one_by_one(server: Server) -> None:
    """The first response arrives although the next one takes ten minutes, and the request ends
    when the client leaves."""
    before = server.statistics("repeat_int32")["inference_stats"]
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.http_port, timeout=REQUEST_SECONDS_MAX
    )
    body = json.dumps(repeat([8, 9], [0, NEVER])).encode()
    connection.request("POST", "/v2/models/repeat_int32/generate_stream", body)
    response = connection.getresponse()
    assert events(response.readline() + response.readline())[0]["OUT"] == 8
    assert server.statistics("repeat_int32")["inference_stats"]["fail"] == before["fail"]
    response.close()
    connection.close()


# row: GEN-08 CAN-02
def test_clients_that_leave(server: Server) -> None:
    """This is before and after the first event. The server ends at once, although the models
    would not."""
    for delays in [[0, NEVER], [NEVER, NEVER]]:
        with Connection(server) as client:
            body = json.dumps(repeat([1, 2], delays)).encode()
            head = (
                "POST /v2/models/repeat_int32/generate_stream HTTP/1.1\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            client.send(head.encode(), body)
            if delays[0] == 0:
                assert b"200 OK" in client.read_head()
    # The fixture stops the server, which waits for requests in progress.
    assert generate(server, "repeat_int32", repeat([5])).json()["OUT"] == 5


# row: DEC-05
def test_a_slow_reader_bounds_the_memory(server: Server) -> None:
    """The model pauses, so that a million events aren't stored for a client that doesn't read."""
    with Connection(server) as client:
        body = b'{"IN":1000000}'
        head = (
            "POST /v2/models/square_int32/generate_stream HTTP/1.1\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        before = resident_kilobytes(server)
        client.send(head.encode(), body)
        assert b"200 OK" in client.read_head()
        # Other requests are served in the meantime, even by the same model.
        for number in range(200):
            reply = generate(server, "text", {"INPUT0": str(number)})
            assert reply.json()["OUTPUT0"] == str(number)
        assert resident_kilobytes(server) - before < 64 << 10


def test_hostile_texts_leave_no_memory(server: Server) -> None:
    """Deep, long and repeated members, a hundred times."""
    bodies = [
        b'{"INPUT0":' + b"[" * 100_000,
        b"{" + b",".join(b'"%d":1' % number for number in range(7_000)) + b",}",
        b"{" + b",".join([b'"INPUT0":"a"'] * 5_000) + b"}",
        b'{"INPUT0":[' + b",".join([b'""'] * 30_000) + b"],",
        b'{"parameters":{"a":"' + b"x" * 50_000 + b'"}' + b',"parameters":0' * 100 + b"}",
    ]

    def send_all(times: int) -> None:
        for _ in range(times):
            for body in bodies:
                reply = generate(server, "text", body)
                assert reply.status in (400, 500), reply
                assert reply.error()

    send_all(20)
    before = resident_kilobytes(server)
    send_all(100)
    wait_until(
        lambda: resident_kilobytes(server) < before + (16 << 10), 60, "the memory is back"
    )
