"""Fixtures for the worker's tests."""

import functools
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))

import harness  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--worker-python", action="append",
                     help="interpreter that runs the workers; each that is given runs all tests")


def pytest_generate_tests(metafunc):
    """Runs each test with each interpreter."""
    pythons = metafunc.config.getoption("--worker-python") or [sys.executable]
    names = None
    if len(pythons) > 1:
        names = [f"python{number}" for number in range(len(pythons))]
    metafunc.parametrize("python", pythons, ids=names, scope="session")


@pytest.fixture
def start(python):
    """Starts workers and ends them after the test."""
    workers = []

    def begin(**options):
        worker = harness.Worker(python, **options)
        workers.append(worker)
        return worker

    yield begin
    for worker in workers:
        worker.close()


@pytest.fixture
def load(start, tmp_path):
    """Starts a worker with a model and initializes it."""

    def begin(source, config=None, decoupled=False, **options):
        path = harness.write_model(tmp_path, source)
        worker = start(**options)
        worker.path = str(path)
        answer = worker.initialize(path, config=config, decoupled=decoupled)
        assert answer[0] == "ok", answer
        worker.answer = answer[1]
        return worker

    return begin


@functools.cache
def _has_numpy(python):
    return subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0


@pytest.fixture(autouse=True)
def skip_without_numpy(request, python):
    """Skips tests that need numpy if the workers' interpreter has none."""
    if request.node.get_closest_marker("numpy") and not _has_numpy(python):
        pytest.skip("the workers have no numpy")


def pytest_configure(config):
    config.addinivalue_line("markers", "numpy: needs numpy in the workers' interpreter")
