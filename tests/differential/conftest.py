"""Starts our server over the models that the cases name."""

from __future__ import annotations

import pathlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest

import exchange

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The server under test and the library that it loads."""
    parser.addoption("--galatea", type=pathlib.Path, default=ROOT / "target/debug/galatea")
    parser.addoption("--onnxruntime-library", type=pathlib.Path)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_ready(child: subprocess.Popen[bytes], port: int, log: pathlib.Path) -> None:
    """Polls until the server is ready; shows its log if it ends."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1):
                return
        except OSError:
            if child.poll() is not None:
                break
            time.sleep(0.01)  # the interval of polling, not a wait for luck
    pytest.fail(f"the server did not get ready:\n{log.read_text()}")


@pytest.fixture(scope="session")
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, object]]]:
    """What our server answers to every case."""
    root = tmp_path_factory.mktemp("differential")
    exchange.write_repository(root / "models")
    http_port, grpc_port, metrics_port = free_ports(3)
    log = root / "server.log"
    command = [
        str(request.config.getoption("--galatea")),
        f"--model-repository={root / 'models'}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
    ]
    library = request.config.getoption("--onnxruntime-library")
    if library:
        command.append(f"--onnxruntime-library={library}")
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as child:
        try:
            wait_ready(child, http_port, log)
            yield exchange.exchange(f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")
        finally:
            child.terminate()
            assert child.wait(30) == 0, log.read_text()
