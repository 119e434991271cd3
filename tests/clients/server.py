"""A server process under test, and plain HTTP requests to it."""

from __future__ import annotations

import dataclasses
import http.client
import itertools
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
REQUEST_SECONDS_MAX = 60.0

PORT_MIN = 10_000
PORT_SHARES = 16
PORTS_OF_A_SHARE = 1_400

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclasses.dataclass(frozen=True)
class Reply:
    """An HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The body as JSON; checks the response's Content-Type."""
        assert self.headers["Content-Type"] == "application/json", self
        return json.loads(self.body)

    def error(self) -> str:
        """The text of an error object, after checking that the body is one."""
        document = json.loads(self.body)
        assert list(document) == ["error"], self
        assert isinstance(document["error"], str) and document["error"], self
        return document["error"]

    def check_refused(self) -> str:
        """Checks the status of a bad request, and returns the error.

        As in Triton, text that isn't JSON and members of a wrong type are internal errors.
        """
        text = self.error()
        is_json = "failed to parse the request JSON buffer" in text or "attempt to " in text
        assert self.status == (500 if is_json else 400), self
        return text

    def tensors(self) -> tuple[dict[str, Any], bytes]:
        """The JSON part and the binary part of an inference response."""
        length = self.headers[HEADER_LENGTH]
        if length is None:
            return self.json(), b""
        assert self.headers["Content-Type"] == "application/octet-stream", self
        return json.loads(self.body[: int(length)]), self.body[int(length) :]


def _ports_of_this_process() -> Iterator[int]:
    """Ports below those that the system gives to clients, in turn.

    Tests that run in parallel have separate ports, so that none takes a port that another test's
    server is about to open.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = PORT_MIN + worker % PORT_SHARES * PORTS_OF_A_SHARE
    start = secrets.randbelow(PORTS_OF_A_SHARE)
    while True:
        yield from range(first + start, first + PORTS_OF_A_SHARE)
        yield from range(first, first + start)


_ports = _ports_of_this_process()


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports that have no listener at the moment."""
    return list(itertools.islice(filter(_is_free, _ports), count))


def wait_until(condition: Callable[[], bool], seconds_max: float, what: str) -> None:
    """Polls `condition`, and fails if it takes longer than `seconds_max`."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"gave up after {seconds_max} s waiting until {what}")
        time.sleep(POLL_SECONDS)  # sleep: the interval of all polls


@dataclasses.dataclass(frozen=True)
class Program:
    """The way in which the server under test is started."""

    path: pathlib.Path
    onnxruntime_library: pathlib.Path | None
    is_triton: bool

    def command(self, flags: Sequence[str]) -> list[str]:
        """The command line; Triton finds ONNX Runtime by itself."""
        library = []
        if self.onnxruntime_library is not None and not self.is_triton:
            library = ["--onnxruntime-library", str(self.onnxruntime_library)]
        return [str(self.path), *library, *flags]


class Server:
    """A running server."""

    def __init__(
        self,
        program: Program,
        repository: pathlib.Path,
        log_path: pathlib.Path,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        launcher: Sequence[str] = (),
        ports: Sequence[int] | None = None,
    ) -> None:
        """Starts the process with additional variables. It isn't ready yet.

        `launcher` is a command that becomes the server, such as `setpriv`. `ports` are the HTTP,
        gRPC and metrics ports; free ports are used by default.
        """
        self.http_port, self.grpc_port, self.metrics_port = ports or free_ports(3)
        self.log_path = log_path
        self.is_triton = program.is_triton
        command = program.command(
            [
                f"--model-repository={repository}",
                "--http-address=127.0.0.1",
                "--grpc-address=127.0.0.1",
                f"--http-port={self.http_port}",
                f"--grpc-port={self.grpc_port}",
                f"--metrics-port={self.metrics_port}",
                *flags,
            ]
        )
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*launcher, *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    @property
    def http_url(self) -> str:
        """The address of the HTTP endpoint, in the form that the client library expects."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """The address of the gRPC endpoint."""
        return f"127.0.0.1:{self.grpc_port}"

    def log(self) -> str:
        """All output of the server so far."""
        return self.log_path.read_text(errors="replace")

    def is_live(self) -> bool:
        """Returns true if the health endpoint's status is 200."""
        try:
            return self.get("/v2/health/live").status == 200
        except OSError:
            return False

    def is_ready(self) -> bool:
        """Returns true if all models are ready."""
        try:
            return self.get("/v2/health/ready").status == 200
        except OSError:
            return False

    def wait_until_ready(self, seconds_max: float = START_SECONDS_MAX) -> Server:
        """Waits for the models, and fails early if the process ends."""
        return self._wait_until(self.is_ready, "the server is ready", seconds_max)

    def wait_until_live(self) -> Server:
        """Waits only for the endpoint, for servers with a model that can't load."""
        return self._wait_until(self.is_live, "the server is live")

    def _wait_until(
        self, condition: Callable[[], bool], what: str, seconds_max: float = START_SECONDS_MAX
    ) -> Server:
        def done() -> bool:
            code = self.process.poll()
            assert code is None, f"the server ended with {code}:\n{self.log()[-4000:]}"
            return condition()

        wait_until(done, seconds_max, what)
        return self

    def terminate(self) -> None:
        """Asks the server to stop, without waiting."""
        self.process.send_signal(signal.SIGTERM)

    def wait_for_exit(self) -> int:
        """Waits for the end of the process and returns its exit code."""
        return self.process.wait(STOP_SECONDS_MAX)

    def stop(self) -> int:
        """Stops the server as an orchestrator does, and kills it if it doesn't end."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.wait_for_exit()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> Reply:
        """Sends one request on a separate connection."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", port or self.http_port, timeout=REQUEST_SECONDS_MAX
        )
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        """GET on the main HTTP port."""
        return self.request("GET", path)

    def infer(
        self,
        model: str,
        document: Any,
        binary: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Sends an inference request; `document` may also be encoded bytes."""
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        extra = dict(headers or {})
        if binary is not None:
            extra.setdefault(HEADER_LENGTH, str(len(text)))
        return self.request("POST", f"/v2/models/{model}/infer", text + (binary or b""), extra)

    def statistics(self, model: str) -> dict[str, Any]:
        """The statistics of a model's only version."""
        (entry,) = self.get(f"/v2/models/{model}/stats").json()["model_stats"]
        return entry

    def pending(self, model: str) -> int:
        """The number of accepted requests that have not executed yet."""
        name = f'nv_inference_pending_request_count{{model="{model}",version="1"}}'
        (line,) = (line for line in self.metrics().splitlines() if line.startswith(name))
        return int(float(line.split()[-1]))

    def wait_for_pending(self, model: str, count: int) -> None:
        """Waits until that many requests are queued."""
        wait_until(lambda: self.pending(model) == count, 60, f"{count} requests wait")

    def scheduler(self, model: str) -> dict[str, Any]:
        """The status page of a model's scheduler, which only Galatea has."""
        reply = self.get(f"/v2/models/{model}/scheduler")
        assert reply.status == 200, reply
        return reply.json()

    def is_executing(self, model: str) -> bool:
        """Returns true if an instance of the model is busy, which no counter shows until the
        end of the execution."""
        return any(instance["state"] == "busy" for instance in self.scheduler(model)["instances"])

    def metrics(self) -> str:
        """The text of the metrics endpoint."""
        return self.request("GET", "/metrics", port=self.metrics_port).body.decode()


def resident_kilobytes(server: Server) -> int:
    """The process's resident memory."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1])
