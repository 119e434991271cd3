"""Tests of Python models that misbehave: this affects only their own requests."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
from collections.abc import Iterator

import pytest

from conftest import StartServer
from python_backend import children, interpreter_flag, tensors, write_model
from server import Reply, Server, wait_until
from transports import RESPONSE_SECONDS_MAX

TEXTS = tensors("IN:STRING:1", "OUT:STRING:1")


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with a model that misbehaves, and one that doesn't."""
    folder = tmp_path_factory.mktemp("python_workers")
    write_model(folder, "faults", TEXTS, "faults")
    write_model(folder, "good", TEXTS, "faults")
    timeout = "--backend-config=python,execute-timeout-seconds=2"
    with start_server(folder, interpreter_flag(), timeout) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def ask(server: Server, way: str, model: str = "faults") -> Reply:
    """Sends a request that makes the model do something."""
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [way]}
    return server.infer(model, {"inputs": [tensor]})


def process(server: Server, model: str = "faults") -> int:
    """The process that serves a model. It may be delayed after many ends in a row."""
    replies: list[Reply] = []

    def serves() -> bool:
        replies.append(ask(server, "pid", model))
        return replies[-1].status == 200

    wait_until(serves, RESPONSE_SECONDS_MAX, f"{model} serves")
    return int(replies[-1].json()["outputs"][0]["data"][0])


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("kill", "was ended by signal 9"),
        ("segfault", "was ended by signal 11"),
        ("leave", "exited with code 7"),
        ("loop", "took longer than 2 seconds"),
        ("garbage", ""),
    ],
)
# row: PY-08
def test_what_ends_a_worker(server: Server, way: str, text: str) -> None:
    """Its request fails with a description of what happened, the model is served again, and
    others continue."""
    before, other = process(server), process(server, "good")
    reply = ask(server, way)
    assert reply.status == 500
    assert "Stub process 'faults_0' is not healthy." in reply.error()
    assert text in reply.error()
    assert process(server) != before
    assert process(server, "good") == other
    assert server.is_ready()


@pytest.mark.parametrize(
    ("way", "status", "text"),
    [
        ("system_exit", 500, "the model leaves"),
        ("wrong_type", 200, "INT32"),
        ("wrong_shape", 200, "[2,3,4]"),
        ("both", 200, "sent"),
        ("sent_twice", 200, "first"),
        ("after_final", 200, "first"),
        ("wrong_device", 500, "memory allocated on GPU device"),
        ("scribble", 200, "2"),
        ("nonsense", 500, "has no attribute 'nonsense'"),
    ],
)
def test_what_costs_only_a_request(server: Server, way: str, status: int, text: str) -> None:
    """The worker continues."""
    before = process(server)
    reply = ask(server, way)
    assert (reply.status, text in reply.body.decode()) == (status, True), reply
    assert process(server) == before


def test_what_comes_after_the_final_response(server: Server) -> None:
    """The model receives the reason why it isn't sent."""
    assert ask(server, "after_final").status == 200
    text = "Unable to send response. Non-decoupled model cannot send more than one response."
    heard = lambda: f"after the final response: {text}" in server.log()  # noqa: E731
    wait_until(heard, RESPONSE_SECONDS_MAX, "the model was told")


@pytest.mark.parametrize("way", ["kill", "segfault", "leave"])
def test_what_a_worker_leaves_behind(server: Server, way: str) -> None:
    """Processes that the model has started end with it, and don't delay anything."""
    child = int(ask(server, "spawn").json()["outputs"][0]["data"][0])
    assert pathlib.Path(f"/proc/{child}").exists()
    assert ask(server, way).status == 500
    gone = lambda: not is_running(child)  # noqa: E731
    wait_until(gone, RESPONSE_SECONDS_MAX, "its child is gone")
    process(server)


def test_forked_processes_cannot_speak(server: Server) -> None:
    """A child process's output isn't taken for the model's."""
    before = process(server)
    assert ask(server, "fork").status == 200
    assert process(server) == before
    assert "the child speaks" not in server.log()


def test_a_worker_that_ends_between_requests(server: Server) -> None:
    """It is restarted before anyone sends a request."""
    before = process(server)
    assert ask(server, "leave_on_signal").status == 200
    os.kill(before, signal.SIGUSR1)
    starts = lambda: "the Python worker of 'faults_0' exited with code 9" in server.log()  # noqa: E731
    wait_until(starts, RESPONSE_SECONDS_MAX, "its end is noticed")
    assert process(server) != before


def test_others_never_notice(server: Server) -> None:
    """While one model dies repeatedly, another one serves without errors."""
    statuses: list[int] = []
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            statuses.append(ask(server, "pid", "good").status)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for way in ("kill", "segfault", "loop", "kill"):
            assert ask(server, way).status == 500
            process(server)
    finally:
        stop.set()
        thread.join()
    assert statuses
    assert set(statuses) == {200}


def test_the_end_of_the_server_ends_endless_loops(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A server that is killed leaves no process behind, whatever that process does."""
    write_model(tmp_path, "faults", TEXTS, "faults")
    with start_server(tmp_path, interpreter_flag()) as running:
        running.wait_until_ready()
        (number,) = children(running)
        thread = threading.Thread(target=lambda: _ignore_errors(running))
        thread.start()
        wait_until(lambda: running.pending("faults") == 0 and is_busy(number),
                   RESPONSE_SECONDS_MAX, "it executes")
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        thread.join()
        gone = lambda: not pathlib.Path(f"/proc/{number}").exists()  # noqa: E731
        wait_until(gone, RESPONSE_SECONDS_MAX, "the worker is gone")


def _ignore_errors(server: Server) -> None:
    try:
        ask(server, "loop")
    except OSError:
        pass


def state(number: int) -> str:
    """The state of a process, according to /proc."""
    return pathlib.Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]


def is_busy(number: int) -> bool:
    """Returns true if a process is running."""
    return state(number) == "R"


def is_running(number: int) -> bool:
    """Returns true if a process hasn't ended."""
    try:
        return state(number) != "Z"
    except OSError:
        return False
