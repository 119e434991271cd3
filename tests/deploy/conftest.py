"""Fixtures: servers behind the proxies and Prometheus."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "tests" / "clients"))

from server import Program, Server  # noqa: E402

StartServer = Callable[..., contextlib.AbstractContextManager[Server]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The server under test. Its models need no library."""
    parser.addoption("--galatea", type=pathlib.Path, default=ROOT / "target/debug/galatea")
    parser.addoption("--onnxruntime-library", type=pathlib.Path, help="not used")


def find_program(name: str) -> str:
    """The path of a program that may be missing on this machine."""
    beside_python = pathlib.Path(sys.executable).with_name(name)
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None and name == "haproxy":
        found = shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(scope="session")
def start_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> StartServer:
    """Starts servers. Each is a context manager that stops its server."""
    program = Program(request.config.getoption("--galatea").resolve(), None, False)
    logs = tmp_path_factory.mktemp("logs")
    numbers = itertools.count()

    @contextlib.contextmanager
    def start(repository: pathlib.Path, *flags: str) -> Iterator[Server]:
        log_path = logs / f"server_{next(numbers)}.log"
        server = Server(program, repository, log_path, flags, {}, ())
        try:
            yield server.wait_until_ready()
        finally:
            server.stop()

    return start


def write_models(repository: pathlib.Path, models: dict[str, str]) -> pathlib.Path:
    """Writes models that need no files, given their configurations."""
    for name, configuration in models.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(configuration)
    return repository
