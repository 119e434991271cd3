"""Tests of the processes and memory of Triton's own Python backend: how they start, what
happens when they die, and their cleanup."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import stat
from collections.abc import Iterator

import numpy
import pytest
from tritonclient.utils import InferenceServerException

from python_backend import (
    MODELS,
    REGION,
    STUB,
    PythonServer,
    argument,
    children,
    start_python,  # noqa: F401
    tensors,
    wait_for_end,
    write_model,
)
from server import Server, wait_until
from transports import RESPONSE_SECONDS_MAX, Grpc, GrpcCalls

BATCHES = "max_batch_size: 8 "
PROCESS = BATCHES + tensors("IN:FP32:1", "OUT:INT32:1")
TALK = tensors("IN:FP32", "OUT:FP32")
EXPLICIT = "--model-control-mode=explicit"
NOW = numpy.zeros((1, 1), numpy.float32)


def parameter(name: str, value: str) -> str:
    """A parameter of a configuration."""
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("python_processes")
    two = "instance_group { count: 2 kind: KIND_CPU }"
    for name, config, python in [
        ("process", PROCESS, "process"),
        ("two", PROCESS + two, "process"),
        ("errors", BATCHES + tensors("IN:STRING", "OUT:STRING"), "errors"),
        ("talk", TALK, "talk"),
        ("own_stub", PROCESS, "process"),
        ("in_environment", PROCESS, "process"),
        ("no_environment", PROCESS, "process"),
        ("no_class", PROCESS, None),
        ("no_python", PROCESS, None),
        ("raises", PROCESS + parameter("way", "raise"), "broken"),
        ("exits", PROCESS + parameter("way", "exit"), "broken"),
        ("completed", parameter("way", "fully"), "complete"),
        ("completed_decoupled", parameter("way", "decoupled"), "complete"),
        ("completed_wrongly", parameter("way", "wrong"), "complete"),
        ("completing_raises", parameter("way", "raise"), "complete"),
    ]:
        write_model(folder, name, config, python)
    (folder / "no_class" / "1" / "model.py").write_text("class Something:\n    pass\n")
    (folder / "no_python" / "1" / "model.py").write_text("class TritonPythonModel\n")
    return folder


@pytest.fixture(scope="module")
def server(start_python: PythonServer, repository: pathlib.Path) -> Iterator[Server]:  # noqa: F811
    flags = [EXPLICIT, "--log-verbose=1", "--exit-timeout-secs=30"]
    with start_python(repository, *flags) as running:
        yield running.wait_until_live()
    # Triton waits forever for models whose process was killed.
    assert running.process.returncode == 0 or running.is_triton


def load(server: Server, model: str) -> str | None:
    """Loads a model, and returns the error."""
    reply = server.request("POST", f"/v2/repository/models/{model}/load", b"{}")
    return None if reply.status == 200 else reply.error()


@contextlib.contextmanager
def dying(server: Server, model: str) -> Iterator[int]:
    """Kills a model's only process during the block. The backend leaves its memory behind,
    under Triton too."""
    (number,) = children(server, model)
    region = argument(number, REGION)
    yield number
    wait_for_end(server, [number])
    pathlib.Path("/dev/shm", region).unlink(missing_ok=True)


def unload(server: Server, model: str) -> None:
    """Unloads a model and waits until its processes are gone."""
    numbers = children(server, model)
    assert server.request("POST", f"/v2/repository/models/{model}/unload", b"{}").status == 200
    wait_for_end(server, numbers)


def serving_process(server: Server, model: str) -> int:
    """The process that serves a model."""
    client = Grpc(server)
    try:
        return int(client.infer(model, {"IN": NOW})["OUT"][0][0])
    finally:
        client.close()


# row: PY-08
def test_each_instance_has_a_process(server: Server) -> None:
    assert load(server, "process") is None
    assert load(server, "two") is None
    assert len(children(server, "two")) == 2
    assert children(server, "process") == [serving_process(server, "process")]
    unload(server, "two")
    unload(server, "process")


def test_processes_inherit_nothing(
    server: Server,
    start_python: PythonServer,  # noqa: F811
) -> None:
    start_python.skip_if_own("its process speaks over sockets")
    assert load(server, "process") is None
    (number,) = children(server, "process")
    folder = pathlib.Path("/proc") / str(number)
    targets = [os.readlink(one) for one in (folder / "fd").iterdir()]
    if not server.is_triton:
        assert [one for one in targets if one.startswith("socket:")] == []
    lines = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
    assert int(lines["SigBlk"], 16) == 0
    unload(server, "process")


def test_a_killed_process(
    server: Server,
    start_python: PythonServer,  # noqa: F811
) -> None:
    start_python.skip_if_own("it starts the process anew, see test_python_workers.py")
    assert load(server, "process") is None
    assert load(server, "two") is None
    with dying(server, "process") as number:
        os.kill(number, signal.SIGKILL)
        with pytest.raises(InferenceServerException, match="tub process") as raised:
            serving_process(server, "process")
        assert raised.value.status() == "StatusCode.INTERNAL"
        assert server.is_live()
        assert serving_process(server, "two") in children(server, "two")
        unload(server, "process")
    assert load(server, "process") is None
    assert children(server, "process") == [serving_process(server, "process")]
    unload(server, "process")
    unload(server, "two")


def test_a_process_killed_while_it_executes(
    server: Server,
    start_python: PythonServer,  # noqa: F811
) -> None:
    start_python.skip_if_own("it starts the process anew, see test_python_workers.py")
    assert load(server, "process") is None
    with dying(server, "process") as number:
        calls = GrpcCalls(server)
        for _ in range(3):
            calls.send("process", {"IN": numpy.full((1, 1), 60, numpy.float32)})
        wait_until(lambda: server.pending("process") == 2, RESPONSE_SECONDS_MAX, "one executes")
        os.kill(number, signal.SIGKILL)
        for one in range(3):
            with pytest.raises(InferenceServerException, match="tub process"):
                calls.wait(one)
        calls.close()
        unload(server, "process")
    assert load(server, "process") is None
    assert children(server, "process") == [serving_process(server, "process")]
    unload(server, "process")


def test_a_process_that_exits(
    server: Server,
    start_python: PythonServer,  # noqa: F811
) -> None:
    start_python.skip_if_own("it starts the process anew, see test_python_workers.py")
    assert load(server, "errors") is None
    tensor = {"name": "IN", "shape": [1, 1], "datatype": "BYTES", "data": ["exit"]}
    with dying(server, "errors"):
        reply = server.infer("errors", {"inputs": [tensor]})
        assert (reply.status, "tub process" in reply.error()) == (500, True), reply
        assert server.is_live()
        unload(server, "errors")


def test_unloading_waits_for_requests(server: Server) -> None:
    assert load(server, "process") is None
    calls = GrpcCalls(server)
    for _ in range(3):
        calls.send("process", {"IN": numpy.full((1, 1), 0.3, numpy.float32)})
    wait_until(lambda: server.pending("process") == 2, RESPONSE_SECONDS_MAX, "one executes")
    (number,) = children(server, "process")
    unload(server, "process")
    assert [calls.wait(one)["OUT"].tolist() for one in range(3)] == [[[number]]] * 3
    calls.close()


def test_reloading_many_times(server: Server, start_python: PythonServer) -> None:  # noqa: F811
    assert load(server, "process") is None
    before = len(start_python.regions())
    for _ in range(3):
        (number,) = children(server, "process")
        unload(server, "process")
        assert load(server, "process") is None
        assert serving_process(server, "process") != number
    assert len(start_python.regions()) == before
    unload(server, "process")


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("no_class", "TritonPythonModel"),
        ("no_python", "SyntaxError"),
        ("raises", "initializing failed"),
        ("exits", "tub process 'exits_0' is not healthy"),
        ("completed_wrongly", "'dims'"),
        ("completing_raises", "completing failed"),
    ],
)
def test_models_that_fail_to_load(
    server: Server,
    start_python: PythonServer,  # noqa: F811
    model: str,
    text: str,
) -> None:
    before = start_python.regions()
    error = load(server, model)
    assert error is not None
    assert text in error
    wait_until(lambda: not children(server, model), RESPONSE_SECONDS_MAX, "nothing is left")
    assert start_python.regions() == before
    index = server.request("POST", "/v2/repository/index", b"{}").json()
    (entry,) = (one for one in index if one["name"] == model)
    assert entry["state"] == "UNAVAILABLE"
    assert text in entry["reason"]


@pytest.mark.parametrize("model", ["completed", "completed_decoupled"])
# row: CFG-25 PY-03
def test_completed_configurations(server: Server, model: str) -> None:
    assert load(server, model) is None
    config = server.get(f"/v2/models/{model}/config").json()
    assert config["max_batch_size"] == 4
    (given,) = config["input"]
    assert (given["name"], given["data_type"], given["dims"]) == ("IN", "TYPE_FP32", ["-1"]) or (
        given["dims"] == [-1]
    )
    assert given["optional"] is True
    assert config["output"][0]["name"] == "OUT"
    assert "dynamic_batching" in config
    decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
    assert decoupled is (model == "completed_decoupled")
    if not decoupled:
        client = Grpc(server)
        outputs = client.infer(model, {"IN": numpy.ones((2, 3), numpy.float32)})
        assert outputs["OUT"].tolist() == [[1.0] * 3] * 2
        client.close()
    unload(server, model)


# row: PY-12
def test_log_lines(server: Server, repository: pathlib.Path) -> None:
    assert load(server, "talk") is None
    client = Grpc(server)
    client.infer("talk", {"IN": numpy.ones(2, numpy.float32)})
    client.close()
    unload(server, "talk")
    assert (repository / "talk" / "finalized").exists()
    log = server.log()
    for text in ("initializing", "info with", "warning", "error", "verbose", "any", "finalizing"):
        lines = [line for line in log.splitlines() if f"talk: {text}" in line]
        assert len(lines) == 1, text
        level = {"warning": "W", "error": "E", "any": "W"}.get(text, "I")
        assert lines[0].startswith(level), lines
        assert "model.py:" in lines[0], lines
    assert "second line" in log


def test_a_model_may_have_its_own_stub(
    server: Server,
    repository: pathlib.Path,
    start_python: PythonServer,  # noqa: F811
) -> None:
    start_python.skip_if_own("it needs no stub")
    stub = repository / "own_stub" / STUB
    real = start_python.backends / "python" / STUB
    note = repository / "own_stub" / "used"
    stub.write_text(f'#!/bin/bash\necho yes > {note}\nexec {real} "$@"\n')
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    assert load(server, "own_stub") is None
    assert note.read_text() == "yes\n"
    assert children(server, "own_stub") == [serving_process(server, "own_stub")]
    unload(server, "own_stub")


# row: PY-10
def test_environments(server: Server, repository: pathlib.Path) -> None:
    config = repository / "in_environment" / "config.pbtxt"
    environment = repository / "in_environment" / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "lib").mkdir()
    note = environment / "used"
    (environment / "bin" / "activate").write_text(f"echo yes > {note}\n")
    where = parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/environment")
    config.write_text(config.read_text() + where)
    assert load(server, "in_environment") is None
    assert note.read_text() == "yes\n"
    assert children(server, "in_environment") == [serving_process(server, "in_environment")]
    unload(server, "in_environment")


@pytest.mark.parametrize("path", ["nowhere.tar.gz", "nowhere", "config.pbtxt"])
def test_missing_environments(server: Server, repository: pathlib.Path, path: str) -> None:
    config = repository / "no_environment" / "config.pbtxt"
    where = parameter("EXECUTION_ENV_PATH", f"$$TRITON_MODEL_DIRECTORY/{path}")
    config.write_text(f'backend: "python"\n{PROCESS}{where}')
    error = load(server, "no_environment")
    assert error is not None
    assert not children(server, "no_environment")


# row: BEK-04 PY-13
def test_python_based_backends(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
) -> None:
    own = start_python.backends / "in_python"
    own.mkdir()
    (own / "model.py").write_text((MODELS / "process.py").read_text())
    write_model(tmp_path, "m", PROCESS, None, backend="in_python")
    with start_python(tmp_path) as running:
        running.wait_until_ready()
        assert children(running) == [serving_process(running, "m")]


#: Imports modules beside it and above it, as far as there are any.
IMPORTS = """
import importlib

import numpy
import triton_python_backend_utils as pb_utils


def find(name):
    try:
        return importlib.import_module(name).WORD
    except ImportError:
        return b"none"


class TritonPythonModel:
    def execute(self, requests):
        words = [find(name) for name in ("beside", "above", "parts.inner")]
        output = pb_utils.Tensor("OUT", numpy.array(words, numpy.object_))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""


@pytest.mark.parametrize("backend", ["python", "with_modules"])
def test_modules_of_models_and_backends(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
    backend: str,
) -> None:
    """A model finds them in its version directory and its own directory; a backend finds them
    in its own directory."""
    write_model(tmp_path, "m", tensors("", "OUT:STRING"), None, backend=backend)
    model, own = tmp_path / "m", start_python.backends / backend
    version = model / "1"
    if backend != "python":
        own.mkdir()
        version = own
    (version / "model.py").write_text(IMPORTS)
    (version / "beside.py").write_text("WORD = b'beside'\n")
    (model / "above.py").write_text("WORD = b'above'\n")
    (version / "parts").mkdir()
    (version / "parts" / "inner.py").write_text("WORD = b'inner'\n")
    with start_python(tmp_path) as running:
        running.wait_until_ready()
        reply = running.infer("m", {"inputs": []}).json()
    above = "above" if backend == "python" else "none"
    assert reply["outputs"][0]["data"] == ["beside", above, "inner"]


@pytest.mark.parametrize("home", ["in_python", "model"])
def test_python_based_backends_with_a_library_of_their_own(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
    home: str,
) -> None:
    """The Python backend's library is searched for in the same places as any backend's."""
    start_python.skip_if_own("it needs no library")
    name = f"own_{home}"
    own = start_python.backends / name
    own.mkdir()
    (own / "model.py").write_text((MODELS / "process.py").read_text())
    write_model(tmp_path / "models", "m", PROCESS, None, backend=name)
    place = own if home == "in_python" else tmp_path / "models" / "m"
    python = start_python.backends / "python"
    shutil.copy(python / "libtriton_python.so", place)
    with start_python(tmp_path / "models") as running:
        running.wait_until_ready()
        assert children(running) == [serving_process(running, "m")]


# row: PY-13
def test_environment_of_a_python_based_backend(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
) -> None:
    """An archive next to the backend is the environment of models that don't name one."""
    own = start_python.backends / "with_environment"
    own.mkdir()
    (own / "model.py").write_text((MODELS / "process.py").read_text())
    (own / "pb_exec_env_model.py.tar.gz").write_bytes(b"no archive")
    write_model(tmp_path, "m", PROCESS, None, backend="with_environment")
    with start_python(tmp_path, EXPLICIT) as running:
        running.wait_until_live()
        assert "archive_read_open_filename() failed" in (load(running, "m") or "")
        archive = own / "pb_exec_env_model.py.tar.gz"
        assert f"Using Python execution env {archive}" in running.log()


def test_settings_of_shared_memory(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
) -> None:
    start_python.skip_if_own("its memory has no name")
    write_model(tmp_path, "m", PROCESS, "process")
    sizes = [("shm-default-byte-size", 8 << 20), ("shm-growth-byte-size", 2 << 20)]
    flags = [f"--backend-config=python,{name}={size}" for name, size in sizes]
    before = set(start_python.regions())
    with start_python(tmp_path, *flags, "--backend-config=python,thread-pool-size=2") as running:
        running.wait_until_ready()
        (region,) = set(start_python.regions()) - before
        assert (pathlib.Path("/dev/shm") / region).stat().st_size == 8 << 20
        (number,) = children(running)
        assert [argument(number, place) for place in (3, 4)] == [str(size) for _, size in sizes]
        assert serving_process(running, "m") == number


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("shm-default-byte-size=1000", "can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size=0", "can't be smaller than or equal to zero"),
        ("stub-timeout-seconds=x", "sto"),
        ("thread-pool-size=0", "can't be less than 1"),
    ],
)
# row: PY-09
def test_wrong_settings(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
    setting: str,
    text: str,
) -> None:
    write_model(tmp_path, "m", PROCESS, "process")
    flags = [f"--backend-config=python,{setting}", "--exit-on-error=false"]
    with start_python(tmp_path, *flags) as running:
        running.wait_until_live()
        wait_until(lambda: text in running.log(), RESPONSE_SECONDS_MAX, "the reason is logged")
        assert not running.is_ready()
        assert children(running) == []


def test_a_killed_server_leaves_no_process(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
) -> None:
    write_model(tmp_path, "m", PROCESS + "instance_group { count: 2 kind: KIND_CPU }", "process")
    before = set(start_python.regions())
    with start_python(tmp_path) as running:
        running.wait_until_ready()
        numbers = children(running)
        assert len(numbers) == 2
        running.process.kill()
        running.process.wait()
        wait_for_end(running, numbers)
    # No remaining process could remove them.
    for region in set(start_python.regions()) - before:
        (pathlib.Path("/dev/shm") / region).unlink()


@pytest.mark.galatea_only
def test_processes_are_killed_after_the_exit_timeout(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
) -> None:
    write_model(tmp_path, "m", PROCESS, "process")
    before = set(start_python.regions())
    with start_python(tmp_path, "--exit-timeout-secs=1") as running:
        running.wait_until_ready()
        (number,) = children(running)
        calls = GrpcCalls(running)
        for _ in range(2):
            calls.send("m", {"IN": numpy.full((1, 1), 60, numpy.float32)})
        wait_until(lambda: running.pending("m") == 1, RESPONSE_SECONDS_MAX, "one executes")
        assert running.stop() == 1
        assert f"process {number}, which a backend had started, was killed" in running.log()
        wait_for_end(running, [number])
        calls.close()
    for region in set(start_python.regions()) - before:
        (pathlib.Path("/dev/shm") / region).unlink()
