"""Fixtures of the worker's tests."""

import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))

import harness  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--worker-python", default=sys.executable,
                     help="interpreter that runs the workers")


@pytest.fixture
def python(request):
    return request.config.getoption("--worker-python")


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


def _has_numpy(python):
    return subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0


def pytest_collection_modifyitems(config, items):
    """Leaves out what needs numpy where the workers' interpreter has none."""
    if _has_numpy(config.getoption("--worker-python")):
        return
    for item in items:
        if item.get_closest_marker("numpy"):
            item.add_marker(pytest.mark.skip(reason="the workers have no numpy"))


def pytest_configure(config):
    config.addinivalue_line("markers", "numpy: needs numpy in the workers' interpreter")
