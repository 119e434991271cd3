"""Tests of the bare loop, its recorded responses and its report.

python -m unittest discover bench/tests
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import run
from harness import bare, measure, report, request_body, server, workloads

INFER = b"POST /v2/models/m/infer "
STATISTICS = b"GET /v2/models/m/stats "
BUFFER_BYTES = 16_384
TIMEOUT_SECONDS = 20.0


def response(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def request(body: bytes, prefix: bytes = INFER, name: bytes = b"Content-Length") -> bytes:
    return prefix + b"HTTP/1.1\r\nHost: x\r\n%s: %d\r\nAccept: */*\r\n\r\n%s" % (
        name,
        len(body),
        body,
    )


def get(prefix: bytes) -> bytes:
    return prefix + b"HTTP/1.1\r\nHost: x\r\n\r\n"


UNNAMED = response(b'{"outputs":[]}')
MISSING = response(b"not here", "404 Not Found")
COUNTS = {"count": 7, "ns": 9}
STATS_BODY = json.dumps(
    {
        "model_stats": [
            {
                "inference_count": 7,
                "execution_count": 7,
                "inference_stats": {step: dict(COUNTS) for step in (*bare.STEPS, "fail")},
                "batch_stats": [{"batch_size": 1, "compute_infer": dict(COUNTS)}],
            }
        ]
    }
).encode()
HEALTH = b"GET /v2/health/ready "


def recorded_responses(digits: int = bare.ID_DIGITS_MAX) -> list[bare.RecordedResponse]:
    named = [
        bare.RecordedResponse(INFER, response(b'{"id":"' + b"1" * size + b'","outputs":[]}'), size, True)
        for size in range(1, digits + 1)
    ]
    return [
        bare.RecordedResponse(INFER, UNNAMED, counted=True),
        *named,
        bare.RecordedResponse(HEALTH, response(b"")),
        bare.RecordedResponse(STATISTICS, bare.counting(response(STATS_BODY))),
        bare.RecordedResponse(b"", MISSING),
    ]


class Loop(unittest.TestCase):
    """The program, tested over sockets."""

    work: pathlib.Path
    program: pathlib.Path

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        cls.program = bare.program(cls.work, "cc")

    @contextlib.contextmanager
    def running(self, path: pathlib.Path) -> Iterator[tuple[int, int]]:
        """Provides the loop's port and process."""
        (port,) = server.free_ports(1)
        child = subprocess.Popen([str(self.program), str(path), str(port)])
        loop = server.Server(child, port, port)
        try:
            loop.wait_ready(time.monotonic())
            yield port, child.pid
        finally:
            loop.stop()

    def setUp(self) -> None:
        path = self.work / "answers"
        bare.write(recorded_responses(), path)
        self.port, self.pid = self.enterContext(self.running(path))

    def connect(self) -> socket.socket:
        stream = socket.create_connection(("127.0.0.1", self.port), TIMEOUT_SECONDS)
        self.addCleanup(stream.close)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def send_in_parts(self, stream: socket.socket, parts: list[bytes]) -> None:
        """Sends several parts. The loop has read a part once a later client has its response."""
        other = self.connect()
        for part in parts:
            stream.sendall(part)
            other.sendall(get(HEALTH))
            self.assertEqual(bare.receive(other), response(b""))

    def expect(self, stream: socket.socket, expected: bytes) -> None:
        received = b""
        while len(received) < len(expected):
            part = stream.recv(len(expected) - len(received))
            self.assertNotEqual(part, b"", f"ended after {received!r}")
            received += part
        self.assertEqual(received, expected)

    def counted(self) -> int:
        stream = self.connect()
        stream.sendall(get(STATISTICS))
        body = bare.receive(stream).partition(bare.HEAD_END)[2]
        statistics = json.loads(body)["model_stats"][0]
        return int(statistics["inference_stats"]["success"]["count"])

    def ended(self, stream: socket.socket) -> bool:
        try:
            return stream.recv(1) == b""
        except ConnectionResetError:
            return True

    def test_requests_come_in_parts(self) -> None:
        stream = self.connect()
        whole = request(b"x" * 100)
        head = whole.index(bare.HEAD_END)
        for at in (1, head, head + 2, head + 4, head + 5, len(whole) - 1):
            self.send_in_parts(stream, [whole[:at], whole[at:]])
            self.assertEqual(bare.receive(stream), UNNAMED, at)
        self.send_in_parts(stream, [bytes([byte]) for byte in whole])
        self.assertEqual(bare.receive(stream), UNNAMED)
        self.assertEqual(self.counted(), 7)

    def test_nothing_is_answered_before_its_end(self) -> None:
        stream = self.connect()
        self.send_in_parts(stream, [request(b"x" * 100)[:-1]])
        self.assertEqual(self.counted(), 0)
        self.send_in_parts(stream, [b"x"])
        self.assertEqual(self.counted(), 1)

    def test_several_requests_at_once(self) -> None:
        stream = self.connect()
        body = b'{"id":"42","inputs":[]}' + b"x" * 50
        four = request(b"x" * 10) + get(b"GET /nothing ") + request(body) + request(b"y" * 9)
        self.send_in_parts(stream, [four[:-4], four[-4:]])
        named = response(b'{"id":"42","outputs":[]}')
        self.expect(stream, UNNAMED + MISSING + named + UNNAMED)
        self.assertEqual(self.counted(), 3)

    def test_bodies_longer_than_the_room(self) -> None:
        stream = self.connect()
        for length in (BUFFER_BYTES - 100, BUFFER_BYTES, 5 * BUFFER_BYTES + 1):
            two = request(b"x" * length) + request(b"y" * 10)
            parts = [two[at : at + 10_000] for at in range(0, len(two), 10_000)]
            self.send_in_parts(stream, parts)
            self.expect(stream, 2 * UNNAMED)
        self.assertEqual(self.counted(), 6)

    def test_a_length_by_any_case_and_only_in_the_head(self) -> None:
        stream = self.connect()
        body = b"x\r\ncontent-length: 5\r\n\r\n"
        for name in (b"content-length", b"CONTENT-LENGTH"):
            stream.sendall(request(body, name=name) + request(b"", name=b"X-Content-Length"))
            self.expect(stream, 2 * UNNAMED)
        self.assertEqual(self.counted(), 4)

    def test_an_answer_has_the_id_of_its_request(self) -> None:
        stream = self.connect()
        for number in (b"7", b"31", b"12345678"):
            stream.sendall(request(b'{"id":"' + number + b'","inputs":[]}' + b"x" * 30))
            self.assertIn(b'{"id":"' + number + b'","outputs"', bare.receive(stream))
        stream.sendall(request(b'{"id":"","inputs":[]}' + b"x" * 30))
        self.assertEqual(bare.receive(stream), UNNAMED)
        stream.sendall(request(b'{"id":"123456789","inputs":[]}' + b"x" * 30))
        self.assertEqual(bare.receive(stream), MISSING)

    def test_the_id_may_come_behind_the_head(self) -> None:
        stream = self.connect()
        whole = request(b'{"id":"31","inputs":[]}' + b"x" * 30)
        body = whole.index(bare.HEAD_END) + len(bare.HEAD_END)
        for at in (body, body + len('{"id":"3')):
            self.send_in_parts(stream, [whole[:at], whole[at:]])
            self.assertIn(b'{"id":"31","outputs"', bare.receive(stream))

    def test_only_exact_paths_are_known(self) -> None:
        stream = self.connect()
        for prefix in (b"GET /v2/models/m/infer ", b"POST /v2/models/m/inference ", b"GET / "):
            stream.sendall(get(prefix))
            self.assertEqual(bare.receive(stream), MISSING)
        self.assertEqual(self.counted(), 0)

    def test_many_connections(self) -> None:
        streams = [self.connect() for _ in range(200)]
        for _ in range(2):
            for number, stream in enumerate(streams):
                stream.sendall(request(b'{"id":"%d","inputs":[]}' % number + b"x" * 30))
            for number, stream in enumerate(streams):
                self.assertIn(b'{"id":"%d",' % number, bare.receive(stream))
        self.assertEqual(self.counted(), 400)

    def test_who_leaves_takes_half_a_request_along(self) -> None:
        first = self.connect()
        self.send_in_parts(first, [request(b"x" * 100)[:-1]])
        long = self.connect()
        self.send_in_parts(long, [request(b"x" * 3 * BUFFER_BYTES)[: 2 * BUFFER_BYTES]])
        first.close()
        long.close()
        self.counted()
        for stream in [self.connect() for _ in range(5)]:
            stream.sendall(request(b"x"))
            self.assertEqual(bare.receive(stream), UNNAMED)
        self.assertEqual(self.counted(), 5)

    def test_a_request_is_answered_though_its_client_sends_no_more(self) -> None:
        stream = self.connect()
        self.counted()
        # The loop is stopped, so that the request and the end are one event.
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)
        stream.sendall(request(b"x"))
        stream.shutdown(socket.SHUT_WR)
        os.kill(self.pid, signal.SIGCONT)
        self.assertEqual(bare.receive(stream), UNNAMED)
        self.assertTrue(self.ended(stream))

    def test_a_head_without_end_costs_the_connection(self) -> None:
        stream = self.connect()
        stream.sendall(b"x" * BUFFER_BYTES)
        self.assertTrue(self.ended(stream))
        self.assertEqual(self.counted(), 0)

    def test_what_is_recorded_is_what_was_answered(self) -> None:
        known = dict(request_body.INPUTS, m=request_body.INPUTS["identity"])
        outputs = dict(request_body.OUTPUTS, m=("OUTPUT0",))
        copy = self.work / "copy"
        with mock.patch.object(request_body, "INPUTS", known):
            with mock.patch.object(request_body, "OUTPUTS", outputs):
                bare.record(f"127.0.0.1:{self.port}", "m", copy)
        requests = [
            *(request(b'{"id":"%d","inputs":[]}' % each + b"x" * 30) for each in (1, 10, 99_999)),
            request(b"x"),
            get(HEALTH),
            get(b"GET /v2 "),
        ]
        with self.running(copy) as (port, _):
            for each in requests:
                seen = []
                for one in (self.port, port):
                    with socket.create_connection(("127.0.0.1", one), TIMEOUT_SECONDS) as stream:
                        stream.sendall(each)
                        seen.append(bare.receive(stream))
                self.assertEqual(seen[0], seen[1])
            copied = server.Server(mock.Mock(pid=0), port, port).counts("m")
        # The recorded server counts the recorded requests, the copy doesn't.
        self.assertEqual(copied, server.ModelCounts(4, 7, 4, 4))
        self.assertEqual(self.counted(), bare.ID_DIGITS_MAX + 1 + 4)

    def test_a_model_that_does_not_answer_is_not_recorded(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "no inference to record"):
            bare.record(f"127.0.0.1:{self.port}", "identity", self.work / "none")


class Recording(unittest.TestCase):
    def test_statistics_have_room_for_counts_and_their_new_length(self) -> None:
        text = bare.counting(response(STATS_BODY))
        head, _, body = text.partition(bare.HEAD_END)
        self.assertIn(b"Content-Length: %d" % len(body), head)
        self.assertEqual(len(re.findall(rb'count":#{20}[,}]', body)), 7)
        document = json.loads(body.replace(bare.COUNT.encode(), b"3".rjust(20)))
        self.assertEqual(document["model_stats"][0]["inference_stats"]["queue"]["count"], 3)
        self.assertEqual(document["model_stats"][0]["inference_stats"]["fail"]["count"], 7)

    def test_a_body_may_carry_an_id(self) -> None:
        body, length = request_body.http_body("simple", "12")
        self.assertTrue(body.startswith(b'{"id":"12","inputs":['))
        self.assertEqual(len(body) - length, 128)
        self.assertNotIn(b'"id"', request_body.http_body("simple")[0])


class Comparing(unittest.TestCase):
    def test_rows_that_are_compared(self) -> None:
        every = [each for each in workloads.all_workloads() if isinstance(each, workloads.Load)]
        chosen = {each.name for each in every if each.compare_bare}
        self.assertEqual(chosen, set(workloads.COMPARED_WITH_A_BARE_LOOP))
        for each in every:
            if each.compare_bare:
                self.assertEqual(each.protocol, "http")
                self.assertIn(each.model, request_body.INPUTS)

    def test_columns(self) -> None:
        rounds = [{"throughput": 90.0, "cpu_us": 20.0}, {"throughput": 80.0, "cpu_us": 30.0}]
        sides: dict[str, report.Rounds] = {
            "galatea": [dict(each) for each in rounds],
            "triton": [{"throughput": 50.0, "cpu_us": 40.0}, {"throughput": 40.0, "cpu_us": 80.0}],
            report.BARE: [{"throughput": 100.0, "cpu_us": 10.0, "client_core": 0.95}, {}],
        }
        for number in range(2):
            report.share_of_loop({name: side[number] for name, side in sides.items()})
        text = report.table({"row": sides})
        self.assertIn("| of a bare loop ↑ |", text)
        self.assertIn("| 0.90 / 0.50 = **1.80** |", text)
        self.assertIn("| CPU µs/request ↓ | CPU µs/request of a bare loop ↓ |", text)
        self.assertIn("| 25.0 / 60.0 = **0.44** | 10.0 / 60.0 = **0.25** |", text)
        self.assertIn("client-bound (bare loop)", text)
        self.assertEqual(report.summary({"row": sides})["row"]["cpu_us"][report.BARE], 10.0)

    def test_other_rows_have_no_such_columns(self) -> None:
        sides: dict[str, report.Rounds] = {
            "galatea": [{"cpu_us": 1.0}],
            "triton": [{"cpu_us": 2.0}],
        }
        self.assertNotIn("bare", report.table({"row": sides}))

    def test_the_loop_takes_its_turn_in_each_round(self) -> None:
        load = workloads.Load("l", "identity", "http", 1, compare_bare=True)
        work = pathlib.Path("work")
        bench = mock.Mock(work=work)
        turns: list[tuple[str, object]] = []

        def measured(_: object, program: server.Program, __: object, path: object) -> dict:
            turns.append((program.name, path))
            return {"throughput": 50.0}

        def looped(_: object, __: object, path: object) -> dict:
            turns.append((report.BARE, path))
            return {"throughput": 100.0}

        programs = [server.Program(name, ()) for name in (report.OURS, report.TRITON)]
        one = run.Run(bench, programs)
        with mock.patch.object(measure, "measure", measured):
            with mock.patch.object(measure, "measure_bare", looped), mock.patch("builtins.print"):
                one.workload(load, 2)
        path = work / "answers"
        turn = [(report.OURS, path), (report.TRITON, None), (report.BARE, path)]
        self.assertEqual(turns, turn * 2)
        self.assertEqual([each["bare"] for each in one.results["l"][report.TRITON]], [0.5, 0.5])


if __name__ == "__main__":
    unittest.main()
