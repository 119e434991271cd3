"""Fixtures: the program under test, the model repository, and running servers."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
import tritonclient.grpc
import tritonclient.http

from server import Program, Server
from transports import TRANSPORTS, GrpcStream, Transport

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import make_models  # noqa: E402

LOG_CHARACTERS_SHOWN = 6000

StartServer = Callable[..., contextlib.AbstractContextManager[Server]]

#: Files that take longest. One that begins late is still running when all others have ended.
LONGEST_FIRST = (
    "test_security",
    "test_tune_command",
    "test_sklearn_backend",
    "test_memory_limit",
    "test_hardening",
    "test_model_events",
    "test_bench_command",
    "test_hardening_connections",
    "test_buckets",
    "test_shared_memory",
    "test_python_nonsense",
    "test_gpu_placement",
)

_servers: dict[Server, int] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options that README.md lists."""
    parser.addoption("--galatea", type=pathlib.Path, help="the server to test")
    parser.addoption("--onnxruntime-library", type=pathlib.Path, help="ONNX Runtime's library")
    parser.addoption("--load-generator", type=pathlib.Path, help="the program galatea-load")
    parser.addoption("--triton", action="store_true", help="the server is Triton itself")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark."""
    mark = "galatea_only: Triton answers otherwise, see docs/differences.md"
    config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Starts with the longest files, and skips tests that Triton can't pass."""
    last = len(LONGEST_FIRST)
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.stem, last))
    if not config.getoption("--triton"):
        return
    for item in items:
        if item.get_closest_marker("galatea_only"):
            item.add_marker(pytest.mark.skip(reason="Triton answers otherwise"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Shows the servers' output during a failed test."""
    outcome = yield
    report = outcome.get_result()
    for server, seen in _servers.items():
        text = server.log()
        if report.failed:
            report.sections.append(
                (f"server log {server.log_path}", text[seen:][-LOG_CHARACTERS_SHOWN:])
            )
        if report.when == "teardown":
            _servers[server] = len(text)


def find_onnxruntime_library() -> pathlib.Path | None:
    """Finds the shared library in the Python package."""
    specification = importlib.util.find_spec("onnxruntime")
    if specification is None or specification.origin is None:
        return None
    folder = pathlib.Path(specification.origin).parent / "capi"
    return next(iter(sorted(folder.glob("libonnxruntime.so*"))), None)


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> Program:
    """The server under test."""
    chosen = request.config.getoption("--galatea")
    built = [ROOT / "target" / profile / "galatea" for profile in ("debug", "release")]
    candidates = [chosen] if chosen else built
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        pytest.exit(f"no server at {' or '.join(map(str, candidates))}: run cargo build", 1)
    library = request.config.getoption("--onnxruntime-library") or find_onnxruntime_library()
    return Program(path.resolve(), library, request.config.getoption("--triton"))


#: Models of a backend of Galatea's own, or of a type that came after the recorded release.
OWN_MODELS = ("token_counter", "onnx_identity_bf16")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, program: Program) -> pathlib.Path:
    """The example models and the test models; for Triton, those that it can load."""
    repository = tmp_path_factory.mktemp("models")
    for makers in (make_models.EXAMPLES, make_models.TEST_MODELS):
        names = [name for name in makers if not (program.is_triton and name in OWN_MODELS)]
        make_models.write_models(repository, makers, names)
    return repository


@pytest.fixture(scope="session")
def start_server(
    program: Program, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    """Starts servers. Each is a context manager that stops its server."""
    logs = tmp_path_factory.mktemp("logs")
    numbers = itertools.count()

    @contextlib.contextmanager
    def start(
        repository: pathlib.Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
        ports: Sequence[int] | None = None,
    ) -> Iterator[Server]:
        log_path = logs / f"server_{next(numbers)}.log"
        server = Server(program, repository, log_path, flags, environment or {}, launcher, ports)
        _servers[server] = 0
        try:
            yield server
        finally:
            server.stop()

    yield start


@pytest.fixture(scope="session")
def server(start_server: StartServer, models: pathlib.Path) -> Iterator[Server]:
    """The server that most tests share. It has to survive all tests and exit with 0."""
    with start_server(models) as running:
        yield running.wait_until_ready()
    # Triton stops waiting for idle connections of clients.
    assert running.process.returncode == 0 or running.is_triton


@pytest.fixture
def http_client(server: Server) -> Iterator[tritonclient.http.InferenceServerClient]:
    """The client library's HTTP client."""
    with tritonclient.http.InferenceServerClient(server.http_url, concurrency=4) as client:
        yield client


@pytest.fixture
def grpc_client(server: Server) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    """The client library's gRPC client."""
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        yield client


@pytest.fixture(params=list(TRANSPORTS))
def transport(request: pytest.FixtureRequest, server: Server) -> Iterator[Transport]:
    """A connection of each kind."""
    with contextlib.closing(TRANSPORTS[request.param](server)) as one:
        yield one


@pytest.fixture
def stream(server: Server) -> Iterator[GrpcStream]:
    """A stream, which decoupled models require."""
    with GrpcStream(server) as one:
        yield one
