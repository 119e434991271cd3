"""Starts a server on a repository, either ours or Triton."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

from server import free_ports, wait_until  # noqa: E402

READY_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
#: The endpoints, as flags call them. Those of clouds are off unless a suite turns them on.
CLOUDS = ["sagemaker", "vertex-ai"]
ENDPOINTS = ["http", "grpc", "metrics", *CLOUDS]
#: The health API is restricted, and the server listens when its models are loaded.
RESTRICTED = 403


def wait_ready(child: subprocess.Popen[bytes], port: int, log: pathlib.Path) -> None:
    """Polls until the server is ready, and shows its log if it ends."""

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1):
                return True
        except urllib.error.HTTPError as error:
            return error.code == RESTRICTED
        except OSError:
            assert child.poll() is None, "it ended"
            return False

    try:
        wait_until(is_ready, READY_SECONDS_MAX, "the server is ready")
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{log.read_text()}") from None


def wait_listening(port: int) -> None:
    """Polls until the port is open. Triton opens the cloud endpoints after the HTTP endpoint."""

    def is_open() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    wait_until(is_open, READY_SECONDS_MAX, f"port {port} is open")


@contextlib.contextmanager
def serving(
    program: Sequence[str],
    repository: pathlib.Path,
    environment: Mapping[str, str],
    is_triton: bool = False,
) -> Iterator[dict[str, str]]:
    """A running server's addresses, by the endpoints' names; our server has to exit with 0."""
    ports = dict(zip(ENDPOINTS, free_ports(len(ENDPOINTS)), strict=True))
    log = repository.with_suffix(".log")
    command = [
        *program,
        f"--model-repository={repository}",
        *(f"--{name}-port={port}" for name, port in ports.items()),
    ]
    variables = {**os.environ, **environment}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=variables) as child,
    ):
        try:
            wait_ready(child, ports["http"], log)
            for name in CLOUDS:
                if f"--allow-{name}=true" in program:
                    wait_listening(ports[name])
            yield {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        finally:
            child.terminate()
            code = child.wait(STOP_SECONDS_MAX)
            assert code == 0 or is_triton, log.read_text()
