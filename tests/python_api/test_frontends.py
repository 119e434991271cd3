"""Tests of network doors for a server in the program's process, with the real clients."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.request
from typing import Any

import galatea
import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from conftest import Start
from galatea import KServeGrpc, KServeHttp, Metrics
from tritonclient.utils import InferenceServerException

KINDS = [(KServeHttp, tritonclient.http), (KServeGrpc, tritonclient.grpc)]


def new_door(frontend: type, server: galatea.Server, **options: Any) -> Any:
    """A door on a port that the system chooses."""
    options = frontend.Options(**{"address": "127.0.0.1", "port": 0, **options})
    return frontend(server=server, options=options)


def open_door(frontend: type, server: galatea.Server, **options: Any) -> Any:
    """The same, started."""
    door = new_door(frontend, server, **options)
    door.start()
    return door


def ask(client_kind: Any, port: int, text: str) -> str:
    """Sends a text to an identity model."""
    client = client_kind.InferenceServerClient(url=f"127.0.0.1:{port}")
    try:
        value = client_kind.InferInput("INPUT0", [1, 1], "BYTES")
        value.set_data_from_numpy(numpy.array([[text]], object))
        result = client.infer("identity_string", [value])
        return result.as_numpy("OUTPUT0")[0][0].decode()
    finally:
        client.close()


@pytest.mark.parametrize("frontend, clients", KINDS)
# row: DEP-06
def test_a_door_serves(start: Start, frontend: type, clients: Any) -> None:
    server = start("identity_string")
    door = open_door(frontend, server)
    client = clients.InferenceServerClient(url=f"127.0.0.1:{door.port}")
    assert client.is_server_ready()
    client.close()
    assert ask(clients, door.port, "testing") == "testing"
    with pytest.raises(galatea.AlreadyExistsError, match="server is already running."):
        door.start()
    port = door.port
    door.stop()
    assert door.port is None
    with pytest.raises(galatea.UnavailableError, match="server is not running."):
        door.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with door:
        assert ask(clients, door.port, "again") == "again"


@pytest.mark.parametrize("frontend, clients", KINDS)
def test_a_door_outlives_its_server(start: Start, frontend: type, clients: Any) -> None:
    """In Triton, a request to the door of a stopped server crashes the program."""
    server = start("identity_string")
    with new_door(frontend, server) as door:
        server.stop()
        with pytest.raises(InferenceServerException):
            ask(clients, door.port, "testing")


def test_both_doors_and_metrics(start: Start) -> None:
    server = start("identity_string")
    with new_door(KServeHttp, server) as http, new_door(KServeGrpc, server) as grpc, \
            new_door(Metrics, server) as metrics:
        def count() -> int:
            url = f"http://127.0.0.1:{metrics.port}/metrics"
            with urllib.request.urlopen(url) as response:
                text = response.read().decode()
            found = re.search(r'nv_inference_count\{model="identity_string".*\} (\d+)', text)
            assert found, text
            return int(found[1])

        assert count() == 0
        assert ask(tritonclient.http, http.port, "a") == "a"
        assert ask(tritonclient.grpc, grpc.port, "b") == "b"
        # They run in the same process, at the same time.
        [_] = server.model("identity_string").infer(inputs={"INPUT0": [["c"]]})
        assert count() == 3


def test_generate_and_streams(start: Start) -> None:
    server = start("identity_string", "counter")
    with new_door(KServeHttp, server) as http:
        request = urllib.request.Request(
            f"http://127.0.0.1:{http.port}/v2/models/identity_string/generate",
            b'{"INPUT0": ["testing"]}', method="POST")
        with urllib.request.urlopen(request) as response:
            assert json.load(response)["OUTPUT0"] == "testing"
    with new_door(KServeGrpc, server) as grpc:
        client = tritonclient.grpc.InferenceServerClient(url=f"127.0.0.1:{grpc.port}")
        done = threading.Semaphore(0)
        tokens = []

        def take(result: Any, error: Any) -> None:
            tokens.append(error or result.as_numpy("TOKEN").tolist())
            done.release()

        client.start_stream(take)
        value = tritonclient.grpc.InferInput("COUNT", [1, 1], "INT32")
        value.set_data_from_numpy(numpy.array([[20]], numpy.int32))
        client.async_stream_infer("counter", [value])
        for _ in range(20):
            assert done.acquire(timeout=60)
        client.close()
        assert tokens == [[[number]] for number in range(20)]


def test_a_stopped_door_ends_its_requests(start: Start) -> None:
    server = start("counter")
    door = open_door(KServeGrpc, server)
    client = tritonclient.grpc.InferenceServerClient(url=f"127.0.0.1:{door.port}")
    answers: list = []
    first, ended = threading.Event(), threading.Event()

    def take(result: Any, error: Any) -> None:
        answers.append(error)
        first.set()
        if error is not None:
            ended.set()

    client.start_stream(take)
    value = tritonclient.grpc.InferInput("COUNT", [1, 1], "INT32")
    value.set_data_from_numpy(numpy.array([[1 << 20]], numpy.int32))
    client.async_stream_infer("counter", [value])
    assert first.wait(60)
    door.stop()
    assert ended.wait(60)
    assert str(answers[-1]) == "[StatusCode.CANCELLED] CANCELLED"
    client.close()
    # The request was cancelled, so the server stops at once.
    server.stop()


@pytest.mark.parametrize(
    "frontend, options",
    [
        (KServeHttp, {"address": "0.0.0.1", "port": 8080, "reuse_port": True, "thread_count": 16}),
        (KServeGrpc, {
            "infer_compression_level": KServeGrpc.Grpc_compression_level.HIGH, "reuse_port": True,
            "infer_allocation_pool_size": 12, "http2_max_pings_without_data": 10}),
        (Metrics, {"address": "0.0.0.1", "port": 8080, "thread_count": 16}),
    ],
)
def test_good_options(frontend: type, options: dict) -> None:
    made = frontend.Options(**options)
    assert {name: getattr(made, name) for name in options} == options


@pytest.mark.parametrize(
    "frontend, name, value",
    [
        (KServeHttp, "port", -15), (KServeHttp, "port", 65536), (KServeHttp, "thread_count", 0),
        (KServeHttp, "header_forward_pattern", 10), (KServeHttp, "reuse_port", 1),
        (KServeGrpc, "port", -5), (KServeGrpc, "server_key", 10),
        (KServeGrpc, "infer_allocation_pool_size", "big pool"),
        (KServeGrpc, "infer_compression_level", KServeGrpc.Grpc_compression_level.COUNT),
        (KServeGrpc, "infer_compression_level", "high"),
        *((KServeGrpc, name, -1) for name in (
            "keepalive_time_ms", "keepalive_timeout_ms", "http2_max_pings_without_data",
            "http2_min_recv_ping_interval_without_data_ms", "http2_max_ping_strikes",
            "max_connection_age_ms", "max_connection_age_grace_ms")),
        (Metrics, "port", -15), (Metrics, "thread_count", 0), (Metrics, "thread_count", "ten"),
    ],
)
def test_wrong_options(frontend: type, name: str, value: object) -> None:
    for error in (galatea.InvalidArgumentError, ValueError):
        with pytest.raises(error, match=name):
            frontend.Options(**{name: value})


@pytest.mark.parametrize("frontend", [KServeHttp, KServeGrpc, Metrics])
def test_what_no_door_is_made_of(start: Start, frontend: type) -> None:
    server = start()
    with pytest.raises(galatea.InvalidArgumentError, match="must be of type"):
        frontend(server, {"port": 8001})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(galatea.UnavailableError, match="already in use"):
            open_door(frontend, server, port=taken.getsockname()[1])
    with pytest.raises(galatea.InvalidArgumentError, match="--no-such"):
        open_door(frontend, server, flags=["--no-such=1"])
    with pytest.raises(galatea.InvalidArgumentError, match="Server not started"):
        frontend(galatea.Server())


def test_restrictions_and_tls(start: Start) -> None:
    server = start("identity_string")
    flags = ["--http-restricted-api=model-repository:key=value"]
    with new_door(KServeHttp, server, flags=flags) as http:
        assert ask(tritonclient.http, http.port, "open") == "open"
        client = tritonclient.http.InferenceServerClient(url=f"127.0.0.1:{http.port}")
        with pytest.raises(InferenceServerException, match="restricted"):
            client.load_model("add")
        client.load_model("add", headers={"key": "value"})
        client.close()
    with pytest.raises(galatea.InvalidArgumentError, match="grpc-server-cert"):
        open_door(KServeGrpc, server, use_ssl=True)


def test_an_old_program_changes_its_imports_alone(start: Start) -> None:
    from galatea import tritonfrontend, tritonserver

    assert tritonserver.Server is galatea.Server
    assert tritonserver.__version__ == galatea.__version__
    assert tritonfrontend.KServeHttp is KServeHttp
    for name in tritonserver.__all__:
        assert hasattr(tritonserver, name)
