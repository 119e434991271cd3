"""Tests of --tenants-file: keys, the APIs that they allow, limits, and changes of the file."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import queue
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from openai_door import Door
from server import Program, Reply, Server, free_ports, wait_until
from test_command_line import run
from test_restricted_apis import PATHS, call, path_of, rpcs

pytestmark = pytest.mark.galatea_only

T = TypeVar("T")

IDENTITY = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
"""
BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.5]}]}
).encode()
INFER = "/v2/models/m/infer"
MISSING = (
    "this API requires a key, expecting header 'authorization: Bearer KEY' or 'x-api-key: KEY'"
)
UNKNOWN = "the key is unknown or has been revoked"
LIMIT = "the limit of requests per second is exceeded, retry after "
SECONDS_MAX = 60.0


def forbidden(api: str) -> str:
    return f"the key does not allow API '{api}'"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tenants")
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "config.pbtxt").write_text(IDENTITY)
    return folder


class Tenants:
    """A file of tenants, which the program writes."""

    def __init__(self, program: Program, path: pathlib.Path) -> None:
        self.program = program
        self.path = path

    def add(self, tenant: str, *options: str) -> str:
        """Makes a key."""
        return self.run("new", str(self.path), tenant, *options).strip()

    def revoke(self, key: str) -> None:
        self.run("revoke", str(self.path), key.split("_")[1])

    def run(self, *words: str) -> str:
        """The output of a command about keys."""
        done = subprocess.run(
            [str(self.program.path), "keys", *words], capture_output=True, text=True, check=False,
            timeout=SECONDS_MAX,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture
def tenants(program: Program, tmp_path: pathlib.Path) -> Tenants:
    return Tenants(program, tmp_path / "tenants.json")


@contextlib.contextmanager
def serving(
    start_server: StartServer, repository: pathlib.Path, tenants: Tenants, *flags: str
) -> Iterator[Server]:
    flags = (f"--tenants-file={tenants.path}", *flags)
    with start_server(repository, *flags) as server:
        yield server.wait_until_ready()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def infer(server: Server, headers: dict[str, str]) -> Reply:
    return server.request("POST", INFER, BODY, headers)


def wait_for(send: Callable[[], T], is_wanted: Callable[[T], bool]) -> T:
    """Sends requests until one has the wanted response."""
    found: list[T] = []

    def is_found() -> bool:
        found.append(send())
        return is_wanted(found[-1])

    wait_until(is_found, SECONDS_MAX, "a wanted response")
    return found[-1]


def error(reply: Reply) -> str:
    return json.loads(reply.body)["error"]


def test_every_path_but_health_needs_a_key(
    start_server: StartServer, repository: pathlib.Path, tenants: Tenants
) -> None:
    """A key gives access to the APIs of its tenant, over HTTP and gRPC."""
    key = tenants.add("a", "--apis=statistics")
    with serving(start_server, repository, tenants) as server:
        for template, api in PATHS.items():
            path = path_of(template)
            plain = server.request("GET", path)
            wrong = server.request("GET", path, headers=bearer(f"{key[:-1]}x"))
            right = server.request("GET", path, headers=bearer(key))
            if api == "health":
                assert 401 not in (plain.status, wrong.status, right.status), path
                continue
            assert (plain.status, error(plain)) == (401, MISSING), path
            assert plain.headers["WWW-Authenticate"] == "Bearer"
            assert plain.headers["Content-Type"] == "application/json"
            assert (wrong.status, error(wrong)) == (401, UNKNOWN), path
            if api == "statistics":
                assert right.status not in (401, 403), path
            else:
                assert (right.status, error(right)) == (403, forbidden(api)), path
        with grpc.insecure_channel(server.grpc_url) as channel:
            for path, api in rpcs():
                plain = call(channel, path)
                wrong = call(channel, path, ("x-api-key", f"{key[:-1]}x"))
                right = call(channel, path, ("authorization", f"Bearer {key}"))
                refusals = ("UNAUTHENTICATED", "PERMISSION_DENIED")
                if api == "health":
                    assert all(one[0] not in refusals for one in (plain, wrong, right)), path
                    continue
                assert plain == ("UNAUTHENTICATED", MISSING), path
                assert wrong == ("UNAUTHENTICATED", UNKNOWN), path
                if api == "statistics":
                    assert right[0] not in refusals, path
                else:
                    assert right == ("PERMISSION_DENIED", forbidden(api)), path
        assert "# HELP" in server.metrics()


def test_the_client_libraries_send_keys(
    start_server: StartServer, repository: pathlib.Path, tenants: Tenants
) -> None:
    """By default, a key allows what a client of inference needs."""
    key = tenants.add("a")
    with serving(start_server, repository, tenants) as server:
        value = numpy.array([1.5], numpy.float32)
        for module, url in [
            (tritonclient.http, server.http_url),
            (tritonclient.grpc, server.grpc_url),
        ]:
            name = "x-api-key"
            with module.InferenceServerClient(url) as client:
                given = module.InferInput("INPUT0", [1], "FP32")
                given.set_data_from_numpy(value)
                with pytest.raises(InferenceServerException, match="requires a key"):
                    client.infer("m", [given])
                result = client.infer("m", [given], headers={name: key})
                assert result.as_numpy("OUTPUT0") == value
                assert client.is_model_ready("m")
                assert client.get_model_metadata("m", headers={name: key})
                assert client.get_model_config("m", headers={name: key})
                with pytest.raises(InferenceServerException, match="API 'statistics'"):
                    client.get_inference_statistics("m", headers={name: key})


def test_a_limit_refuses_with_a_time(
    start_server: StartServer, repository: pathlib.Path, tenants: Tenants
) -> None:
    """A tenant's requests count together, whatever their protocol and key."""
    key = tenants.add("a", "--requests-per-second=1")
    other = tenants.add("a")
    unlimited = tenants.add("b")
    with serving(start_server, repository, tenants) as server:
        admitted = infer(server, bearer(key))
        assert admitted.status == 200
        # Metadata isn't limited.
        assert server.request("GET", "/v2", headers=bearer(key)).status == 200

        # On a slow machine, a second may pass between two requests.
        reply = wait_for(lambda: infer(server, bearer(other)), lambda one: one.status == 429)
        assert error(reply).startswith(LIMIT)
        assert reply.headers["Retry-After"] == "1"
        assert 0 < int(reply.headers["retry-after-ms"]) <= 1000
        with grpc.insecure_channel(server.grpc_url) as channel:
            path = "/inference.GRPCInferenceService/ModelInfer"
            found = wait_for(
                lambda: call(channel, path, ("x-api-key", key)),
                lambda one: one[0] == "RESOURCE_EXHAUSTED",
            )
            assert found[1].startswith(LIMIT)
        assert infer(server, bearer(unlimited)).status == 200
        metrics = server.metrics()
        assert 'galatea_tenant_requests_total{tenant="b"} 1' in metrics
        assert re.search(r'galatea_tenant_refusals_total{tenant="a"} [1-9]', metrics)


def test_each_request_of_a_stream_counts(
    start_server: StartServer, repository: pathlib.Path, tenants: Tenants
) -> None:
    key = tenants.add("a", "--requests-per-second=2")
    with serving(start_server, repository, tenants) as server:
        replies: queue.Queue[Any] = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.start_stream(
                lambda result, error: replies.put(error or result), headers={"x-api-key": key}
            )
            given = tritonclient.grpc.InferInput("INPUT0", [1], "FP32")
            given.set_data_from_numpy(numpy.array([1.5], numpy.float32))
            sent = 50
            for _ in range(sent):
                client.async_stream_infer("m", [given])
            found = [replies.get(timeout=SECONDS_MAX) for _ in range(sent)]
            client.stop_stream()
        errors = [str(one) for one in found if isinstance(one, InferenceServerException)]
        assert 0 < len(errors) <= sent - 2, errors
        assert all(LIMIT in one for one in errors), errors
        assert not isinstance(found[0], InferenceServerException)


def test_a_changed_file_is_used(
    start_server: StartServer, repository: pathlib.Path, tenants: Tenants
) -> None:
    """A file that can't be used changes nothing and is reported."""
    first = tenants.add("a")
    with serving(start_server, repository, tenants) as server:
        second = tenants.add("b")
        wait_until(lambda: infer(server, bearer(second)).status == 200, SECONDS_MAX, "a new key")
        assert infer(server, bearer(first)).status == 200
        tenants.revoke(first)
        wait_until(lambda: infer(server, bearer(first)).status == 401, SECONDS_MAX, "a revocation")
        whole = tenants.path.read_text()
        broken = json.loads(whole)
        broken["tenants"][0]["weight"] = 3
        tenants.path.write_text(json.dumps(broken))
        reason = "tenants[0].weight isn't supported by this version: remove it"
        wait_until(lambda: reason in server.log(), SECONDS_MAX, "an error in the log")
        assert "the tenants stay as they are: --tenants-file '" in server.log()
        assert infer(server, bearer(second)).status == 200
        assert infer(server, bearer(first)).status == 401
        tenants.path.unlink()
        wait_until(lambda: "it can't be read" in server.log(), SECONDS_MAX, "another error")
        assert infer(server, bearer(second)).status == 200
        replaced = tenants.path.with_suffix(".new")
        replaced.write_text(whole.replace('"b"', '"c"'))
        os.replace(replaced, tenants.path)
        wait_until(lambda: server.log().count("is in use") == 3, SECONDS_MAX, "the third change")
        assert infer(server, bearer(second)).status == 200
        assert second not in server.log() and second.split("_")[2] not in tenants.path.read_text()


def test_the_openai_endpoint_has_errors_of_openai(
    start_server: StartServer, repository: pathlib.Path, tenants: Tenants
) -> None:
    key = tenants.add("a", "--apis=model-repository")
    (port,) = free_ports(1)
    flags = [f"--openai-port={port}", "--host=127.0.0.1"]
    with serving(start_server, repository, tenants, *flags) as server:
        door = Door(server, port, repository)
        wait_until(door.is_open, SECONDS_MAX, "the endpoint listens")
        chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        plain = door.post("/v1/chat/completions", chat)
        assert plain.status == 401
        found = json.loads(plain.body)["error"]
        assert (found["message"], found["code"]) == (MISSING, "invalid_api_key")
        reply = door.post("/v1/chat/completions", chat, Authorization=f"Bearer {key}")
        assert reply.status == 403
        found = json.loads(reply.body)["error"]
        assert (found["message"], found["code"]) == (
            forbidden("inference"),
            "insufficient_permissions",
        )
        assert door.send("GET", "/v1/models", Authorization=f"Bearer {key}").status == 200


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "it is not JSON: "),
        ('{"tenants": [{"name": "a", "apis": ["x"]}]}', "tenants[0].apis[0]: 'x' is no API"),
        ('{"tenants": [{"name": "a", "limit": 1}]}', "tenants[0].limit is no field of a tenant"),
    ],
)
def test_a_wrong_file_ends_the_startup(
    program: Program, tmp_path: pathlib.Path, text: str, reason: str
) -> None:
    file = tmp_path / "tenants.json"
    file.write_text(text)
    done = run(program, f"--model-repository={tmp_path}", f"--tenants-file={file}")
    assert done.returncode == 1
    assert f"--tenants-file '{file}': {reason}" in done.stdout + done.stderr
