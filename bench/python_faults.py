"""Measures how other models are affected while a Python model's worker dies repeatedly.

    .cache/venv-tests/bin/python bench/python_faults.py --galatea target/release/galatea

It sends 200 requests per second to one model, first alone, then while another model's worker is
killed, corrupts its memory, and loops forever. It prints the error rate and the 99th percentile
of both models, and the time from the end of the worker until its model's first successful
response. See bench/README.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "clients"), str(ROOT / "examples")]

# pylint: disable=wrong-import-position
from conftest import find_onnxruntime_library  # noqa: E402
from python_backend import interpreter_flag, tensors, write_model  # noqa: E402
from server import Program, Server  # noqa: E402

REQUESTS_PER_SECOND = 200
CONNECTIONS = 8
#: What the worker of the other model does, and the limit of its executions.
WAYS = ["kill", "segfault", "loop"]
LOOP_SECONDS_MAX = 1
#: Between two deaths.
REST_SECONDS = 1.0
TEXTS = tensors("IN:STRING:1", "OUT:STRING:1")


def body(way: str) -> bytes:
    """A request that makes the model do something."""
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [way]}
    return json.dumps({"inputs": [tensor]}).encode()


def ask(connection: http.client.HTTPConnection, model: str, way: str) -> int:
    """Sends a request, and returns the status."""
    connection.request("POST", f"/v2/models/{model}/infer", body(way))
    reply = connection.getresponse()
    reply.read()
    return reply.status


class Load:
    """Sends requests to a model at a fixed rate, even if earlier requests have no response
    yet."""

    def __init__(self, server: Server, seconds: float) -> None:
        self._server = server
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._next = time.monotonic()
        self.latencies: list[float] = []
        self.errors = 0
        self._threads = [threading.Thread(target=self._send) for _ in range(CONNECTIONS)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=60)
        while True:
            with self._lock:
                turn, self._next = self._next, self._next + 1 / REQUESTS_PER_SECOND
            if turn >= self._end:
                return
            time.sleep(max(0.0, turn - time.monotonic()))
            status = ask(connection, "good", "pid")
            with self._lock:
                # The latency starts when the request was due, so a stall counts for every
                # request that it delays.
                self.latencies.append(time.monotonic() - turn)
                self.errors += status != 200

    def wait(self) -> str:
        """Waits for the end, and returns the results."""
        for thread in self._threads:
            thread.join()
        p50, p99 = (statistics.quantiles(self.latencies, n=100)[one] for one in (49, 98))
        count = len(self.latencies)
        return (
            f"{count} requests, {self.errors} errors, "
            f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms"
        )


def die(server: Server, way: str) -> float:
    """Makes the other model's worker die, and returns how long the model is unavailable."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    assert ask(connection, "faults", way) == 500, way
    # The response comes when the worker ends.
    ended = time.monotonic()
    while ask(connection, "faults", "pid") != 200:
        time.sleep(0.001)
    return time.monotonic() - ended


def measure(server: Server, seconds: float) -> None:
    """Prints the figures."""
    Load(server, 2).wait()
    print("alone:      ", Load(server, seconds).wait(), flush=True)
    for way in WAYS:
        load = Load(server, seconds)
        end = time.monotonic() + seconds - LOOP_SECONDS_MAX - REST_SECONDS
        away = []
        while time.monotonic() < end:
            away.append(die(server, way))
            time.sleep(REST_SECONDS)
        print(f"{way + ':':12} {load.wait()}; {len(away)} deaths, back after "
              f"{statistics.median(away) * 1e3:.0f} ms, at most {max(away) * 1e3:.0f} ms",
              flush=True)


def main() -> None:
    """Starts a server, and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--galatea", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    program = Program(arguments.galatea.resolve(), find_onnxruntime_library(), False)
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder) / "models"
        for name in ("good", "faults"):
            write_model(repository, name, TEXTS, "faults")
        timeout = f"--backend-config=python,execute-timeout-seconds={LOOP_SECONDS_MAX}"
        log = pathlib.Path(folder) / "log"
        server = Server(program, repository, log, [interpreter_flag(), timeout])
        try:
            measure(server.wait_until_ready(), arguments.seconds)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
