"""Where Triton's load generators are, and how they start."""

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
    """The program of that name: in the variable, beside Python, or on the path.

    Without it the test is skipped.
    """
    beside = pathlib.Path(sys.executable).parent / name
    places = os.pathsep.join([str(beside.parent), os.environ["PATH"]])
    found = os.environ.get(variable) or shutil.which(name, path=places)
    if not found:
        pytest.skip(f"{name} is not installed")
    return pathlib.Path(found)


def perf_analyzer() -> pathlib.Path:
    """perf_analyzer, if it starts: it needs libb64 from the system."""
    program = find("perf_analyzer", "GALATEA_PERF_ANALYZER")
    try:
        result = run([program, "--version"])
    except OSError as error:
        pytest.skip(f"perf_analyzer does not start: {error}")
    if result.returncode != 0:
        pytest.skip(f"perf_analyzer does not start: {result.stderr.strip().splitlines()[0]}")
    return program


def environment(analyzer: pathlib.Path) -> dict[str, str]:
    """The variables for perf_analyzer and for programs that start it from the path.

    It links to CUDA's runtime, also without a GPU: a library in the Python package beside it.
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
    """Runs a program to its end, and returns what it printed."""
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
