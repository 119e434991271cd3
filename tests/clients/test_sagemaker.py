"""Tests of the SageMaker endpoint: one model, and archives that are loaded and unloaded."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

import numpy as np
import pytest

from clouds import (
    ENSEMBLE,
    IDENTITY,
    TARGET,
    VALUES,
    Archives,
    binary_request,
    json_request,
    result_of,
    send,
    temporary_archives,
    write_model,
)
from conftest import StartServer
from server import Program, Reply, Server, free_ports, wait_until
from test_command_line import run

BINARY_TYPE = "application/vnd.sagemaker-triton.binary+json;json-header-size="
MULTI_MODEL = ("--model-control-mode=explicit", "--load-model=*")


class SageMaker:
    """A server with the endpoint."""

    def __init__(self, server: Server, port: int) -> None:
        """The server is ready."""
        self.server = server
        self.port = port

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Sends a request to the endpoint."""
        body = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return send(self.port, method, path, body, headers)

    def load(self, name: str, url: object, **headers: str) -> Reply:
        """Loads an archive."""
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        return self.request("POST", "/models", {"model_name": name, "url": str(url)}, names)

    def invoke(self, name: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Makes an archive's model return the values."""
        return self.request("POST", f"/models/{name}/invoke", json_request(), headers)

    def index(self) -> list[tuple[str, str]]:
        """The models in the repositories, with their states."""
        entries = self.server.request("POST", "/v2/repository/index", b"").json()
        return sorted((entry["name"], entry.get("state", "")) for entry in entries)


@pytest.fixture
def archives() -> Iterator[Archives]:
    """Archives of this test."""
    with temporary_archives() as these:
        yield these


@contextlib.contextmanager
def sagemaker(
    start_server: StartServer, repository: pathlib.Path, *flags: str, **environment: str
) -> Iterator[SageMaker]:
    """A server with the endpoint, and with the container's variables."""
    port = free_ports(1)[0]
    flags = ("--allow-sagemaker=true", f"--sagemaker-port={port}", *flags)
    variables = {f"SAGEMAKER_TRITON_{name.upper()}": value for name, value in environment.items()}
    with start_server(repository, *flags, environment=variables) as server:
        cloud = SageMaker(server, port)
        wait_until(lambda: listens(cloud), 60, "the endpoint listens")
        yield cloud
    assert server.process.returncode == 0


def listens(cloud: SageMaker) -> bool:
    """Returns true if the endpoint responds."""
    try:
        cloud.request("GET", "/ping")
    except OSError:
        return False
    return True


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository with one model."""
    write_model(tmp_path / "models" / "one")
    return tmp_path / "models"


# row: SM-01 SM-02
def test_one_model(start_server: StartServer, repository: pathlib.Path) -> None:
    """The container's variables name the model; tensors are sent as JSON and as bytes."""
    with sagemaker(start_server, repository, default_model_name="one") as cloud:
        assert cloud.request("GET", "/ping").status == 200
        reply = cloud.request("POST", "/invocations", json_request())
        assert reply.status == 200, reply
        assert reply.headers["Content-Type"] == "application/json"
        np.testing.assert_array_equal(result_of(reply.body, None), VALUES)
        body, length = binary_request()
        headers = {"Content-Type": f"{BINARY_TYPE}{length}"}
        reply = cloud.request("POST", "/invocations", body, headers)
        kind = reply.headers["Content-Type"]
        assert (reply.status, kind.startswith(BINARY_TYPE)) == (200, True), reply
        assert reply.headers["Inference-Header-Content-Length"] is None
        result = result_of(reply.body, int(kind.removeprefix(BINARY_TYPE)))
        np.testing.assert_array_equal(result, VALUES)


def test_without_a_name_the_model_is_unknown(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """As in Triton, the error names the file that it looks for."""
    with sagemaker(start_server, repository) as cloud:
        reply = cloud.request("POST", "/invocations", json_request())
        name = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
        assert reply.error() == f"Request for unknown model: '{name}' is not found"
        assert reply.status == 404


@pytest.mark.parametrize(("mode", "status"), [("live", 200), ("ready", 400), ("", 400)])
# row: SM-01
def test_ping_modes(
    start_server: StartServer, tmp_path: pathlib.Path, mode: str, status: int
) -> None:
    """A server with a broken model is live but not ready."""
    write_model(tmp_path / "broken", IDENTITY.replace("identity", "no_such_backend"))
    with sagemaker(start_server, tmp_path, "--exit-on-error=false", ping_mode=mode) as cloud:
        assert cloud.request("GET", "/ping").status == status


@pytest.mark.galatea_only  # later releases than the recorded one
@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
# row: SM-02
def test_generate(start_server: StartServer, repository: pathlib.Path, kind: str) -> None:
    """The same path serves the generate extension."""
    variables = {"default_model_name": "one", "inference_type": kind}
    with sagemaker(start_server, repository, **variables) as cloud:
        body = {"INPUT0": [1.5, 2]}
        reply = cloud.request("POST", "/invocations", body)
        expected = cloud.server.request(
            "POST", f"/v2/models/one/{kind}", json.dumps(body).encode()
        )
        assert (reply.status, reply.body) == (200, expected.body)
        assert reply.headers["Content-Type"] == expected.headers["Content-Type"]


# row: SM-03
def test_archives_as_sagemaker_asks_for_them(
    start_server: StartServer, tmp_path: pathlib.Path, archives: Archives
) -> None:
    """Loads, lists, calls and unloads two archives and an ensemble."""
    write_model(archives.path("a"))
    write_model(archives.path("b") / f"inner{archives.run}")
    write_model(archives.path("c") / f"one{archives.run}")
    write_model(archives.path("c") / "whole", ENSEMBLE % f"one{archives.run}")
    with sagemaker(start_server, tmp_path, *MULTI_MODEL) as cloud:
        assert cloud.load("first", archives.path("a")).status == 200
        assert cloud.load("first", archives.path("a")).status == 409
        assert cloud.load("second", archives.path("b")).status == 200
        first = {"modelName": "first", "modelUrl": str(archives.parent("a"))}
        second = {"modelName": "second", "modelUrl": str(archives.path("b"))}
        listed = json.loads(cloud.request("GET", "/models").body)
        assert sorted(listed["models"], key=str) == [first, second]
        assert json.loads(cloud.request("GET", "/models/first").body) == first
        for name in ["first", "second"]:
            np.testing.assert_array_equal(result_of(cloud.invoke(name).body, None), VALUES)
        body, length = binary_request()
        headers = {"Content-Type": f"{BINARY_TYPE}{length}"}
        reply = cloud.request("POST", "/models/second/invoke", body, headers)
        length = int(reply.headers["Content-Type"].removeprefix(BINARY_TYPE))
        np.testing.assert_array_equal(result_of(reply.body, length), VALUES)
        for name in ["first", "second"]:
            assert cloud.request("DELETE", f"/models/{name}").status == 200
            assert cloud.request("DELETE", f"/models/{name}").status == 404
            assert cloud.invoke(name).status == 404
        headers = {TARGET: "ensemble"}
        url = {"model_name": "third", "url": str(archives.path("c"))}
        assert cloud.request("POST", "/models", url, headers).status == 200
        reply = cloud.invoke("third", headers)
        assert json.loads(reply.body)["model_name"] == "ensemble", reply
        assert cloud.request("DELETE", "/models/third", headers=headers).status == 200
        assert all(state != "READY" for _, state in cloud.index()), cloud.index()


def test_a_load_that_fails_leaves_nothing(
    start_server: StartServer, tmp_path: pathlib.Path, archives: Archives
) -> None:
    """The load can be tried again, and the server continues to serve its other models."""
    write_model(archives.path("a"))
    write_model(archives.path("b"), IDENTITY.replace("identity", "no_such_backend"))
    with sagemaker(start_server, tmp_path, *MULTI_MODEL) as cloud:
        assert cloud.load("good", archives.path("a")).status == 200
        for _ in range(3):
            reply = cloud.load("bad", archives.path("b"))
            assert "no_such_backend" in reply.error()
            assert reply.status == 400
            assert cloud.request("GET", "/models/bad").status == 404
        config = archives.path("b") / "config.pbtxt"
        config.write_text(IDENTITY)
        assert cloud.load("bad", archives.path("b")).status == 200
        assert cloud.invoke("bad").status == 200
        assert cloud.invoke("good").status == 200


# row: SM-03
def test_want_of_memory_is_507(
    start_server: StartServer, tmp_path: pathlib.Path, archives: Archives
) -> None:
    """SageMaker then unloads other models. As in Triton, the error's text indicates this."""
    write_model(archives.path("a"), IDENTITY.replace("identity", "OOM"))
    with sagemaker(start_server, tmp_path, *MULTI_MODEL) as cloud:
        reply = cloud.load("large", archives.path("a"))
        assert (reply.status, "'OOM'" in reply.error()) == (507, True), reply


def test_archives_need_explicit_control(
    start_server: StartServer, repository: pathlib.Path, archives: Archives
) -> None:
    """The refusal names the mode."""
    write_model(archives.path("a"))
    with sagemaker(start_server, repository) as cloud:
        reply = cloud.load("m", archives.path("a"))
        text = "repository registration is not allowed if model control mode is not EXPLICIT"
        assert (reply.status, reply.error()) == (400, text)


@pytest.mark.galatea_only  # CVE-2026-47629 and -24209: the recorded release takes any place
def test_urls_lead_nowhere_else(
    start_server: StartServer, tmp_path: pathlib.Path, archives: Archives
) -> None:
    """Only archives are accepted, and no other location is searched."""
    write_model(tmp_path / "outside" / "secret")
    write_model(archives.path("a"))
    models = tmp_path / "models"
    models.mkdir()
    outside = tmp_path / "outside"
    up = "../" * 12
    urls = [
        str(outside),
        f"{archives.path('a')}/{up}{outside}",
        f"{archives.path('a')}_evil",
        f"{archives.path('a')}/..",
        f"{archives.parent('a')}",
        f"{archives.path('a')}/a/b",
        f"{archives.path('a')}/\u0000",
        f"{archives.path('a')}\n",
        f"file://{archives.path('a')}",
        "opt/ml/models/a/model",
        "s3://bucket/model",
        ".",
        "..",
        "",
    ]
    with sagemaker(start_server, models, *MULTI_MODEL) as cloud:
        for url in urls:
            reply = cloud.load("m", url)
            if url.endswith("_evil"):  # a name like another, and nothing there
                assert "repository not found" in reply.error()
                continue
            assert reply.status == 400, url
            assert "expected a path of the form" in reply.error(), url
        for url in ["/proc/self/root", f"/proc/self/cwd{outside}", "/dev/fd/0", "/sys/x", "//dev/x"]:
            reply = cloud.load("m", url)
            assert (reply.status, reply.body) == (400, b""), url
        for body in [b"", b"{", b"[]", b"{}", b'{"url":7}', b'{"model_name":[],"url":"/"}']:
            assert cloud.request("POST", "/models", body).status == 400
        for name in ["..", " ..", "a/b", "", " ", "x" * 300]:
            reply = cloud.load(name, archives.path("a"))
            assert reply.status == 400, (name, reply)
        assert cloud.index() == []
        assert cloud.load("m", archives.path("a")).status == 200


@pytest.mark.galatea_only  # CVE-2025-33238
def test_loads_and_unloads_of_one_name_may_race(
    start_server: StartServer, tmp_path: pathlib.Path, archives: Archives
) -> None:
    """Whatever their order, each is executed or refused, and nothing remains at the end."""
    write_model(archives.path("a"))
    with sagemaker(start_server, tmp_path, *MULTI_MODEL) as cloud:
        seen: set[int] = set()

        def change(is_load: bool) -> None:
            for _ in range(15):
                if is_load:
                    reply = cloud.load("m", archives.path("a"))
                else:
                    reply = cloud.request("DELETE", "/models/m")
                seen.add(reply.status)

        threads = [threading.Thread(target=change, args=(number % 2 == 0,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen <= {200, 404, 409}, seen
        cloud.request("DELETE", "/models/m")
        assert all(state != "READY" for _, state in cloud.index()), cloud.index()
        assert cloud.load("m", archives.path("a")).status == 200
        assert cloud.invoke("m").status == 200


SLOW = IDENTITY + 'parameters { key: "execute_delay_ms" value { string_value: "700" } }'


def slow_request(cloud: SageMaker, path: str, model: str) -> futures.Future[Reply]:
    """A request that is executing when this returns, and for a while after that."""
    pool = futures.ThreadPoolExecutor(1)
    reply = pool.submit(cloud.request, "POST", path, json_request())
    wait_until(lambda: cloud.server.is_executing(model), 60, "the request is executed")
    pool.shutdown(wait=False)
    return reply


@pytest.mark.galatea_only  # asks for the scheduler's status; Triton cuts such requests off
def test_requests_are_served_while_the_server_stops(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Requests that are executing get their responses, and idle connections don't delay the end."""
    write_model(tmp_path / "slow", SLOW)
    with sagemaker(start_server, tmp_path, default_model_name="slow") as cloud:
        with socket.create_connection(("127.0.0.1", cloud.port)):
            reply = slow_request(cloud, "/invocations", "slow")
            cloud.server.terminate()
            assert reply.result(60).status == 200
            assert cloud.server.wait_for_exit() == 0


@pytest.mark.galatea_only  # asks for the scheduler's status
def test_an_unload_waits_for_the_last_request(
    start_server: StartServer, tmp_path: pathlib.Path, archives: Archives
) -> None:
    """SageMaker may remove the archive once it has the response."""
    write_model(archives.path("a"), SLOW)
    with sagemaker(start_server, tmp_path, *MULTI_MODEL) as cloud:
        assert cloud.load("m", archives.path("a")).status == 200
        reply = slow_request(cloud, "/models/m/invoke", "m")
        assert cloud.request("DELETE", "/models/m").status == 200
        assert "successfully unloaded 'm'" in cloud.server.log()
        assert reply.result(60).status == 200


#: Every route, by its category.
ROUTES = {
    "health": [("GET", "/ping"), ("POST", "/ping")],
    "inference": [("POST", "/invocations"), ("POST", "/models/m/invoke")],
    "model-repository": [
        ("GET", "/models"),
        ("GET", "/models/m"),
        ("POST", "/models"),
        ("POST", "/models/x"),
        ("DELETE", "/models/x"),
    ],
    "metadata": [],
}


@pytest.mark.galatea_only  # CVE-2026-24207: the recorded release doesn't ask for the key
@pytest.mark.parametrize("restricted", ROUTES)
def test_restricted_apis(
    start_server: StartServer, tmp_path: pathlib.Path, archives: Archives, restricted: str
) -> None:
    """The rules of HTTP apply to every route."""
    write_model(archives.path("a"))
    rule = f"--http-restricted-api={restricted}:key=value"
    with sagemaker(start_server, tmp_path, *MULTI_MODEL, rule) as cloud:
        loaded = cloud.load("m", archives.path("a"), key="value")
        assert loaded.status == 200, loaded
        for category, routes in ROUTES.items():
            for method, path in routes:
                for key in ["", "valu", "value", None]:
                    headers = {} if key is None else {"key": key}
                    reply = cloud.request(method, path, b"{}", headers)
                    is_refused = category == restricted and key != "value"
                    assert (reply.status == 403) == is_refused, (method, path, key)


# row: CLI-15 CLI-24
def test_ports_outside_the_safe_range(program: Program, tmp_path: pathlib.Path) -> None:
    """The server doesn't start, and names the endpoint."""
    flags = ["--allow-sagemaker=true", "--sagemaker-safe-port-range=8001-9000"]
    done = run(program, f"--model-repository={tmp_path}", *flags)
    text = "The server cannot listen to HTTP requests at port 8000, allowed port range is [8001, 9000]"
    assert text in done.stdout + done.stderr
    assert done.returncode == 1
