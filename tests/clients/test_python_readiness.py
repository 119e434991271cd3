"""Tests of the readiness checks of Python models."""

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
REQUEST = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """The directory of the model, which is ready."""
    write_model(tmp_path, "patient", TEXTS, "patient")
    write_model(tmp_path, "good", TEXTS, "echo")
    (tmp_path / "patient" / "answer").write_text("yes")
    return tmp_path / "patient"


@pytest.fixture
def server(start_server: StartServer, folder: pathlib.Path) -> Iterator[Server]:
    """A server with the model."""
    with start_server(folder.parent, interpreter_flag()) as running:
        try:
            yield running.wait_until_ready()
        finally:
            (folder / "go").touch()
    assert running.process.returncode == 0


def ready(server: Server) -> Reply:
    return server.get("/v2/models/patient/ready")


def test_answers(server: Server, folder: pathlib.Path) -> None:
    """Clients receive the model's own readiness; the server's readiness depends on its
    models."""
    assert ready(server).status == 200
    for answer in ("no", "raise", "no boolean"):
        (folder / "answer").write_text(answer)
        reply = ready(server)
        assert (reply.status, reply.error()) == (400, "Model version not ready"), answer
        assert server.get("/v2/models/good/ready").status == 200
    (folder / "answer").write_text("yes")
    assert ready(server).status == 200


def test_the_check_does_not_wait_for_an_execution(server: Server, folder: pathlib.Path) -> None:
    """The check runs alongside the execution, and returns the current state."""
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(server.infer("patient", REQUEST)))
    thread.start()
    try:
        wait_until(lambda: server.is_executing("patient"), RESPONSE_SECONDS_MAX, "it executes")
        assert ready(server).status == 200
        (folder / "answer").write_text("no")
        assert ready(server).status == 400
        assert server.is_executing("patient")
    finally:
        (folder / "go").touch()
        thread.join()
    assert replies[0].status == 200


def test_a_check_that_hangs(server: Server, folder: pathlib.Path) -> None:
    """The model isn't ready, but executes nevertheless; the server doesn't wait for it when
    it stops."""
    (folder / "answer").write_text("hang")
    (folder / "go").touch()
    replies: list[Reply] = []
    threads = [threading.Thread(target=lambda: replies.append(ready(server))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert server.infer("patient", REQUEST).status == 200
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [400] * 3


def test_a_worker_that_dies_while_it_is_asked(server: Server, folder: pathlib.Path) -> None:
    """The client receives that the model isn't ready, and the next check asks the model
    again."""
    (folder / "answer").write_text("hang")
    (number,) = children(server, "patient")
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(ready(server)))
    thread.start()
    (folder / "go").touch()
    assert server.infer("patient", REQUEST).status == 200
    (folder / "answer").write_text("yes")
    os.kill(number, signal.SIGKILL)
    thread.join()
    wait_until(lambda: ready(server).status == 200, RESPONSE_SECONDS_MAX, "it is ready again")
    assert children(server, "patient") != [number]
    assert replies[0].status in (200, 400)
