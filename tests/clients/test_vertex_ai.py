"""Tests of the Vertex AI endpoint: one model, redirects, and the variables that it sets."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from clouds import REDIRECT, VALUES, binary_request, json_request, result_of, send, write_model
from conftest import StartServer
from server import HEADER_LENGTH, Program, Reply, Server, free_ports, wait_until

BINARY_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
ROUTES = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}


class VertexAi:
    """A server with the endpoint."""

    def __init__(self, port: int, server: Server | None = None) -> None:
        """The server starts."""
        self.port = port
        self._server = server

    @property
    def server(self) -> Server:
        """The server, unless the test started it itself."""
        assert self._server is not None
        return self._server

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Sends a request to the endpoint."""
        return send(self.port, method, path, body, headers)

    def redirect(self, path: str, body: bytes = b"", **headers: str) -> Reply:
        """A request that is redirected."""
        return self.request("POST", "/predict", body, {REDIRECT: path, **headers})

    def is_ready(self) -> bool:
        """Returns true if the health route reports this."""
        try:
            return self.request("GET", "/health").status == 200
        except OSError:
            return False


@contextlib.contextmanager
def vertex_ai(
    start_server: StartServer,
    repository: pathlib.Path,
    *flags: str,
    environment: Mapping[str, str] = ROUTES,
) -> Iterator[VertexAi]:
    """A server with the endpoint."""
    port = free_ports(1)[0]
    flags = (f"--vertex-ai-port={port}", *flags)
    with start_server(repository, *flags, environment=environment) as server:
        cloud = VertexAi(port, server)
        wait_until(
            lambda: cloud.is_ready() or server.process.poll() is not None, 60, "it is ready"
        )
        yield cloud
    assert server.process.returncode == 0, server.log()


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository with one model."""
    write_model(tmp_path / "models" / "one")
    return tmp_path / "models"


ALLOW = "--allow-vertex-ai=true"


# row: SM-04
def test_one_model(start_server: StartServer, repository: pathlib.Path) -> None:
    """The only model is the default model; tensors are sent as JSON and as bytes."""
    with vertex_ai(start_server, repository, ALLOW) as cloud:
        reply = cloud.request("POST", "/predict", json_request())
        np.testing.assert_array_equal(result_of(reply.body, None), VALUES)
        body, length = binary_request()
        headers = {"Content-Type": f"{BINARY_TYPE}{length}"}
        for redirect in [{}, {REDIRECT: "v2/models/one/infer"}]:
            reply = cloud.request("POST", "/predict", body, headers | redirect)
            assert reply.status == 200, reply
            result = result_of(reply.body, int(reply.headers[HEADER_LENGTH]))
            np.testing.assert_array_equal(result, VALUES)
        assert cloud.request("GET", "/predict").status == 405
        assert cloud.request("POST", "/health").status == 405
        assert cloud.request("GET", "/v2/health/ready").status == 400


# row: SM-05
def test_redirects(start_server: StartServer, repository: pathlib.Path) -> None:
    """They respond like the HTTP endpoint."""
    with vertex_ai(start_server, repository, ALLOW) as cloud:
        for path in [
            "v2",
            "v2/models/one",
            "v2/models/one/versions/1",
            "v2/models/one/config",
            "v2/models/one/stats",
            "v2/models/stats",
            "v2/models/one/ready",
            "v2/models/nope",
            "v2/models/nope/ready",
            "v2/health/live",
        ]:
            direct = cloud.server.get(f"/{path}")
            reply = cloud.redirect(path)
            assert (reply.status, reply.body) == (direct.status, direct.body), path
            assert reply.headers["Content-Type"] == direct.headers["Content-Type"], path
        assert cloud.redirect("v2/repository/index").json()[0]["name"] == "one"
        assert "nv_inference_request_success" in cloud.redirect("metrics").body.decode()
        for path in ["", "v2/", "v2/logging", "v2/trace/setting", "v2/models/one/generate", "x"]:
            assert cloud.redirect(path).status == 400, path


@pytest.mark.galatea_only  # later releases than the recorded one
# row: SM-05
def test_redirects_change_nothing(start_server: StartServer, repository: pathlib.Path) -> None:
    """Loads, unloads and shared memory are only available through the HTTP endpoint."""
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true")
    with vertex_ai(start_server, repository, ALLOW, *flags) as cloud:
        for path in [
            "v2/repository/models/one/load",
            "v2/repository/models/one/unload",
            "v2/systemsharedmemory/region/r/register",
            "v2/systemsharedmemory/unregister",
            "v2/cudasharedmemory/region/r/unregister",
        ]:
            assert cloud.redirect(path, b"{}").status == 403, path
        assert cloud.request("POST", "/predict", json_request()).status == 200


@pytest.mark.galatea_only  # CVE-2026-24207: the recorded release doesn't ask for the key
def test_restricted_apis(start_server: StartServer, repository: pathlib.Path) -> None:
    """The rules of HTTP apply to every redirect."""
    rules = ("--http-restricted-api=metadata,model-repository,inference:key=value",)
    with vertex_ai(start_server, repository, ALLOW, *rules) as cloud:
        for path, body in [
            ("v2", b""),
            ("v2/models/one", b""),
            ("v2/repository/index", b""),
            ("v2/models/one/infer", json_request()),
        ]:
            text = {"error": "This API is restricted, expecting header 'key'"}
            for wrong in [{}, {"key": "valu"}, {"key": ""}]:
                reply = cloud.redirect(path, body, **wrong)
                assert (reply.status, json.loads(reply.body)) == (403, text), path
            assert cloud.redirect(path, body, key="value").status == 200, path
        assert cloud.request("POST", "/predict", json_request()).status == 403
        assert cloud.redirect("v2/models/one/config").status == 200


@pytest.mark.parametrize(
    ("flags", "variables", "reason"),
    [
        ((), {}, "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        ((), {"AIP_PREDICT_ROUTE": "/p"}, "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"),
        (("--vertex-ai-default-model=nope",), ROUTES, "Expect the default model 'nope' is loaded"),
        (
            ("--model-control-mode=explicit",),
            ROUTES,
            "Expect the model repository contains only a single model if default model is not "
            "specified",
        ),
    ],
)
# row: SM-04
def test_what_is_missing_ends_the_start(
    start_server: StartServer,
    repository: pathlib.Path,
    flags: tuple[str, ...],
    variables: dict[str, str],
    reason: str,
) -> None:
    """The log has Triton's text, and the exit code is 1."""
    flags = (ALLOW, f"--vertex-ai-port={free_ports(1)[0]}", *flags)
    with start_server(repository, *flags, environment=variables) as server:
        assert server.wait_for_exit() == 1
        text = f"failed to start Vertex AI service: Invalid argument - {reason}"
        assert text in server.log()


# row: SM-06
def test_several_models_need_a_default(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """In this case, it isn't the only one."""
    write_model(repository / "two")
    with vertex_ai(start_server, repository, ALLOW, "--vertex-ai-default-model=two") as cloud:
        reply = cloud.request("POST", "/predict", json_request())
        assert reply.json()["model_name"] == "two"


# row: CLI-24
def test_prediction_mode(start_server: StartServer, repository: pathlib.Path) -> None:
    """The variable enables the endpoint, and disables HTTP and gRPC."""
    environment = {**ROUTES, "AIP_MODE": "PREDICTION"}
    with vertex_ai(start_server, repository, environment=environment) as cloud:
        assert cloud.is_ready(), cloud.server.log()
        with pytest.raises(ConnectionRefusedError):
            cloud.server.get("/v2")
        log = cloud.server.log()
        assert "Started Vertex AI HTTPService at" in log
        assert "Started HTTPService at" not in log
        assert "Started GRPCInferenceService at" not in log


def test_flags_come_before_the_mode(start_server: StartServer, repository: pathlib.Path) -> None:
    """Flags disable what the variable enables, and vice versa."""
    flags = ("--allow-vertex-ai=false", "--allow-http=true")
    with start_server(repository, *flags, environment={"AIP_MODE": "PREDICTION"}) as server:
        server.wait_until_ready()
        assert "Started GRPCInferenceService" not in server.log()
        assert "Vertex AI HTTPService" not in server.log()


# row: SM-06
def test_port_and_repository_of_the_environment(
    program: Program, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A container's command line may be empty."""
    port, metrics_port = free_ports(2)
    environment = {
        **ROUTES,
        "AIP_MODE": "PREDICTION",
        "AIP_HTTP_PORT": str(port),
        "AIP_STORAGE_URI": str(repository),
    }
    log = tmp_path / "log"
    command = program.command([f"--metrics-port={metrics_port}"])
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    with child:
        try:
            cloud = VertexAi(port)
            wait_until(lambda: cloud.is_ready() or child.poll() is not None, 60, "it is ready")
            assert child.poll() is None, log.read_text()
            assert cloud.request("POST", "/predict", json_request()).status == 200
        finally:
            child.terminate()
    assert child.returncode == 0


@pytest.mark.galatea_only
# row: CLD-01
def test_repositories_in_a_cloud(program: Program) -> None:
    """They are opened like the flag's."""
    environment = {**ROUTES, "AIP_MODE": "PREDICTION", "AIP_STORAGE_URI": "gs://name/models"}
    environment["CLOUD_STORAGE_EMULATOR_ENDPOINT"] = f"http://127.0.0.1:{free_ports(1)[0]}"
    done = subprocess.run(
        program.command(["--allow-metrics=false"]),
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 1
    text = "Could not get MetaData for bucket with name name : endpoint: can't connect"
    assert text in done.stdout + done.stderr
