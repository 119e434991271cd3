"""Compares the cost of the endpoint for clients of OpenAI with that of Triton's own frontend.

    git clone https://github.com/triton-inference-server/server
    pip install -r server/python/openai/requirements.txt transformers uvicorn
    pip install python/dist/galatea-*.whl python/dist/galatea_tritonserver-*.whl
    cc -std=gnu11 -shared -fPIC -O2 -Iinclude examples/backends/words.c -o libtriton_words.so
    python bench/openai.py --galatea target/release/galatea --library libtriton_words.so \\
        --frontend server/python/openai/openai_frontend --frontend-python "$(which python)"

Triton's frontend is a Python program over the bindings of a server. Here, the bindings are those of
this repository (docs/python_api.md), so that both serve the same models by the same code, and only
the frontend differs. The model is `words` of examples/backends, a C backend that repeats the
prompt's words and costs next to nothing. Without `--library`, it is a Python model that does the same
in a worker process, whose processor time isn't counted.

Each server has one core, and the clients have the other. The table shows ours / Triton's = ratio,
each the median over the rounds: processor time of the server's process per token and per request, and
the time until a stream's first token. See bench/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator

from harness import process

HOST = "127.0.0.1"
STREAMS = (1, 8, 64)
#: The tokens of each stream.
LENGTHS = (10, 500)
#: How long each combination is measured, at least. The kernel counts in hundredths of a second.
SECONDS = 3.0
SECONDS_MAX = 60.0
EVENT, LAST_CHUNK = b"data: ", b"\r\n0\r\n\r\n"
INPUTS = {
    "text_input": "STRING",
    "max_tokens": "INT32",
    "stream": "BOOL",
    "exclude_input_in_output": "BOOL",
    "temperature": "FP32",
    "top_p": "FP32",
    "frequency_penalty": "FP32",
    "presence_penalty": "FP32",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
}
#: A model that repeats the words of its prompt.
PYTHON_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy().item() for tensor in request.inputs()}
            words = inputs["text_input"].split()
            sender = request.get_response_sender()
            for number in range(inputs["max_tokens"]):
                text = np.array([[words[number % len(words)]]], dtype=object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = "".join(
    f'input {{ name: "{name}" data_type: TYPE_{kind} dims: [ 1 ] optional: true }}\n'
    for name, kind in INPUTS.items()
) + """\
backend: "words"
max_batch_size: 1
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
model_transaction_policy { decoupled: true }
instance_group { count: 1 kind: KIND_CPU }
"""


@dataclasses.dataclass(frozen=True)
class Figures:
    """The costs of a stream."""

    token_us: float
    request_us: float
    first_token_ms: float


class Client:
    """A connection, which is used again for each stream, as the libraries of clients do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def stream(self, tokens: int) -> tuple[float, int]:
        """Streams a completion. Returns the time of the first event, and the number of events."""
        body = json.dumps({
            "model": "words", "prompt": "a b c d e f g h", "max_tokens": tokens, "stream": True,
        }).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        began = time.monotonic()
        self._writer.write(head.encode() + body)
        first, events, rest = 0.0, 0, b""
        while not rest.endswith(LAST_CHUNK):
            chunk = await self._reader.read(1 << 16)
            if not chunk:
                raise RuntimeError("the connection is closed")
            text = rest + chunk
            # A chunk may end within the word.
            events += text.count(EVENT) - rest.count(EVENT)
            rest = text[-max(len(EVENT), len(LAST_CHUNK)) :]
            first = first or (time.monotonic() - began if events else 0.0)
        # The last two events are an empty text and the end of the stream.
        return first, events - 2

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()


async def connect(port: int) -> Client:
    """A new connection."""
    return Client(*await asyncio.open_connection(HOST, port))


async def streams(port: int, tokens: int, at_once: int, seconds: float) -> list[float]:
    """Streams completions, some at once, for a while. Returns the times of their first events."""
    end = time.monotonic() + seconds
    firsts: list[float] = []

    async def client() -> None:
        connection = await connect(port)
        while True:
            first, events = await connection.stream(tokens)
            assert events == tokens, f"{events} events for {tokens} tokens"
            firsts.append(first)
            if time.monotonic() > end:
                return connection.close()

    await asyncio.gather(*(client() for _ in range(at_once)))
    return firsts


def cpu_seconds(pid: int) -> float:
    """The processor time of a process so far."""
    usage = process.usage(pid)
    return usage.user + usage.kernel


def measure(pid: int, port: int, tokens: int, at_once: int) -> Figures:
    """Measures one combination."""
    asyncio.run(streams(port, tokens, at_once, 0.0))
    before = cpu_seconds(pid)
    firsts = asyncio.run(streams(port, tokens, at_once, SECONDS))
    seconds = cpu_seconds(pid) - before
    return Figures(
        token_us=seconds / (len(firsts) * tokens) * 1e6,
        request_us=seconds / len(firsts) * 1e6,
        first_token_ms=statistics.median(firsts) * 1e3,
    )


def free_ports(count: int) -> list[int]:
    """Ports that nothing uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]


def is_ready(port: int) -> bool:
    """True if the model generates."""

    async def attempt() -> bool:
        connection = await connect(port)
        try:
            return (await asyncio.wait_for(connection.stream(2), SECONDS_MAX))[1] >= 1
        finally:
            connection.close()

    try:
        return asyncio.run(attempt())
    except (OSError, RuntimeError, TimeoutError):
        return False


@contextlib.contextmanager
def running(command: list[str], core: int, port: int, log: pathlib.Path) -> Iterator[int]:
    """A server on one core; the process's id."""
    pinned = ["taskset", "-c", str(core), *command]
    with log.open("wb") as output, subprocess.Popen(
        pinned, stdout=output, stderr=subprocess.STDOUT
    ) as child:
        try:
            deadline = time.monotonic() + SECONDS_MAX
            while not is_ready(port):
                if child.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server doesn't start: {log.read_text()[-2000:]}")
                time.sleep(0.2)
            yield child.pid
        finally:
            child.kill()


def commands(options: argparse.Namespace, repository: pathlib.Path) -> dict[str, list[str]]:
    """The servers, without the port of the endpoint."""
    http, grpc, metrics = map(str, free_ports(3))
    ours = [
        str(options.galatea), f"--model-repository={repository}", f"--http-port={http}",
        f"--grpc-port={grpc}", f"--metrics-port={metrics}",
    ]
    main = str(options.frontend / "main.py")
    theirs = [str(options.frontend_python), main, f"--model-repository={repository}"]
    return {"ours": ours, "theirs": theirs}


def rounds(
    options: argparse.Namespace, folder: pathlib.Path
) -> dict[tuple[int, int], list[tuple[Figures, Figures]]]:
    """The figures of both servers for each length and number of streams."""
    version = folder / "models" / "words" / "1"
    version.mkdir(parents=True)
    config = CONFIG
    if options.library is None:
        config = config.replace('"words"', '"python"')
        (version / "model.py").write_text(PYTHON_MODEL)
    else:
        shutil.copy(options.library, version.parent)
    (version.parent / "config.pbtxt").write_text(config)
    results: dict[tuple[int, int], list[tuple[Figures, Figures]]] = {}
    server_core, client_core = options.cores
    os.sched_setaffinity(0, {client_core})
    for _ in range(options.rounds):
        found: dict[str, dict[tuple[int, int], Figures]] = {}
        for name, command in commands(options, folder / "models").items():
            [port] = free_ports(1)
            flag = [f"--openai-port={port}"]
            with running(command + flag, server_core, port, folder / f"{name}.log") as pid:
                found[name] = {
                    (tokens, at_once): measure(pid, port, tokens, at_once)
                    for tokens in LENGTHS
                    for at_once in STREAMS
                }
        for key, ours in found["ours"].items():
            results.setdefault(key, []).append((ours, found["theirs"][key]))
    return results


def cell(pairs: list[tuple[Figures, Figures]], figure: str, digits: int) -> str:
    """Ours / theirs = ratio, each the median."""
    values = [(getattr(ours, figure), getattr(theirs, figure)) for ours, theirs in pairs]
    ours, theirs = (statistics.median(column) for column in zip(*values))
    ratio = statistics.median(one / other for one, other in values)
    return f"{ours:,.{digits}f} / {theirs:,.{digits}f} = **{ratio:.3f}**"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--galatea", type=pathlib.Path, required=True)
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--frontend", type=pathlib.Path, required=True)
    parser.add_argument("--frontend-python", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), metavar="CORE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = rounds(options, pathlib.Path(folder))
    print("| tokens | streams | CPU µs/token ↓ | CPU µs/request ↓ | first token p50 ms ↓ |")
    print("|---|---|---|---|---|")
    for (tokens, at_once), pairs in results.items():
        cells = [cell(pairs, "token_us", 1), cell(pairs, "request_us", 0)]
        cells.append(cell(pairs, "first_token_ms", 2))
        print(f"| {tokens} | {at_once} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
