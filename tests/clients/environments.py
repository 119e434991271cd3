"""Virtual environments for individual tests, which are kept in .cache between runs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from conftest import ROOT

#: For the environment `stubs`, which tests of types share.
TYPE_CHECKER = ("mypy==2.4.1", "numpy==2.4.6", "hatchling==1.32.0")
#: Packages are downloaded the first time.
INSTALL_SECONDS_MAX = 600


def environment(name: str, *requirements: str) -> pathlib.Path:
    """The interpreter of an environment with these packages. The test is skipped if they
    aren't available."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256("\n".join([version, *requirements]).encode()).hexdigest()[:8]
    folder = ROOT / ".cache" / f"venv-{name}-{key}"
    python = folder / "bin" / "python"
    # Tests that run in parallel wait for the one that creates it.
    with _lock(folder):
        mark = folder / "complete"
        if not mark.exists():
            _make(folder, requirements)
            mark.touch()
    return python


@contextlib.contextmanager
def _lock(folder: pathlib.Path) -> Iterator[None]:
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: pathlib.Path, requirements: tuple[str, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False
    )
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        pytest.skip(f"needs packages of the package index: {last}")


def run(python: pathlib.Path, *arguments: object, **variables: str) -> tuple[int, str]:
    """The exit status and output of a command in an environment."""
    result = subprocess.run(
        [python, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
        check=False,
        env={**os.environ, **variables},
    )
    return result.returncode, result.stdout + result.stderr
