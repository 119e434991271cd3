"""Starts a server on one core, waits until it is ready, reads its statistics, and stops it."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import pathlib
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator

from . import process

#: Under valgrind, and on a busy machine, a start takes more than a minute, and an end twenty seconds.
READY_DEADLINE_SECONDS = 300.0
STOP_DEADLINE_SECONDS = 120.0
POLL_SECONDS = 0.001
HOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Program:
    """A server program: its name in the report, and how it is started."""

    name: str
    command: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ModelCounts:
    """A model's counters in a server's statistics."""

    requests: int
    failures: int
    inferences: int
    executions: int
    #: Time in the framework, in nanoseconds.
    infer_ns: int = 0


class Server:
    """A running server."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        http_port: int,
        grpc_port: int,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._child = child
        self._context = context
        self._http_port = http_port
        self._grpc_port = grpc_port
        #: Only of a server that `running` started.
        self.metrics_port = 0
        self.ready_seconds = 0.0
        self.pid = child.pid

    def address(self, protocol: str) -> str:
        """Returns the host and port of a protocol, or of the metrics."""
        ports = {"http": self._http_port, "grpc": self._grpc_port, "metrics": self.metrics_port}
        return f"{HOST}:{ports[protocol]}"

    def wait_ready(self, started: float) -> None:
        """Polls the health endpoint every millisecond until its status is 200."""
        while not self._is_ready():
            if self._child.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._child.returncode}")
            if time.monotonic() - started > READY_DEADLINE_SECONDS:
                raise RuntimeError(f"not ready after {READY_DEADLINE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        self.ready_seconds = time.monotonic() - started
        self.pid = process.listener(self._child.pid, self._http_port)

    def _get(self, path: str, timeout: float) -> tuple[int, bytes]:
        return self._ask("GET", path, timeout)

    def infer(self, model: str, body: bytes, header_length: int) -> None:
        """Sends an inference request with binary tensors, and waits for the response."""
        headers = {"inference-header-content-length": str(header_length)}
        status, answer = self._ask("POST", f"/v2/models/{model}/infer", 30.0, body, headers)
        if status != 200:
            raise RuntimeError(f"HTTP status {status} from {model}: {answer[:200]!r}")

    def _ask(
        self,
        method: str,
        path: str,
        timeout: float,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        address = (HOST, self._http_port)
        connection: http.client.HTTPConnection
        if self._context is None:
            connection = http.client.HTTPConnection(*address, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(
                *address, timeout=timeout, context=self._context
            )
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _is_ready(self) -> bool:
        try:
            return self._get("/v2/health/ready", timeout=1.0)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def counts(self, model: str) -> ModelCounts:
        """Reads a model's statistics."""
        status, body = self._get(f"/v2/models/{model}/stats", timeout=30.0)
        if status != 200:
            raise RuntimeError(f"statistics of {model}: HTTP status {status}")
        statistics = json.loads(body)["model_stats"][0]
        return ModelCounts(
            requests=int(statistics["inference_stats"]["success"]["count"]),
            failures=int(statistics["inference_stats"]["fail"]["count"]),
            inferences=int(statistics["inference_count"]),
            executions=int(statistics["execution_count"]),
            infer_ns=int(statistics["inference_stats"]["compute_infer"]["ns"]),
        )

    def stop(self) -> None:
        """Asks the server to end, and kills it if it doesn't."""
        self._child.terminate()
        try:
            self._child.wait(STOP_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def free_ports(count: int) -> list[int]:
    """Returns ports that have no listener at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def running(
    program: Program,
    repository: pathlib.Path,
    core: int | str,
    log: pathlib.Path,
    context: ssl.SSLContext | None = None,
) -> Iterator[Server]:
    """Runs a server on the repository; it is ready and pinned to the core.

    Its HTTP port uses TLS if there is a context.
    """
    http_port, grpc_port, metrics_port = free_ports(3)
    command = [
        *program.command,
        f"--model-repository={repository}",
        f"--http-address={HOST}",
        f"--http-port={http_port}",
        f"--grpc-address={HOST}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
    ]
    with started(command, (http_port, grpc_port), core, log, context) as server:
        server.metrics_port = metrics_port
        yield server


@contextlib.contextmanager
def started(
    command: list[str],
    ports: tuple[int, int],
    core: int | str,
    log: pathlib.Path,
    context: ssl.SSLContext | None = None,
) -> Iterator[Server]:
    """Runs a program that serves HTTP and gRPC on these ports; it is ready and pinned to the
    core."""
    with log.open("wb") as output:
        beginning = time.monotonic()
        child = subprocess.Popen(
            ["taskset", "-c", str(core), *command], stdout=output, stderr=subprocess.STDOUT
        )
        server = Server(child, *ports, context)
        try:
            server.wait_ready(beginning)
            yield server
        finally:
            server.stop()
