"""Tests of the templates that fork the workers of Python models: what happens when they end,
hang, or can't start."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from conftest import StartServer
from python_backend import children, interpreter_flag, templates, tensors, write_model
from server import Reply, Server, wait_until
from transports import RESPONSE_SECONDS_MAX

TEXTS = tensors("IN:STRING:1", "OUT:STRING:1")
LIMIT = 'parameters { key: "GALATEA_MEMORY_LIMIT_MIB" value { string_value: "4096" } }'
#: A model without numpy.
PLAIN = """
import os


def predict(text: str) -> str:
    if text == "leave":
        os._exit(7)
    return f"{os.getpid()} {os.getppid()} {os.environ.get('MARK')}"
"""


@pytest.fixture
def server(start_server: StartServer, tmp_path: pathlib.Path) -> Iterator[Server]:
    """A server with two models that misbehave on request, and one with a limit."""
    write_model(tmp_path, "faults", TEXTS, "faults")
    write_model(tmp_path, "good", TEXTS, "faults")
    write_model(tmp_path, "limited", TEXTS + LIMIT, "faults")
    with start_server(tmp_path, interpreter_flag()) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def ask(server: Server, way: str, model: str = "faults") -> Reply:
    """Sends a request that makes the model do something."""
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [way]}
    return server.infer(model, {"inputs": [tensor]})


def worker(server: Server, model: str = "faults") -> int:
    """The process that serves a model."""
    found: list[int] = []

    def serves() -> bool:
        reply = ask(server, "pid", model)
        if reply.status == 200:
            found.append(int(reply.json()["outputs"][0]["data"][0]))
        return bool(found)

    wait_until(serves, RESPONSE_SECONDS_MAX, f"{model} serves")
    return found[0]


def parent(number: int) -> int:
    """The process that has started another one."""
    stat = pathlib.Path(f"/proc/{number}/stat").read_text()
    return int(stat.rsplit(")", 1)[1].split()[1])


def has_ended(number: int) -> bool:
    """Returns true if a process is gone, or as good as gone."""
    try:
        stat = pathlib.Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return True
    return stat.rsplit(")", 1)[1].split()[0] == "Z"


def wait_for_fork(server: Server, accepts: Callable[[int], bool]) -> int:
    """Makes the worker of a model end until a worker is started that has such a parent."""
    found: list[int] = []

    def is_forked() -> bool:
        ask(server, "leave")
        found.append(worker(server))
        return accepts(parent(found[-1]))

    wait_until(is_forked, RESPONSE_SECONDS_MAX, "a worker is forked")
    return found[-1]


# row: PY-08
def test_templates_fork_workers(server: Server) -> None:
    """All workers with the same environment share one template. Those that start later begin
    with numpy."""
    (template,) = templates(server)
    assert parent(worker(server)) == parent(worker(server, "good")) == template
    assert parent(worker(server, "limited")) == server.process.pid, "it is confined"
    ends = [
        ("kill", "was ended by signal 9"),
        ("leave", "exited with code 7"),
        ("segfault", "was ended by signal 11"),
    ]
    for way, text in ends:
        assert text in ask(server, way).error()
        with_numpy = parent(worker(server))
        assert templates(server) == [template, with_numpy]
    assert parent(worker(server, "good")) == template


@pytest.mark.parametrize("which", [0, 1])
def test_a_template_that_is_killed(server: Server, which: int) -> None:
    """Its workers continue, and end with the server. Others start without it, and then with
    another."""
    ask(server, "kill")
    before, other = worker(server), worker(server, "good")
    ended = templates(server)[which]
    os.kill(ended, signal.SIGKILL)
    wait_until(lambda: has_ended(ended), RESPONSE_SECONDS_MAX, "it has ended")
    assert (worker(server), worker(server, "good")) == (before, other)
    reply = ask(server, "leave")
    assert "Stub process 'faults_0' is not healthy. The worker " in reply.error()
    assert ("exited with code 7" in reply.error()) == (which == 0)
    assert worker(server) != before
    anew = wait_for_fork(server, lambda number: number not in (ended, server.process.pid))
    assert ended not in templates(server)
    assert "exited with code 7" in ask(server, "leave").error()
    assert anew != worker(server)
    assert worker(server, "good") == other


def test_a_template_that_hangs(server: Server) -> None:
    """It is ended. Its workers continue, and others start without it."""
    other = worker(server, "good")
    (template,) = templates(server)
    os.kill(template, signal.SIGSTOP)
    assert ask(server, "leave").status == 500
    assert parent(worker(server)) == server.process.pid
    wait_until(lambda: has_ended(template), RESPONSE_SECONDS_MAX, "it is ended")
    assert "no template can fork them: it " in server.log()
    assert worker(server, "good") == other
    anew = wait_for_fork(server, lambda number: number != server.process.pid)
    assert parent(anew) in templates(server)


def test_a_killed_server_leaves_no_process(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """This includes both templates and workers, whose parents they are."""
    write_model(tmp_path, "faults", TEXTS, "faults")
    with start_server(tmp_path, interpreter_flag()) as running:
        running.wait_until_ready()
        assert ask(running, "kill").status == 500
        numbers = [worker(running), *templates(running)]
        assert len(numbers) == 3
        running.process.kill()
        running.process.wait()
    gone = lambda: all(has_ended(number) for number in numbers)  # noqa: E731
    wait_until(gone, RESPONSE_SECONDS_MAX, "all are gone")


def test_templates_end_with_the_models(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """A template exists for as long as a model needs it."""
    write_model(tmp_path, "faults", TEXTS, "faults")
    flags = ["--model-control-mode=explicit", "--load-model=faults"]
    with start_server(tmp_path, interpreter_flag(), *flags) as running:
        running.wait_until_ready()
        assert len(templates(running)) == 1
        reply = running.request("POST", "/v2/repository/models/faults/unload", b"{}")
        assert reply.status == 200
        gone = lambda: children(running) == templates(running) == []  # noqa: E731
        wait_until(gone, RESPONSE_SECONDS_MAX, "it has ended")


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> pathlib.Path:
    """A virtual environment."""
    folder = tmp_path / "environment"
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True)
    return folder


def plain_model(repository: pathlib.Path, environment: pathlib.Path) -> None:
    """A model without numpy in its own environment."""
    version = repository / "plain" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(PLAIN)
    value = f'value {{ string_value: "{environment}" }}'
    config = f'backend: "python" parameters {{ key: "EXECUTION_ENV_PATH" {value} }}'
    (repository / "plain" / "config.pbtxt").write_text(config)


def says(server: Server) -> list[str]:
    """The process of the plain model, its parent, and its variable."""
    replies: list[Reply] = []

    def serves() -> bool:
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["say"]}
        replies.append(server.infer("plain", {"inputs": [tensor]}))
        return replies[-1].status == 200

    wait_until(serves, RESPONSE_SECONDS_MAX, "it serves")
    text: str = replies[-1].json()["outputs"][0]["data"][0]
    return text.split()


def end(server: Server) -> None:
    """Ends the worker of the plain model."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["leave"]}
    assert "exited with code 7" in server.infer("plain", {"inputs": [tensor]}).error()


def test_an_environment_that_changes(
    start_server: StartServer, tmp_path: pathlib.Path, environment: pathlib.Path
) -> None:
    """A worker never inherits what existed when the template started."""
    plain_model(tmp_path / "models", environment)
    with start_server(tmp_path / "models", interpreter_flag()) as running:
        running.wait_until_ready()
        _, template, mark = says(running)
        assert (int(template), mark) == (templates(running)[0], "None")
        end(running)
        assert says(running)[1] == template
        (packages,) = (environment / "lib").glob("python*/site-packages")
        (packages / "mark.pth").write_text("import os; os.environ['MARK'] = 'new'\n")
        end(running)
        _, other, mark = says(running)
        assert (int(other), mark) == (templates(running)[0], "new")
        assert other != template
        wait_until(lambda: has_ended(int(template)), RESPONSE_SECONDS_MAX, "it has ended")


def test_environments_that_cannot_be_forked(
    start_server: StartServer, tmp_path: pathlib.Path, environment: pathlib.Path
) -> None:
    """Workers start on their own if the interpreter starts with several threads."""
    (packages,) = (environment / "lib").glob("python*/site-packages")
    threads = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    (packages / "threads.pth").write_text(f"import threading; {threads}\n")
    plain_model(tmp_path / "models", environment)
    with start_server(tmp_path / "models", interpreter_flag()) as running:
        running.wait_until_ready()
        assert says(running)[1] == str(running.process.pid)
        assert templates(running) == []
        end(running)
        assert says(running)[1] == str(running.process.pid)
        assert running.log().count("threads run") == 1
