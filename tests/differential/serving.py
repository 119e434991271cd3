"""Starts a server over a repository, ours or Triton."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence

READY_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
#: The health API is restricted, and the server listens when its models are loaded.
RESTRICTED = 403


def free_ports(count: int) -> list[int]:
    """Ports without a listener now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_ready(child: subprocess.Popen[bytes], port: int, log: pathlib.Path) -> None:
    """Polls until the server is ready; shows its log if it ends."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1):
                return
        except urllib.error.HTTPError as error:
            if error.code == RESTRICTED:
                return
        except OSError:
            if child.poll() is not None:
                break
        time.sleep(0.01)  # the interval of polling, not a wait for luck
    raise AssertionError(f"the server did not get ready:\n{log.read_text()}")


@contextlib.contextmanager
def serving(
    program: Sequence[str],
    repository: pathlib.Path,
    environment: Mapping[str, str],
    is_triton: bool = False,
) -> Iterator[tuple[str, str, str]]:
    """A running server's addresses for HTTP, gRPC and metrics; ours has to exit with 0."""
    http_port, grpc_port, metrics_port = free_ports(3)
    log = repository.with_suffix(".log")
    command = [
        *program,
        f"--model-repository={repository}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
    ]
    variables = {**os.environ, **environment}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=variables) as child,
    ):
        try:
            wait_ready(child, http_port, log)
            ports = http_port, grpc_port, metrics_port
            http, grpc, metrics = (f"127.0.0.1:{port}" for port in ports)
            yield http, grpc, metrics
        finally:
            child.terminate()
            code = child.wait(STOP_SECONDS_MAX)
            assert code == 0 or is_triton, log.read_text()
