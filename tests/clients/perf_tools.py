"""The locations of Triton's load generators, and how they are started."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest

SECONDS_MAX = 300.0


def find(name: str, variable: str) -> pathlib.Path:
    """The program with this name: from the variable, next to Python, or on the path.

    If it doesn't exist, the test is skipped.
    """
    beside = pathlib.Path(sys.executable).parent / name
    places = os.pathsep.join([str(beside.parent), os.environ["PATH"]])
    found = os.environ.get(variable) or shutil.which(name, path=places)
    if not found:
        pytest.skip(f"{name} is not installed")
    return pathlib.Path(found)


def perf_analyzer() -> pathlib.Path:
    """perf_analyzer, if it can start: it needs the system's libb64."""
    program = find("perf_analyzer", "GALATEA_PERF_ANALYZER")
    try:
        result = run([program, "--version"])
    except OSError as error:
        pytest.skip(f"perf_analyzer does not start: {error}")
    if result.returncode != 0:
        pytest.skip(f"perf_analyzer does not start: {result.stderr.strip().splitlines()[0]}")
    return program


def environment(analyzer: pathlib.Path) -> dict[str, str]:
    """The variables for perf_analyzer, and for programs that start it from the path.

    Even without a GPU, it links to CUDA's runtime library, which is in the Python package next
    to it.
    """
    libraries = analyzer.parent.parent.glob("lib/python*/site-packages/nvidia/cuda_runtime/lib")
    places = [*map(str, libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, places)),
        "PATH": os.pathsep.join([str(analyzer.parent), os.environ["PATH"]]),
    }


def run(
    command: Sequence[str | pathlib.Path],
    variables: dict[str, str] | None = None,
    folder: pathlib.Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program until it ends, and returns its output."""
    words = list(map(str, command))
    known = variables or environment(pathlib.Path(words[0]))
    return subprocess.run(
        words,
        env=known,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
