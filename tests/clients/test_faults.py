"""Tests of what a machine or a client can do to a server: nothing else is lost, and the server
recovers.

docs/testing.md lists these tests together with similar tests in other files.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from conftest import ROOT, StartServer
from constant_models import added_value, constant_model
from faults import Clock, Descriptors, seen_by, small_disk
from latch import Latch
from raw_http import Connection, post
from resilience import GOOD_MODEL, GOOD_REQUEST, check_serving, grpc_stub, infer_message, unharmed
from resilience import write_identity
from server import Server, wait_until
from test_bad_repositories import without_root_capabilities
from test_memory_limit import binary_request, gauge

pytestmark = pytest.mark.galatea_only

EXPLICIT = "--model-control-mode=explicit"
HOUR = 3600
SECONDS_MAX = 60
#: What the kernel calls it.
FULL = "No space left on device"


@pytest.fixture(name="repository")
def small_repository(tmp_path: pathlib.Path) -> pathlib.Path:
    """The good model."""
    write_identity(tmp_path / "models", GOOD_MODEL)
    return tmp_path / "models"


def test_the_table_names_tests_that_exist() -> None:
    """Each row of the table of faults has tests."""
    page = (ROOT / "docs" / "testing.md").read_text().split("## Faults")[1].split("\n## ")[0]
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    for row in rows:
        links = re.findall(r"\[`(test_\w+)`\]\(\.\./(\S+)\)", row)
        assert links, row
        for name, path in links:
            assert f"\ndef {name}(" in (ROOT / path).read_text(), name


# Clients that are killed or slow.


#: Opens connections, sends half of a request on each, says so, and waits.
HALF_REQUESTS = """
import signal, socket, sys
http, grpc, length = map(int, sys.argv[1:])
body = sys.stdin.buffer.read()
opened = []
for number in range(8):
    for port, content in ((http, body[: len(body) - length]), (grpc, body[len(body) - length :])):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(content)
        opened.append(one)
print("sent", flush=True)
signal.pause()
"""


def half_of_a_call() -> bytes:
    """The bytes of a gRPC client that announces a message of one mebibyte and sends a tenth of
    it."""
    sent = bytes(100 << 10)
    frames = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\4\0\0\0\0\0"]
    path = b"/inference.GRPCInferenceService/ModelInfer"
    headers = b"\x83\x86\x04" + bytes([len(path)]) + path
    headers += b"\x01\x01a\x0f\x10\x10application/grpc"
    frames.append(len(headers).to_bytes(3) + b"\1\4\0\0\0\1" + headers)
    message = b"\0" + (1 << 20).to_bytes(4) + sent
    for start in range(0, 48 << 10, 16 << 10):
        part = message[start : start + (16 << 10)]
        frames.append(len(part).to_bytes(3) + b"\0\0\0\0\0\1" + part)
    return b"".join(frames)


def test_clients_killed_in_a_body_leave_nothing(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """kill -9 ends processes with 16 unfinished requests each, and their resources are released."""
    content, headers = binary_request(1 << 20)
    names = [f"{name}: {value}" for name, value in headers.items()]
    half = post(f"/v2/models/{GOOD_MODEL}/infer", content, *names)[: len(content) // 2]
    call = half_of_a_call()
    with start_server(repository) as server, unharmed(server.wait_until_ready()):
        descriptors = Descriptors(server)
        before = len(descriptors.open())
        for _ in range(3):
            ports = [str(server.http_port), str(server.grpc_port), str(len(call))]
            with subprocess.Popen(
                [sys.executable, "-c", HALF_REQUESTS, *ports],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            ) as client:  # fmt: skip
                client.stdin.write(half + call)
                client.stdin.close()
                assert client.stdout.readline() == b"sent\n"
                held = lambda: gauge(server, "galatea_memory_held_bytes") > 4 << 20  # noqa: E731
                wait_until(held, SECONDS_MAX, "their bodies are held")
                check_serving(server)
                client.send_signal(signal.SIGKILL)
            nothing = lambda: gauge(server, "galatea_memory_held_bytes") == 0  # noqa: E731
            wait_until(nothing, SECONDS_MAX, "nothing is held")
            back = lambda: len(descriptors.open()) <= before + 2  # noqa: E731
            wait_until(back, SECONDS_MAX, "their connections are closed")


def test_a_slow_reader_gets_everything_and_delays_no_one(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """Other clients are served between any two reads from it."""
    content, headers = binary_request(4 << 20)
    names = [f"{name}: {value}" for name, value in headers.items()]
    flag = "--connection-stall-timeout=30"
    with (
        start_server(repository, flag) as server,
        unharmed(server.wait_until_ready()),
        socket.socket() as slow,
    ):
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.http_port))
        slow.sendall(post(f"/v2/models/{GOOD_MODEL}/infer", content, *names))
        answer = bytearray()
        while b"\r\n\r\n" not in answer:
            answer += slow.recv(1024)
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        (length,) = (
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        body = bytearray(body)
        while len(body) < length:
            body += slow.recv(256 << 10)
            check_serving(server)
    assert bytes(body).endswith(b"\x07\0\0\0" * (1 << 20))


# Disks.


def test_a_full_disk_under_the_log(
    start_server: StartServer, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Requests are served. The log continues once there is space, and says what is missing."""
    disk = tmp_path / "disk"
    file = disk / "log"
    launcher = small_disk(disk, "32k")
    flags = [f"--log-file={file}", "--log-verbose=2"]
    with start_server(repository, *flags, launcher=launcher) as server:
        log = seen_by(server.wait_until_ready(), file)

        def is_full() -> bool:
            size = log.stat().st_size
            check_serving(server)
            return log.stat().st_size == size

        wait_until(is_full, SECONDS_MAX, "the disk is full")
        for _ in range(10):
            check_serving(server)
        # This is what log rotation programs do.
        os.truncate(log, 0)
        check_serving(server)
        wait_until(lambda: "200 OK" in log.read_text(), SECONDS_MAX, "the log goes on")
        told, *others = log.read_text().strip().splitlines()
        assert f"records before this one could not be written: {FULL}" in told
        assert all(line.startswith("I") for line in others), "they are whole"
    assert server.process.returncode == 0


def test_a_full_disk_under_traces(
    start_server: StartServer, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Requests are served, the log says why traces are missing, and later traces are written."""
    disk = tmp_path / "disk"
    launcher = small_disk(disk, "64k")
    config = (f"triton,file={disk}/traces", "triton,log-frequency=1", "rate=1", "level=TIMESTAMPS")
    flags = [f"--trace-config={one}" for one in config]
    with start_server(repository, *flags, launcher=launcher) as server:
        folder = seen_by(server.wait_until_ready(), disk)

        def is_full() -> bool:
            check_serving(server)
            return FULL in server.log()

        wait_until(is_full, SECONDS_MAX, "the log says why")
        assert "failed creating trace file" in server.log()
        for file in folder.iterdir():
            file.unlink()

        def is_traced() -> bool:
            check_serving(server)
            with contextlib.suppress(json.JSONDecodeError):
                return any(json.loads(file.read_text()) for file in folder.iterdir())
            return False

        wait_until(is_traced, SECONDS_MAX, "a trace is written")
    assert server.process.returncode == 0


# Repositories.


def test_a_repository_that_can_not_be_read_for_a_while(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Polls fail with a reason, models continue to serve, and the next polls see what has
    changed."""
    repository = tmp_path / "models"
    (repository / "add" / "1").mkdir(parents=True)
    model = repository / "add" / "1" / "model.onnx"
    model.write_bytes(constant_model(1))
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    launcher = without_root_capabilities()
    with start_server(repository, *flags, launcher=launcher) as server:
        server.wait_until_ready()
        repository.chmod(0)
        try:
            failed = lambda: "failed to poll model repository" in server.log()  # noqa: E731
            wait_until(failed, SECONDS_MAX, "a poll fails")
            assert "Permission denied" in server.log()
            assert added_value(server, "add") == 1
            assert server.is_ready()
        finally:
            repository.chmod(0o755)
        new = model.with_name("new")
        new.write_bytes(constant_model(2))
        new.replace(model)
        wait_until(lambda: added_value(server, "add") == 2, SECONDS_MAX, "the new file serves")


# Descriptors.


@pytest.fixture(name="crowded")
def server_without_descriptors(
    start_server: StartServer, repository: pathlib.Path
) -> Iterator[tuple[Server, Descriptors]]:
    """A server whose descriptors are all used by idle connections."""
    (repository / "add" / "1").mkdir(parents=True)
    (repository / "add" / "1" / "model.onnx").write_bytes(constant_model(5))
    with start_server(repository, EXPLICIT, f"--load-model={GOOD_MODEL}") as server:
        server.wait_until_ready()
        descriptors = Descriptors(server)
        yield server, descriptors
        descriptors.restore()


def test_no_descriptors_left(crowded: tuple[Server, Descriptors]) -> None:
    """Loads fail with the reason, idle connections make room, and a later load succeeds."""
    server, descriptors = crowded
    with unharmed(server), grpc_stub(server) as stub:
        assert stub.ModelInfer(infer_message()).outputs
        path = "/v2/repository/models/add/load"
        with Connection(server) as first, contextlib.ExitStack() as stack:
            # The request is being served before the last descriptor is taken.
            request = post(path, b"{}")
            first.send(request[:-1])
            descriptors.exhaust()
            for _ in range(40):
                stack.enter_context(Connection(server)).send(b"POST ")
            wait_until(
                lambda: len(descriptors.open()) > descriptors.open()[-1], SECONDS_MAX, "no gap"
            )
            first.send(request[-1:])
            status, body = first.read_response() or (0, b"")
            assert status == 500 and b"failed to poll from model repository" in body, body
            assert "Too many open files" in server.log()
            # A call on an open connection needs no descriptor.
            assert stub.ModelInfer(infer_message()).outputs
        # Clients that connect before the server has noticed that others are gone are refused.
        wait_until(server.is_live, SECONDS_MAX, "there are descriptors again")
        check_serving(server)
        descriptors.restore()
        assert server.request("POST", path, b"{}").status == 200
        assert added_value(server, "add") == 5


# Clocks.


def test_steps_of_the_clock(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The clock is set an hour ahead and back: no queue, sequence or statistic treats this as
    elapsed time."""
    clock = Clock(tmp_path)
    queue = (
        "dynamic_batching { default_queue_policy {"
        " default_timeout_microseconds: 600000000 } }"
    )
    repository = tmp_path / "models"
    write_identity(repository, GOOD_MODEL)
    with (
        Latch(repository, "busy", queue, max_batch_size=1) as latch,
        start_server(repository, environment=clock.environment) as server,
        contextlib.ExitStack() as stack,
    ):
        server.wait_until_ready()
        clients = [stack.enter_context(Connection(server)) for _ in range(3)]
        for client in clients:
            client.send(post("/v2/models/busy/infer", json.dumps(latch.request(3)).encode()))
        server.wait_for_pending("busy", 2)
        for step in (HOUR, -HOUR, 0):
            clock.step(step)
            reply = server.infer(GOOD_MODEL, GOOD_REQUEST)
            assert reply.status == 200
            assert abs(seconds_ahead(reply.headers["Date"]) - step) < HOUR / 2, "the clock is set"
            assert server.pending("busy") == 2
        latch.open()
        for client in clients:
            assert (client.read_response() or (0, b""))[0] == 200
        for model in (GOOD_MODEL, "busy"):
            for times in server.statistics(model)["inference_stats"].values():
                assert 0 <= int(times.get("ns", 0)) < HOUR / 2 * 1e9, times
    assert server.process.returncode == 0


def seconds_ahead(date: str | None) -> float:
    """The difference between a date and this machine's clock."""
    assert date is not None
    now = datetime.datetime.now(datetime.UTC)
    return (email.utils.parsedate_to_datetime(date) - now).total_seconds()
