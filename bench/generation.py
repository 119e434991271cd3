"""Measures tokens per second of a model in a GGUF file, next to the server of its package.

    python bench/generation.py MODEL.gguf --galatea target/release/galatea

Run it with a Python that has `xllamacpp`. Both servers run the whole time with the same settings and
the same number of slots, and get the same load in turn, so that both see the same machine. See
bench/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

SLOTS = 8
CONTEXT = 512
START_SECONDS_MAX = 120.0
REQUEST_SECONDS_MAX = 600.0
PROMPT = "Write a long story about a lighthouse and the people who lived in it."

#: Runs the package's own HTTP server with the settings of Galatea's backend.
PEER = """
import sys, time, xllamacpp
path, port, slots, context, threads = sys.argv[1], *map(int, sys.argv[2:])
settings = xllamacpp.CommonParams()
settings.model.path = path
settings.port = port
settings.n_parallel, settings.n_ctx, settings.kv_unified = slots, slots * context, False
settings.n_batch = settings.n_ubatch = 512
for one in (settings.cpuparams, settings.cpuparams_batch):
    one.n_threads, one.poll = threads, 0
settings.cache_ram_mib, settings.fit_params, settings.verbosity = 0, False, 1
server = xllamacpp.Server(settings)
time.sleep(1_000_000)
"""


@dataclasses.dataclass(frozen=True)
class Load:
    """What a load measured."""

    tokens_per_second: float
    cpu_ms_per_token: float


class Target:
    """A server under load."""

    def __init__(self, name: str, port: int, model: str, process: int) -> None:
        self.name = name
        self._port = port
        self._model = model
        self._process = process

    def is_ready(self) -> bool:
        """Returns true if a short text can be generated."""
        try:
            return self.generate(1) == 1
        except (OSError, AssertionError, http.client.HTTPException, ValueError):
            return False

    def generate(self, tokens: int) -> int:
        """Streams a text of this length. Returns the number of tokens that the server counted."""
        body = {
            "model": self._model,
            "prompt": PROMPT,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=REQUEST_SECONDS_MAX
        )
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            counted = 0
            for line in response:
                event = line.strip().removeprefix(b"data: ")
                if event and event != b"[DONE]":
                    usage = json.loads(event).get("usage")
                    counted = usage["completion_tokens"] if usage else counted
        return counted

    def load(self, clients: int, tokens: int) -> Load:
        """Lets several clients stream one text each."""
        counted: list[int] = []
        threads = [
            threading.Thread(target=lambda: counted.append(self.generate(tokens)))
            for _ in range(clients)
        ]
        start, cpu = time.monotonic(), cpu_seconds(self._process)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds, cpu = time.monotonic() - start, cpu_seconds(self._process) - cpu
        assert counted == [tokens] * clients, counted
        return Load(sum(counted) / seconds, 1000 * cpu / sum(counted))


def cpu_seconds(process: int) -> float:
    """The CPU time of a process and its children, to the hundredth of a second."""
    parents, times = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rsplit(")", 1)[1].split()
            number = int(path.parent.name)
            parents[number] = int(fields[1])
            times[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = {process}
    while True:
        more = {one for one, parent in parents.items() if parent in family} - family
        if not more:
            return sum(times[one] for one in family)
        family |= more


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program, and ends it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def write_repository(folder: pathlib.Path, model: pathlib.Path, threads: int) -> None:
    """A repository with the model."""
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "1" / "model.gguf").symlink_to(model.resolve())
    parameters = "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
        for name, value in {"n_ctx": CONTEXT, "threads": threads}.items()
    )
    config = f"instance_group {{ count: {SLOTS} kind: KIND_CPU }}\n{parameters}"
    (folder / "m" / "config.pbtxt").write_text(config)


def wait(target: Target, process: subprocess.Popen[bytes]) -> None:
    """Waits until a server generates."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not target.is_ready():
        assert process.poll() is None, f"{target.name} has ended"
        assert time.monotonic() < deadline, f"{target.name} isn't ready"
        time.sleep(0.2)


def measure(targets: list[Target], clients: int, tokens: int, rounds: int) -> str:
    """Loads both servers in turn; returns a row of the table."""
    loads: dict[str, list[Load]] = {target.name: [] for target in targets}
    for number in range(rounds):
        order = targets if number % 2 == 0 else targets[::-1]
        for target in order:
            loads[target.name].append(target.load(clients, tokens))
    ours, peer = (loads[target.name] for target in targets)
    cells = [str(clients)]
    for name in ("tokens_per_second", "cpu_ms_per_token"):
        pairs = [(getattr(one, name), getattr(other, name)) for one, other in zip(ours, peer)]
        middles = [statistics.median(column) for column in zip(*pairs)]
        ratios = sorted(one / other for one, other in pairs)
        quarter = len(ratios) // 4
        cells.append(f"{middles[0]:.1f} / {middles[1]:.1f} = **{statistics.median(ratios):.3f}**")
        cells.append(f"{ratios[quarter]:.3f}–{ratios[-1 - quarter]:.3f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--galatea", type=pathlib.Path, default="target/release/galatea")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_repository(folder, options.model, options.threads)
        ports = [free_port() for _ in range(5)]
        names = ("http", "grpc", "metrics", "openai")
        flags = [f"--{name}-port={port}" for name, port in zip(names, ports)]
        server = stack.enter_context(
            running(
                [
                    str(options.galatea),
                    f"--model-repository={folder}",
                    f"--backend-config=python,interpreter={sys.executable}",
                    "--log-info=false",
                    *flags,
                ]
            )
        )
        numbers = (ports[4], SLOTS, CONTEXT, options.threads)
        script = [sys.executable, "-c", PEER, str(options.model), *map(str, numbers)]
        package = stack.enter_context(running(script))
        targets = [
            Target("galatea", ports[3], "m", server.pid),
            Target("package", ports[4], "m", package.pid),
        ]
        for target, process in zip(targets, (server, package)):
            wait(target, process)
        print("| clients | tokens/s ↑ | middle half | CPU ms/token ↓ | middle half |")
        print("|---|---|---|---|---|")
        for clients in options.clients:
            row = measure(targets, clients, options.tokens, options.rounds)
            print(row, flush=True)


if __name__ == "__main__":
    main()
