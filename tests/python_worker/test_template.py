"""Tests of templates: they fork workers, which behave like workers that are started on their
own."""

import os
import signal
import struct

import harness
import pytest
from harness import ANSWER_SECONDS, fp32, request
from test_execute import PASS

# Returns the value of an expression.
SAYS = """
    import os, sys
    {head}
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            pass

        def execute(self, requests):
            raise Exception(repr({expression}))
"""
NUMPY = pytest.mark.numpy


@pytest.fixture
def template(python):
    """Starts templates, and ends them with their workers after the test."""
    made = []

    def begin(**options):
        made.append(harness.Template(python, **options))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def is_running(number):
    """Returns true if a process hasn't ended."""
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def end_of(number):
    """Waits until a process that isn't our child has ended."""
    with os.fdopen(os.pidfd_open(number)) as handle:
        return bool(harness.select.select([handle], [], [], ANSWER_SECONDS)[0])


def said(worker, path):
    """The response of the model in `SAYS`."""
    answer = worker.initialize(path)
    assert answer[0] == "ok", answer
    message = worker.execute(request(1, []))["message"]
    return message.split("message: Exception: ")[1].split("\n\nAt:")[0], answer[1]


def says(worker, folder, expression, head="", name="model"):
    """The value of an expression in a model."""
    path = harness.write_model(folder / name, SAYS.format(expression=expression, head=head))
    return said(worker, path)


def test_place_of_a_forked_process(template, start, tmp_path):
    """It has its own names and group, and none of its template's sockets."""
    one = template()
    worker = one.fork()
    assert worker.hello["pid"] == worker.pid
    with open(f"/proc/{worker.pid}/cmdline", "rb") as file:
        shown = file.read().rstrip(b"\0").split(b"\0")
    assert shown[-2:] == [b"m", b"m_0_0"]
    assert os.getpgid(worker.pid) == worker.pid
    alone = start()
    count = len(os.listdir(f"/proc/{alone.process.pid}/fd"))
    assert len(os.listdir(f"/proc/{worker.pid}/fd")) == count
    other = one.fork()
    assert len(os.listdir(f"/proc/{other.pid}/fd")) == count, "nor those of other workers"
    expression = "(sys.argv, os.getppid(), __import__('threading').active_count(), " \
        "'' in sys.path, os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev)"
    heard, _ = says(worker, tmp_path, expression)
    # The second thread reads the second socket.
    assert heard == repr(([""], one.pid, 2, False, True))


def test_what_a_template_has_read(template):
    files = template().ready["files"]
    assert any(file.endswith("/json/__init__.py") for file in files)
    assert any(os.path.basename(file).startswith("python") for file in files)
    assert all(os.path.isabs(file) for file in files)


@pytest.mark.parametrize(("end", "status"), [
    (lambda worker: os.kill(worker.pid, signal.SIGKILL), 9),
    (lambda worker: worker.a.close(), 1 << 8),
    (lambda worker: worker.send(harness.FINALIZE), 0),
])
def test_how_a_worker_has_ended(template, end, status):
    """The template reports this, and keeps the number allocated until then."""
    worker = template().fork()
    end(worker)
    assert end_of(worker.pid)
    assert os.path.exists(f"/proc/{worker.pid}")
    assert worker.status() == status
    assert not os.path.exists(f"/proc/{worker.pid}")


def test_workers_end_by_their_lifelines(template):
    worker = template().fork()
    os.close(worker.lifeline)
    assert end_of(worker.pid)
    assert worker.status() == signal.SIGKILL
    worker.lifeline = os.open(os.devnull, os.O_RDONLY)


def test_templates_end_with_the_server(template):
    one = template()
    one.process.send_signal(signal.SIGTERM)
    worker = one.fork()
    one.control.close()
    assert one.process.wait(ANSWER_SECONDS) == 0
    assert is_running(worker.pid)


@NUMPY
def test_templates_end_by_their_lifelines(template):
    other = template().with_numpy()
    os.close(other.lifeline)
    assert end_of(other.pid)
    other.lifeline = os.open(os.devnull, os.O_RDONLY)


@NUMPY
def test_numpy_is_hidden_until_it_is_imported(template, tmp_path):
    worker = template().with_numpy().fork()
    head = """before = [name for name in sys.modules if name.startswith("numpy")]
    import importlib.util
    query = importlib.util.find_spec("numpy").origin
    between = "numpy" in sys.modules
    import numpy, numpy.linalg"""
    expression = "(before, between, query == numpy.__spec__.origin == numpy.__file__, " \
        "numpy.__spec__.loader is numpy.__loader__, sys.modules['numpy'] is numpy, " \
        "float(numpy.linalg.norm(numpy.ones((400, 400)) @ numpy.ones((400, 400)))))"
    heard, answer = says(worker, tmp_path, expression, head)
    assert heard == "([], False, True, True, True, 160000.0)"
    assert answer["numpy"] is True


@NUMPY
def test_random_numbers_differ(template, tmp_path):
    one = template().with_numpy()
    path = harness.write_model(tmp_path, SAYS.format(
        head="import numpy, random, uuid",
        expression="(numpy.random.rand(), numpy.random.default_rng().random(), "
                   "random.random(), uuid.uuid4())"))
    heard = [said(one.fork(), path)[0].strip("()").split(", ") for _ in range(3)]
    for values in zip(*heard):
        assert len(set(values)) == 3, heard


# numpy 1 creates its common numbers when it is imported.
OLD = """
import os, random
own = random.Random(os.urandom(8))
rand = own.random
def seed():
    own.seed(os.urandom(8))
"""


def test_common_random_numbers_differ(template, tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("from . import random\n")
    (tmp_path / "numpy" / "random.py").write_text(OLD)
    one = template(environment={"PYTHONPATH": str(tmp_path)}).with_numpy()
    path = harness.write_model(
        tmp_path, SAYS.format(head="import numpy", expression="numpy.random.rand()"))
    assert said(one.fork(), path)[0] != said(one.fork(), path)[0]


@NUMPY
@pytest.mark.parametrize("head", [
    "os.environ['OPENBLAS_NUM_THREADS'] = '1'",
    "import warnings; warnings.simplefilter('error')",
    "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'own'))",
])
def test_models_that_import_numpy_in_their_own_way(template, tmp_path, head):
    """It isn't given to them, and none of their workers is forked with it."""
    head += "; import numpy"
    one = template()
    bare, answer = says(one.fork(), tmp_path, "numpy.__name__", head, "bare")
    assert (bare, answer["numpy"]) == ("'numpy'", False)
    with_numpy = one.with_numpy().fork()
    path = harness.write_model(tmp_path / "own", SAYS.format(head=head, expression="0"))
    assert with_numpy.initialize(path) == ("ok", {"anew": True})


@NUMPY
def test_a_model_that_imports_numpy_late(template, tmp_path):
    """It isn't kept in a process where that might fail."""
    worker = template().with_numpy().fork()
    path = harness.write_model(tmp_path, SAYS.format(head="", expression="__import__('numpy')"))
    assert worker.initialize(path) == ("ok", {"anew": True})
    assert end_of(worker.pid)


@NUMPY
def test_usual_models(template, tmp_path):
    heard, answer = says(template().fork(), tmp_path, "numpy.__name__", "import numpy")
    assert (heard, answer["numpy"]) == ("'numpy'", True)


def test_one_that_has_threads_is_not_suitable(template, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n")
    one = template(environment={"PYTHONPATH": str(tmp_path)})
    assert one.ready == {"unsuitable": "2 threads run"}
    assert one.process.wait(ANSWER_SECONDS) == 69


def test_forked_workers_serve(template, tmp_path):
    one = template()
    path = harness.write_model(tmp_path, PASS)
    workers = [one.fork() for _ in range(3)]
    for number, worker in enumerate(workers):
        assert worker.initialize(path)[0] == "ok"
        result = worker.execute(request(number, [fp32("OUT", [number])]))
        tensor = result["requests"][0]["response"]["tensors"]["OUT"]
        assert tensor.content == struct.pack("<f", number)
    for worker in workers:
        worker.send(harness.FINALIZE)
        worker.expect(harness.DONE)
        assert end_of(worker.pid)
        assert worker.status() == 0
