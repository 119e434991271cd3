"""Tests of Python models' workers that send nonsense: this affects only their own requests.

The worker is a fake, so it can send what no model can make a real worker send.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

import fake_worker
from conftest import StartServer
from python_backend import tensors, write_model
from server import Reply, Server, wait_until
from transports import RESPONSE_SECONDS_MAX

pytestmark = pytest.mark.galatea_only  # Triton's stubs speak another protocol

TEXTS = tensors("IN:STRING:1", "OUT:STRING:1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The file that tells the fake worker what to do wrong."""
    return tmp_path_factory.mktemp("fake")


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory, folder: pathlib.Path
) -> Iterator[Server]:
    """A server with a model that the fake worker serves."""
    repository = tmp_path_factory.mktemp("nonsense")
    write_model(repository, "m", TEXTS, "echo")
    program = fake_worker.write_interpreter(folder)
    flags = [
        "--disable-auto-complete-config",
        f"--backend-config=python,interpreter={program}",
        "--backend-config=python,execute-timeout-seconds=2",
        "--backend-config=python,stub-timeout-seconds=2",
    ]
    with start_server(repository, *flags, "--model-control-mode=explicit") as running:
        yield running.wait_until_live()
    assert running.process.returncode == 0


@pytest.fixture
def model(server: Server, folder: pathlib.Path) -> Iterator[Server]:
    """The server with the model newly loaded, so that earlier failures don't count."""
    (folder / "way").unlink(missing_ok=True)
    assert load(server).status == 200
    yield server
    (folder / "way").unlink(missing_ok=True)
    assert server.request("POST", "/v2/repository/models/m/unload", b"{}").status == 200
    wait_until(lambda: not children(server), RESPONSE_SECONDS_MAX, "the worker is gone")


def children(server: Server) -> list[int]:
    """The processes that the server has started. The fake worker has a different command line
    from real workers."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) == server.process.pid and state != "Z":
            found.append(int(folder.name))
    return found


def load(server: Server) -> Reply:
    return server.request("POST", "/v2/repository/models/m/load", b"{}")


def ask(server: Server) -> Reply:
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    return server.infer("m", {"inputs": [tensor]})


def check_good(server: Server) -> None:
    """The model is served."""
    reply = ask(server)
    assert reply.status == 200, reply
    assert reply.json()["outputs"][0]["data"] == ["good"]
    assert server.process.poll() is None


KINDS = ["garbage", "garbage_beside", "unknown_kind", "unknown_kind_beside", "empty",
         "endless_length", "half_a_frame", "silence", "leave"]
#: These look like a model that takes its time to finalize, which is half a minute.
LATE = ["garbage", "unknown_kind", "empty", "endless_length", "silence"]


@pytest.mark.parametrize("what", ["result", *KINDS])
@pytest.mark.parametrize("state", ["hello", "initialize"])
def test_nonsense_at_the_start(
    server: Server, folder: pathlib.Path, state: str, what: str
) -> None:
    """The load fails and leaves no process, and the next load succeeds."""
    if (state, what) == ("initialize", "silence"):
        pytest.skip("a model may take any time to initialize")
    (folder / "way").write_text(f"{state}:{what}")
    reply = load(server)
    assert reply.status == 400, reply
    assert "Stub process 'm_0' is not healthy" in reply.error()
    assert not children(server)
    assert load(server).status == 200
    check_good(server)
    assert server.request("POST", "/v2/repository/models/m/unload", b"{}").status == 200


@pytest.mark.parametrize("what", KINDS)
def test_nonsense_while_it_executes(model: Server, folder: pathlib.Path, what: str) -> None:
    """The request fails with a description of what happened, and the model is served again."""
    (folder / "way").write_text(f"execute:{what}")
    reply = ask(model)
    assert reply.status == 500, reply
    assert "Stub process 'm_0' is not healthy." in reply.error()
    check_good(model)


@pytest.mark.parametrize("what", list(fake_worker.wrong_results(0)))
def test_wrong_results(model: Server, folder: pathlib.Path, what: str) -> None:
    """After a result that no worker sends, the worker is killed."""
    (before,) = children(model)
    (folder / "way").write_text(f"result:{what}")
    reply = ask(model)
    if not what.startswith("released"):
        assert reply.status == 500, reply
        assert "The worker sent a malformed message: " in reply.error()
    check_good(model)
    wait_until(lambda: children(model) not in ([], [before]), RESPONSE_SECONDS_MAX, "a new worker")


@pytest.mark.parametrize("way", ["tensor", "sent"])
@pytest.mark.parametrize("what", list(fake_worker.wrong_tensors()))
def test_wrong_tensors(model: Server, folder: pathlib.Path, way: str, what: str) -> None:
    """Content that doesn't match its tensor makes the request fail, and nothing is read that
    the worker didn't write."""
    before = children(model)
    (folder / "way").write_text(f"{way}:{what}")
    reply = ask(model)
    assert reply.status == 500, reply
    assert "tensor 'OUT'" in reply.error()
    check_good(model)
    assert children(model) == before


@pytest.mark.parametrize("what", ["twice", "unknown", "promised"])
def test_answers_beside_the_result(model: Server, folder: pathlib.Path, what: str) -> None:
    """A request has exactly one response, whatever else is sent."""
    (folder / "way").write_text(f"beside:{what}")
    check_good(model)
    check_good(model)


@pytest.mark.parametrize("what", ["released", "ready"])
def test_nonsense_beside_the_result(model: Server, folder: pathlib.Path, what: str) -> None:
    """After content that can't be intended, the worker is killed."""
    (folder / "way").write_text(f"beside:{what}")
    reply = ask(model)
    assert (reply.status, "sent a malformed message" in reply.error()) == (500, True), reply
    check_good(model)


def test_a_result_without_an_execution(model: Server, folder: pathlib.Path) -> None:
    """It isn't taken for the next request's result."""
    (folder / "way").write_text("execute_twice")
    check_good(model)
    reply = ask(model)
    assert reply.status == 500, reply
    check_good(model)


@pytest.mark.parametrize("what", [one for one in KINDS if one not in LATE])
def test_nonsense_at_the_end(server: Server, folder: pathlib.Path, what: str) -> None:
    """The model is unloaded nevertheless, and no process remains."""
    assert load(server).status == 200
    check_good(server)
    (folder / "way").write_text(f"finalize:{what}")
    assert server.request("POST", "/v2/repository/models/m/unload", b"{}").status == 200
    wait_until(lambda: not children(server), RESPONSE_SECONDS_MAX, "the worker is gone")
