"""The libraries under test: ours, and Triton's if it is installed."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest

SECONDS_MAX = 120
PACKAGES, BACKENDS = "GALATEA_TRITON_PACKAGES", "GALATEA_TRITON_BACKENDS"


@dataclasses.dataclass(frozen=True)
class Implementation:
    """A library, and the environment of a process that loads it."""

    library: pathlib.Path
    environment: dict[str, str]
    #: A directory with the backend identity, if the library has none of its own.
    backends: str = ""

    @property
    def is_triton(self) -> bool:
        """Returns true if the library is Triton's."""
        return bool(self.backends)

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Runs a Python program, which must exit with 0."""
        ended = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        if self.is_triton and ended.returncode < 0:
            pytest.skip(f"Triton's process ended with signal {-ended.returncode}")
        assert ended.returncode == 0, ended.stderr
        return ended


def triton(folder: pathlib.Path) -> Implementation:
    """Returns Triton's library, or skips the test; backends link to it by name."""
    for name in (PACKAGES, BACKENDS):
        if name not in os.environ:
            pytest.skip(f"needs Triton's libraries in {name}")
    packages = pathlib.Path(os.environ[PACKAGES]) / "nvidia_pytriton.libs"
    (library,) = packages.glob("libtritonserver*.so")
    (folder / "libtritonserver.so").symlink_to(library)
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{packages}:{folder}"}
    return Implementation(library, environment, os.environ[BACKENDS])
