"""Triton's own Python backend in a backend directory, and models for it.

Skipped unless GALATEA_TRITON_PACKAGES names the folder into which the Python
packages nvidia-pytriton and numpy 1 were installed; docs/backends.md says how.
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

STUB = "triton_python_backend_stub"
#: The time limit for the end of a process.
END_SECONDS_MAX = 30


def install_backend(folder: pathlib.Path) -> pathlib.Path:
    """The directory of backends, in a folder that has what the backend's libraries
    look for relative to their own place."""
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
    """Writes a model with a file of python_models; `config` is the rest of its configuration."""
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


class PythonServer:
    """Starts servers with the backend, and finds processes and memory that they leave behind."""

    def __init__(self, start_server: Callable[..., object], backends: pathlib.Path) -> None:
        self._start = start_server
        self.backends = backends
        self.prefix = f"galatea_test_{os.getpid()}_"

    def __call__(
        self,
        repository: pathlib.Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
    ) -> object:
        """Starts a server like `start_server` does."""
        libraries = str(PACKAGES / "nvidia_pytriton.libs")
        rest = os.environ.get("LD_LIBRARY_PATH")
        paths = f"{libraries}:{rest}" if rest else libraries
        return self._start(
            repository,
            f"--backend-directory={self.backends}",
            f"--backend-config=python,shm-region-prefix-name={self.prefix}",
            *flags,
            environment={"LD_LIBRARY_PATH": paths, **(environment or {})},
        )

    def regions(self) -> list[str]:
        """Shared memory of the backend that exists."""
        folder = pathlib.Path("/dev/shm")
        return sorted(one.name for one in folder.iterdir() if one.name.startswith(self.prefix))


@pytest.fixture(scope="module")
def start_python(
    start_server: Callable[..., object], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PythonServer]:
    """Starts servers with the backend; at the end their processes and memory must be gone."""
    starter = PythonServer(start_server, install_backend(tmp_path_factory.mktemp("python")))
    yield starter
    assert starter.regions() == []
    assert not processes(REGION, starter.prefix)


#: The arguments of a stub with the name of its shared memory and its parent's process.
REGION, PARENT = 2, 5


def processes(place: int, beginning: str) -> dict[int, list[str]]:
    """The stubs one of whose arguments begins with this."""
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


def children(server: Server, model: str = "") -> list[int]:
    """The stubs of a server, or those of one of its models."""
    own = processes(PARENT, str(server.process.pid))
    return sorted(
        number
        for number, arguments in own.items()
        if not model or f"/{model}/" in arguments[1]
    )


def wait_for_end(server: Server, numbers: list[int]) -> None:
    """Waits until those stubs have ended."""
    have_ended = lambda: not set(numbers) & set(children(server))  # noqa: E731
    wait_until(have_ended, END_SECONDS_MAX, "the stubs have ended")
