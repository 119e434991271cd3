"""Tests of the wheel in a fresh virtual environment, from the installation to the first response.

They need `GALATEA_TEST_WHEEL`, the path of a wheel that `cargo xtask wheel` built. It installs
packages from PyPI.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import onnx
import pytest
from conftest import ROOT, _add
from server import wait_until

WHEEL = os.environ.get("GALATEA_TEST_WHEEL")

pytestmark = pytest.mark.skipif(not WHEEL, reason="needs a wheel in GALATEA_TEST_WHEEL")

#: Three commands, from an environment without packages.
SECONDS_MAX = 20
#: What must be in a wheel.
BYTES_MAX = 15_000_000
REQUEST = b"""{"inputs": [
    {"name": "A", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
    {"name": "B", "datatype": "FP32", "shape": [1, 2], "data": [3, 4]}]}"""
PROGRAM = """
import galatea, numpy
with galatea.Server(model_repository="models") as server:
    ones = numpy.ones((1, 2), numpy.float32)
    [response] = server.model("add").infer(inputs={"A": ones, "B": ones})
    print(response.outputs["SUM"].__array__().tolist())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A directory with an environment without packages, and models."""
    folder = tmp_path_factory.mktemp("place")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    version = folder / "models/add/1"
    version.mkdir(parents=True)
    onnx.save(_add(), version / "model.onnx")
    yield folder
    shutil.rmtree(folder)


def environment() -> dict[str, str]:
    """The environment's variables, except those that name a library or a Python."""
    left_out = ("GALATEA_ONNXRUNTIME_LIBRARY", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in left_out}


@contextlib.contextmanager
def serving(place: pathlib.Path, name: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The installed program, which serves the models."""
    command = [place / "venv/bin" / name, "--model-repository=models", f"--http-port={port}",
               "--allow-grpc=false", "--allow-metrics=false"]
    process = subprocess.Popen(command, cwd=place, env=environment())
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def answer(port: int, process: subprocess.Popen[bytes]) -> bytes:
    """The model's first response, as soon as there is one."""
    answers: list[bytes] = []

    def has_answered() -> bool:
        assert process.poll() is None, f"the program ended with {process.returncode}"
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{port}/v2/models/add/infer"
            with urllib.request.urlopen(url, REQUEST) as response:
                answers.append(response.read())
        return bool(answers)

    wait_until(has_answered, 60, "the model responds")
    return answers[0]


def test_the_first_answer(place: pathlib.Path) -> None:
    assert pathlib.Path(WHEEL).stat().st_size < BYTES_MAX
    start = time.monotonic()
    pip = [place / "venv/bin/python", "-m", "pip", "install", "--quiet", WHEEL]
    subprocess.run(pip, check=True, env=environment())
    installed = time.monotonic()
    with serving(place, "galatea", 18123) as process:
        assert b'"data":[4.0,6.0]' in answer(18123, process)
        end = time.monotonic()
    print(f"\ninstalled in {installed - start:.1f} s, answered after {end - start:.1f} s")
    assert end - start < SECONDS_MAX


def test_what_is_installed_works(place: pathlib.Path) -> None:
    with serving(place, "tritonserver", 18124) as process:
        assert b'"data":[4.0,6.0]' in answer(18124, process)
    done = subprocess.run(
        [place / "venv/bin/python", "-c", PROGRAM], cwd=place, env=environment(),
        capture_output=True, text=True, check=True,
    )
    assert done.stdout == "[[2.0, 2.0]]\n"
    for name, status in (("galatea", 0), ("tritonserver", 0)):
        command = [place / "venv/bin" / name, "--help"]
        assert subprocess.run(command, capture_output=True).returncode == status
    wrong = subprocess.run(
        [place / "venv/bin/galatea", "--no-such-flag"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "--no-such-flag" in wrong.stderr


def test_the_quick_start(place: pathlib.Path) -> None:
    """Everything on the page, with the installed program."""
    page = "tests/clients/test_pages.py::test_what_the_page_shows[quick_start.md]"
    tests = [sys.executable, "-m", "pytest", "-q", page]
    done = subprocess.run(
        [*tests, "--galatea", place / "venv/bin/galatea"],
        cwd=ROOT, capture_output=True, text=True,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
