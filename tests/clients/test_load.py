"""Tests good requests at full speed while other clients send hostile requests and
disconnect."""

from __future__ import annotations

import array
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import ROOT, StartServer
from server import Server, resident_kilobytes, wait_until

SECONDS = int(os.environ.get("GALATEA_TEST_LOAD_SECONDS", "3"))
CONNECTIONS = int(os.environ.get("GALATEA_TEST_LOAD_CONNECTIONS", "64"))

#: How large the process may be soon after the load, beside its size after a first load of
#: the same kind.
MEMORY_GROWTH_MAX = 1.1

pytestmark = pytest.mark.galatea_only

CONFIGURATION = """
backend: "identity"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""


@pytest.fixture(scope="module")
def generator(request: pytest.FixtureRequest) -> pathlib.Path:
    """The program that generates the load."""
    chosen = request.config.getoption("--load-generator")
    built = [ROOT / "target" / profile / "galatea-load" for profile in ("debug", "release")]
    path = next((path for path in ([chosen] if chosen else built) if path.is_file()), None)
    if path is None:
        pytest.fail("no load generator: run cargo build --package galatea-load")
    return path.resolve()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An identity model."""
    folder = tmp_path_factory.mktemp("load")
    (folder / "identity" / "1").mkdir(parents=True)
    (folder / "identity" / "config.pbtxt").write_text(CONFIGURATION)
    return folder


@pytest.fixture
def loaded(start_server: StartServer, repository: pathlib.Path) -> Iterator[Server]:
    """A separate server."""
    with start_server(repository) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def run_load(
    generator: pathlib.Path, server: Server, protocol: str, **options: Any
) -> dict[str, Any]:
    """Runs the load generator, and returns its report."""
    port = server.http_port if protocol == "http" else server.grpc_port
    command = [str(generator), f"--{protocol}", f"127.0.0.1:{port}"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 300)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    print(f"\n{protocol} {options}: {done.stdout}")
    return report


def assert_alive(server: Server) -> None:
    """The process is running, and logged no panic."""
    assert server.process.poll() is None, server.log()[-4000:]
    assert "panicked" not in server.log()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_hostile_requests_and_disconnects_disturb_no_good_request(
    loaded: Server, generator: pathlib.Path, protocol: str
) -> None:
    """No good request fails, and memory returns to its earlier size."""
    options = {"connections": CONNECTIONS, "hostile": 10, "disconnects": 10}
    unused = resident_kilobytes(loaded)
    run_load(generator, loaded, protocol, seconds=max(2, SECONDS // 5), **options)
    before = resident_kilobytes(loaded)
    report = run_load(generator, loaded, protocol, seconds=SECONDS, seed=2, **options)
    assert report["failed"] == 0, report["failures"]
    assert report["good"] > 10 * CONNECTIONS
    assert sum(report["hostile"].values()) > CONNECTIONS
    assert report["disconnects"] > CONNECTIONS
    accepted = {kind for kind in report["hostile"] if kind.endswith((": 200", "code 0"))}
    assert not accepted, accepted
    hung = {kind for kind in report["hostile"] if kind.endswith("in time")}
    assert not hung, hung
    assert_alive(loaded)
    allowed = before * MEMORY_GROWTH_MAX
    wait_until(lambda: resident_kilobytes(loaded) <= allowed, 30, f"{allowed} kB are enough")
    after = resident_kilobytes(loaded)
    print(f"memory: {unused} kB unused, {before} kB before, {after} kB after")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_open_loop_writes_each_latency(
    loaded: Server, generator: pathlib.Path, tmp_path: pathlib.Path, protocol: str
) -> None:
    """Requests arrive at the specified rate, and each good one leaves a pair of floats."""
    samples = tmp_path / "samples"
    report = run_load(generator, loaded, protocol, seconds=2, rate=200, samples=samples)
    assert report["failed"] == 0, report["failures"]
    assert 300 < report["arrivals"] < 500
    others = sum(report["hostile"].values()) + report["disconnects"]
    assert report["good"] + others == report["arrivals"]
    floats = array.array("f", samples.read_bytes())
    assert len(floats) == 2 * report["good"]
    assert min(floats[::2]) >= 0
    assert max(floats[1::2]) == pytest.approx(report["max_ms"], abs=1e-3)
