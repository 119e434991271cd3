"""Tests of restricted APIs: clients without a key are refused at every door, on every route,
before the body."""

from __future__ import annotations

import json
import pathlib
import socket
from collections.abc import Iterable, Iterator

import grpc
import pytest
import tritonclient.http
from conftest import StartServer
from openapi import DOCUMENT, category_of, is_own, path_of
from raw_http import Connection
from resilience import GOOD_MODEL, repeat
from server import Program, Server, wait_until
from test_command_line import run
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

KEY, VALUE = "admin-key", "se=cret:1"
RULE = f"model-repository:{KEY}={VALUE}"
GRPC_KEY = f"triton-grpc-protocol-{KEY}"
CATEGORIES = [
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "OPTIONS"]

#: Every path over HTTP, with its category. Recordings of traffic and the memory of models need a
#: flag; test_demand.py tests the restriction of the latter.
PATHS = {
    template: category_of(template)
    for template in DOCUMENT["paths"]
    if template.startswith("/v2") and not template.endswith(("/traffic", "/memory"))
}

#: The methods of the inference service. A method without an entry fails the test.
RPC_CATEGORIES = {
    "ServerLive": "health",
    "ServerReady": "health",
    "ModelReady": "health",
    "ServerMetadata": "metadata",
    "ModelMetadata": "metadata",
    "ModelInfer": "inference",
    "ModelStreamInfer": "inference",
    "ModelConfig": "model-config",
    "ModelStatistics": "statistics",
    "RepositoryIndex": "model-repository",
    "RepositoryModelLoad": "model-repository",
    "RepositoryModelUnload": "model-repository",
    "SystemSharedMemoryStatus": "shared-memory",
    "SystemSharedMemoryRegister": "shared-memory",
    "SystemSharedMemoryUnregister": "shared-memory",
    "CudaSharedMemoryStatus": "shared-memory",
    "CudaSharedMemoryRegister": "shared-memory",
    "CudaSharedMemoryUnregister": "shared-memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}

HTTP_TEXT = f"This API is restricted, expecting header '{KEY}'"
GRPC_TEXT = f"This protocol is restricted, expecting header '{GRPC_KEY}'"


def rpcs() -> list[tuple[str, str]]:
    """The paths of all methods in the protocol, with their categories."""
    inference = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    paths = [
        (f"/{inference.full_name}/{method.name}", RPC_CATEGORIES[method.name])
        for method in inference.methods
    ]
    return [*paths, *((f"/grpc.health.v1.Health/{name}", "health") for name in ["Check", "Watch"])]


@pytest.fixture(scope="module", params=CATEGORIES)
def restricted(
    request: pytest.FixtureRequest, start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str]]:
    """A server without models that restricts one category on both doors."""
    category = request.param
    flags = [
        f"--http-restricted-api={category}:{KEY}={VALUE}",
        f"--grpc-restricted-protocol={category}:{KEY}={VALUE}",
        "--model-control-mode=explicit",
    ]
    with start_server(tmp_path_factory.mktemp("none"), *flags) as server:
        wait_until(lambda: is_listening(server), 60, "the server listens")
        yield server, category


def is_listening(server: Server) -> bool:
    """Returns true if the ports are open, which they are when the server is ready."""
    try:
        for port in [server.http_port, server.metrics_port, server.grpc_port]:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def call(channel: grpc.Channel, path: str, *metadata: tuple[str, str]) -> tuple[str, str]:
    """The status of a call with an empty message, or of a stream with one."""
    kinds = {
        "ModelStreamInfer": channel.stream_stream,
        "Watch": channel.unary_stream,
    }
    make = kinds.get(path.rsplit("/", 1)[1], channel.unary_unary)
    sent = iter([b""]) if make == channel.stream_stream else b""
    try:
        reply = make(path)(sent, metadata=metadata, timeout=30)
        if not isinstance(reply, bytes):
            list(reply)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


# row: SEC-01 SEC-04
def test_every_route_of_http(restricted: tuple[Server, str]) -> None:
    """Exactly the paths in the category are refused, with any method, unless the key is correct."""
    server, category = restricted
    for template, own in PATHS.items():
        if server.is_triton and is_own(template):
            continue
        path = path_of(template)
        for method in METHODS:
            keys: list[dict[str, str]] = [{}, {KEY: VALUE[:-1]}, {KEY: f"{VALUE}x"}, {"x": VALUE}]
            for headers in keys:
                reply = server.request(method, path, headers=headers)
                assert (reply.status == 403) == (own == category), (method, path, headers, reply)
                if own == category:
                    assert reply.headers["Content-Type"] == "text/plain"
                    assert json.loads(reply.body) == {"error": HTTP_TEXT}
            reply = server.request(method, path, headers={KEY.upper(): VALUE})
            assert reply.status != 403, (method, path, reply)


# row: GRPC-24
def test_every_method_of_grpc(restricted: tuple[Server, str]) -> None:
    """The same over gRPC, including streams and the standard health check."""
    server, category = restricted
    if server.is_triton:
        pytest.skip("Triton leaves calls of Watch without an answer")
    with grpc.insecure_channel(server.grpc_url) as channel:
        for path, own in rpcs():
            for metadata in [(), ((GRPC_KEY, "x"),), ((KEY, VALUE),)]:
                found = call(channel, path, *metadata)
                is_refused = found == ("UNAVAILABLE", GRPC_TEXT)
                assert is_refused == (own == category), (path, metadata, found)
            found = call(channel, path, (GRPC_KEY, VALUE))
            assert found != ("UNAVAILABLE", GRPC_TEXT), (path, found)


# row: SEC-02
def test_the_metrics_are_not_restricted(restricted: tuple[Server, str]) -> None:
    """The metrics endpoint has no category."""
    server, _ = restricted
    assert "nv_" in server.metrics() or "# HELP" in server.metrics()


def restricting(  # noqa: ANN201
    start_server: StartServer, repository: pathlib.Path, *rules: str, models: Iterable[str] = ()
):
    """A server with rules for both doors."""
    flags = [f"--http-restricted-api={rule}" for rule in rules]
    flags += [f"--grpc-restricted-protocol={rule}" for rule in rules]
    flags += [f"--load-model={model}" for model in models]
    return start_server(repository, "--model-control-mode=explicit", *flags)


#: Spellings of a load that the gate sees.
REFUSED_PATHS = [
    "/v2/repository/models/m/load",
    "/v2/repository/r/models/m/load",
    "/v2/repository/models/models/m/load",
    "/v2/repository/models/index/load",
    "/v2/repository/models/m/load?key=value",
    "http://other/v2/repository/models/m/load",
]

#: Spellings that lead nowhere.
UNKNOWN_PATHS = [
    "//v2/repository/models/m/load",
    "/v2//repository/models/m/load",
    "/V2/repository/models/m/load",
    "/v2/repository/models/m/%6coad",
    "/v2/x/../repository/models/m/load",
    "/v2/repository/models/m/load/",
    "/v2/repository/models/m/load;x",
    "/invocations",
    "/models",
    "/models/m",
    "/ping",
    "/predict",
]


def test_cve_2026_24206_24207_every_other_way_to_an_administrative_call(
    start_server: StartServer, models: pathlib.Path
) -> None:
    """A restricted load is refused in every spelling of its path and at every door."""
    with restricting(start_server, models, RULE, models=[GOOD_MODEL]) as server:
        server.wait_until_ready()
        load = "/inference.GRPCInferenceService/RepositoryModelLoad"

        def attempt() -> None:
            with Connection(server) as connection:
                for path in [*REFUSED_PATHS, *UNKNOWN_PATHS]:
                    connection.send(f"POST {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    status, _ = connection.read_response() or (0, b"")
                    assert status == (403 if path in REFUSED_PATHS else 404), path
            # An HTTP header isn't a gRPC header.
            for metadata in [(), ((KEY, VALUE),)]:
                assert call(channel, load, *metadata) == ("UNAVAILABLE", GRPC_TEXT)

        with grpc.insecure_channel(server.grpc_url) as channel:
            repeat(server, attempt)


@pytest.mark.parametrize("name", ["sequence_id", "priority", "timeout", "triton_x", "headers"])
def test_cve_2026_47481_no_request_parameter_is_a_key(
    start_server: StartServer, models: pathlib.Path, name: str
) -> None:
    """The contents of a body or a forwarded header don't give access to a restricted API."""
    flags = ["--http-header-forward-pattern=.*", "--grpc-header-forward-pattern=.*"]
    flags += [f"--http-restricted-api=inference:{KEY}={VALUE}"]
    flags += [f"--grpc-restricted-protocol=inference:{KEY}={VALUE}"]
    with start_server(models, *flags) as server:
        server.wait_until_ready()
        body = json.dumps({"parameters": {KEY: VALUE, name: VALUE}, "inputs": []}).encode()
        path = "/v2/models/identity_fp32/infer"
        reply = server.request("POST", path, body, headers={name: VALUE, f"x-{KEY}": VALUE})
        assert (reply.status, json.loads(reply.body)) == (403, {"error": HTTP_TEXT})
        reply = server.request("POST", f"{path}?{KEY}={VALUE}", body)
        assert reply.status == 403
        with grpc.insecure_channel(server.grpc_url) as channel:
            infer = "/inference.GRPCInferenceService/ModelInfer"
            found = call(channel, infer, (name, VALUE), (f"x-{GRPC_KEY}", VALUE))
            assert found == ("UNAVAILABLE", GRPC_TEXT)


def test_clients_with_the_key(start_server: StartServer, models: pathlib.Path) -> None:
    """The client libraries send the key, including on pipelined connections."""
    with restricting(start_server, models, f"inference,health:{KEY}={VALUE}") as server:
        wait_until(lambda: is_listening(server), 60, "the server listens")
        with tritonclient.http.InferenceServerClient(server.http_url) as client:
            assert not client.is_server_live()
            assert client.is_server_live(headers={KEY: VALUE})
            with pytest.raises(InferenceServerException, match="This API is restricted"):
                client.infer("simple", [])
            assert client.get_server_metadata()["name"]
        request = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
        with Connection(server) as connection:
            key = f"{KEY}: {VALUE}\r\n".encode()
            connection.send(request, b"\r\n", request, key, b"\r\n", request, b"\r\n")
            statuses = [connection.read_response() for _ in range(3)]
            assert [response and response[0] for response in statuses] == [403, 200, 403]


@pytest.mark.galatea_only
def test_a_body_is_not_waited_for(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The refusal is sent although the body never arrives, and instead of `100 Continue`."""
    with restricting(start_server, tmp_path, f"model-repository:{KEY}={VALUE}") as server:
        server.wait_until_ready()
        for more in [b"", b"Expect: 100-continue\r\n"]:
            with Connection(server) as connection:
                head = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
                connection.send(head, more, b"\r\n")
                response = connection.read_response()
                assert response is not None and response[0] == 403, response


@pytest.mark.parametrize(
    ("flag", "values", "reason"),
    [
        (
            "http-restricted-api",
            ["health"],
            "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health",
        ),
        ("http-restricted-api", ["model-reposit:a=b"], "unknown restricted api 'model-reposit' "),
        ("grpc-restricted-protocol", ["x:a=b"], "unknown restricted protocol 'x' "),
        (
            "http-restricted-api",
            ["health:a=b", "trace,health:c=d"],
            "restricted api 'health' can not be specified in multiple config groups",
        ),
        (
            "grpc-restricted-protocol",
            ["health,health:a=b"],
            "restricted protocol 'health' can not be specified in multiple config groups",
        ),
    ],
)
# row: SEC-02
def test_rules_are_checked_at_the_start(
    program: Program, tmp_path: pathlib.Path, flag: str, values: list[str], reason: str
) -> None:
    """An error in a rule ends the startup with Triton's text."""
    given = [f"--{flag}={value}" for value in values]
    done = run(program, f"--model-repository={tmp_path}", *given)
    assert done.returncode == 1
    assert f'Bad option: "--{flag}".\n{reason}\n' in done.stderr
