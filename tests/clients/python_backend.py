"""Triton's own Python backend in a backend directory, with models for it.

Skipped unless GALATEA_TRITON_PACKAGES names the directory into which the Python packages
nvidia-pytriton and numpy 1 were installed; see docs/backends.md.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from server import Server, wait_until

PACKAGES = pathlib.Path(os.environ.get("GALATEA_TRITON_PACKAGES", ""))
MODELS = pathlib.Path(__file__).parent / "python_models"

needs_python_backend = pytest.mark.skipif(
    PACKAGES == pathlib.Path(), reason="needs Triton's packages in GALATEA_TRITON_PACKAGES"
)
#: Whether it is Triton's program, but on Galatea's library.
OWN_LIBRARY = bool(os.environ.get("GALATEA_LIBRARY_UNDER_TRITON"))
#: Galatea's own backend, and Triton's library in its place.
OWN, TRITON = "own", "triton"

STUB = "triton_python_backend_stub"
#: The time limit for the end of a process.
END_SECONDS_MAX = 30


def install_backend(folder: pathlib.Path) -> pathlib.Path:
    """The backend directory, within a directory that contains what the backend's libraries
    look for relative to their own location."""
    package = PACKAGES / "pytriton" / "tritonserver"
    backends = folder / "pytriton" / "tritonserver" / "backends"
    shutil.copytree(package / "backends" / "python", backends / "python")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(package / "python_backend_stubs" / version / STUB, backends / "python" / STUB)
    (folder / "nvidia_pytriton.libs").symlink_to(PACKAGES / "nvidia_pytriton.libs")
    for name in ("numpy", "numpy.libs"):
        if (PACKAGES / name).exists():
            (backends / "python" / name).symlink_to(PACKAGES / name)
    return backends


def write_model(
    repository: pathlib.Path, name: str, config: str, python: str | None, backend: str = "python"
) -> None:
    """Writes a model with a file from python_models; `config` is the rest of its
    configuration."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "{backend}"\n{config}')
    if python is not None:
        shutil.copy(MODELS / f"{python}.py", version / "model.py")


def tensor(kind: str, name: str, datatype: str, dims: str = "-1", optional: bool = False) -> str:
    """An input or output of a configuration."""
    more = "optional: true" if optional else ""
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {more} }}\n'


def tensors(inputs: str, outputs: str) -> str:
    """Inputs and outputs of a configuration, each NAME:TYPE or NAME:TYPE:DIMS."""
    return "".join(
        tensor(kind, *one.split(":"))
        for kind, names in (("input", inputs), ("output", outputs))
        for one in names.split()
    )


def interpreter_flag() -> str:
    """The flag that makes Galatea's own backend use the interpreter of the tests."""
    return f"--backend-config=python,interpreter={sys.executable}"


class PythonServer:
    """Starts servers with a backend, and finds processes and memory that they leave behind."""

    def __init__(
        self, start_server: Callable[..., object], backends: pathlib.Path, is_own: bool
    ) -> None:
        self._start = start_server
        self.backends = backends
        #: Whether it is Galatea's own backend.
        self.is_own = is_own
        self.prefix = f"galatea_test_{os.getpid()}_"

    def skip_if_own(self, reason: str) -> None:
        """Skips the rest of a test that applies to Triton's library."""
        if self.is_own:
            pytest.skip(f"Galatea's own backend: {reason}")

    def __call__(
        self,
        repository: pathlib.Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
    ) -> object:
        """Starts a server like `start_server` does."""
        backends = f"--backend-directory={self.backends}"
        if self.is_own:
            own = (backends, interpreter_flag(), *flags)
            return self._start(repository, *own, environment=environment)
        libraries = str(PACKAGES / "nvidia_pytriton.libs")
        rest = os.environ.get("LD_LIBRARY_PATH")
        paths = f"{libraries}:{rest}" if rest else libraries
        return self._start(
            repository,
            backends,
            "--backend-config=python,use-library=true",
            f"--backend-config=python,shm-region-prefix-name={self.prefix}",
            *flags,
            environment={"LD_LIBRARY_PATH": paths, **(environment or {})},
        )

    def regions(self) -> list[str]:
        """The backend's existing shared memory."""
        folder = pathlib.Path("/dev/shm")
        return sorted(one.name for one in folder.iterdir() if one.name.startswith(self.prefix))


@pytest.fixture(scope="module", params=[OWN, pytest.param(TRITON, marks=needs_python_backend)])
def start_python(
    request: pytest.FixtureRequest,
    start_server: Callable[..., object],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PythonServer]:
    """Starts servers with the backend. At the end, their processes and memory must be gone."""
    if request.param == OWN and request.config.getoption("--triton") and not OWN_LIBRARY:
        pytest.skip("Triton lacks Galatea's own backend")
    backends = tmp_path_factory.mktemp("python")
    if request.param == TRITON:
        backends = install_backend(backends)
    starter = PythonServer(start_server, backends, is_own=request.param == OWN)
    yield starter
    assert starter.regions() == []
    assert not processes(REGION, starter.prefix)


#: The arguments of a stub with the name of its shared memory and its parent's process.
REGION, PARENT = 2, 5
#: The argument of a worker with the name of its model.
WORKER_MODEL = 3


def processes(place: int, beginning: str) -> dict[int, list[str]]:
    """The stubs that have an argument beginning with this text."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            arguments = (folder / "cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue
        if arguments[0].endswith(STUB) and arguments[place].startswith(beginning):
            found[int(folder.name)] = arguments
    return found


def argument(number: int, place: int) -> str:
    """An argument of a stub."""
    return pathlib.Path(f"/proc/{number}/cmdline").read_text().split("\0")[place]


def _python_processes() -> dict[int, tuple[int, list[str]]]:
    """The processes that were started in the way of Galatea's backend, with their parents and
    arguments."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            arguments = (folder / "cmdline").read_text(errors="replace").split("\0")
            status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        is_worker = len(arguments) > WORKER_MODEL and arguments[1] == "-c"
        # A process that has ended continues to exist until the server has noticed it.
        if is_worker and status[0] != "Z":
            found[int(folder.name)] = (int(status[1]), arguments)
    return found


def templates(server: Server) -> list[int]:
    """The processes of Galatea's own backend that fork workers, oldest first."""
    found = {}
    for number, (parent, arguments) in _python_processes().items():
        if arguments[WORKER_MODEL] == "" and arguments[WORKER_MODEL + 2 : WORKER_MODEL + 3] == [
            "template"
        ]:
            found[number] = parent
    own = [one for one, parent in found.items() if parent == server.process.pid]
    return own + [one for one, parent in found.items() if parent in own]


def workers(server: Server) -> dict[int, str]:
    """The processes of Galatea's own backend, with their models."""
    parents = [server.process.pid, *templates(server)]
    return {
        number: arguments[WORKER_MODEL]
        for number, (parent, arguments) in _python_processes().items()
        if parent in parents and arguments[WORKER_MODEL]
    }


def children(server: Server, model: str = "") -> list[int]:
    """The processes of a server's models, or of a single model."""
    own = processes(PARENT, str(server.process.pid))
    stubs = [
        number
        for number, arguments in own.items()
        if not model or f"/{model}/" in arguments[1]
    ]
    found = workers(server)
    return sorted(stubs + [one for one, name in found.items() if model in ("", name)])


def wait_for_end(server: Server, numbers: list[int]) -> None:
    """Waits until those stubs have ended."""
    have_ended = lambda: not set(numbers) & set(children(server))  # noqa: E731
    wait_until(have_ended, END_SECONDS_MAX, "the stubs have ended")
