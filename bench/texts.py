"""Compares text models with the same network and tokenizer in Python, and in an ensemble.

    python bench/texts.py --galatea PROGRAM --rounds 3 --duration 8
    python bench/texts.py --triton COMMAND --triton-backends DIR
    python bench/texts.py --text-embeddings-inference COMMAND

MiniLM embeds English text on one core, with one thread. ONNX Runtime is driven directly from
Python, with all texts converted, sorted by length and pooled there. The ensemble has a Python model
that converts texts, and the network with pooling inside; with --triton, Triton serves the same
ensemble. With --text-embeddings-inference, that server embeds the texts with the same files. The
script accepts the options of run.py. See bench/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import statistics
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

# pylint: disable=wrong-import-position
import numpy  # noqa: E402
import run  # noqa: E402
from example_models import minilm  # noqa: E402
from harness import http_load, process, report, sentences, server, text_direct  # noqa: E402

TEXTS = 400
#: Name of the load, clients, and texts in each request.
LOADS = [("64 clients, 1 text", 64, 1), ("8 clients, 1 text", 8, 1), ("4 clients, 32 texts", 4, 32)]
WARM_SECONDS = 1.5
TEI = "text-embeddings-inference"
ONE_THREAD = "".join(
    f'parameters {{ key: "{key}" value {{ string_value: "1" }} }}\n'
    for key in ("intra_op_thread_count", "inter_op_thread_count")
)
TOKENIZE = '''
import json
import pathlib

import numpy
import tokenizers
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = pathlib.Path(args["model_repository"]) / args["model_version"]
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(256)

    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            encoded = self.tokenizer.encode_batch([one.decode() for one in given.ravel()])
            shape = (len(encoded), max(len(one.ids) for one in encoded))
            ids, mask = numpy.zeros(shape, numpy.int64), numpy.zeros(shape, numpy.int64)
            for row, one in enumerate(encoded):
                ids[row, : len(one.ids)] = one.ids
                mask[row, : len(one.ids)] = 1
            tensors = {"ids": ids, "mask": mask, "types": numpy.zeros(shape, numpy.int64)}
            responses.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, data) for name, data in tensors.items()]
            ))
        return responses
'''


@dataclasses.dataclass(frozen=True)
class Side:
    """A model that embeds texts."""

    name: str
    program: str
    model: str
    output: str


SIDES = [
    Side("text model", report.OURS, "texts", "embedding"),
    Side("ensemble with a Python tokenizer", report.OURS, "ensemble", "sentence_embedding"),
    Side("the same ensemble in Triton", report.TRITON, "ensemble", "sentence_embedding"),
    Side("text-embeddings-inference", TEI, "", ""),
]


def tensor(kind: str, name: str, datatype: str, dims: str) -> str:
    """An input or output of a configuration."""
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}\n'


def write_repository(folder: pathlib.Path) -> None:
    """The text model, and the ensemble with its steps."""
    published = minilm.model_directory()
    version = folder / "texts" / "1"
    shutil.copytree(published, version, ignore=shutil.ignore_patterns("*.safetensors"))
    (version / "model.onnx").write_bytes(text_direct.token_network())
    (folder / "texts" / "config.pbtxt").write_text(f'backend: "text"\n{ONE_THREAD}')
    version = folder / "tokenize" / "1"
    version.mkdir(parents=True)
    shutil.copy(published / "tokenizer.json", version)
    (version / "model.py").write_text(TOKENIZE)
    tokens = ("ids", "mask", "types")
    listed = "".join(tensor("output", name, "INT64", "-1") for name in tokens)
    (folder / "tokenize" / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: 64\n{tensor("input", "text", "STRING", "1")}{listed}'
        "dynamic_batching { }\n"
    )
    example = minilm.minilm()
    version = folder / "minilm" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(example.versions[1])
    (folder / "minilm" / "config.pbtxt").write_text(example.config + ONE_THREAD)
    maps = "".join(f'output_map {{ key: "{name}" value: "{name}" }}\n' for name in tokens)
    inputs = zip(("input_ids", "attention_mask", "token_type_ids"), tokens, strict=True)
    given = "".join(f'input_map {{ key: "{key}" value: "{value}" }}\n' for key, value in inputs)
    output = 'output_map { key: "sentence_embedding" value: "sentence_embedding" }\n'
    (folder / "ensemble" / "1").mkdir(parents=True)
    (folder / "ensemble" / "config.pbtxt").write_text(
        f'platform: "ensemble"\nmax_batch_size: 32\n{tensor("input", "text", "STRING", "1")}'
        f'{tensor("output", "sentence_embedding", "FP32", "384")}ensemble_scheduling {{\n'
        'step { model_name: "tokenize" model_version: -1\n'
        f'input_map {{ key: "text" value: "text" }}\n{maps}}}\n'
        f'step {{ model_name: "minilm" model_version: -1\n{given}{output}}}\n}}\n'
    )


def request(side: Side, texts: Sequence[str]) -> bytes:
    """A request over HTTP. The servers of KServe's protocol respond with a binary output."""
    path, value = f"/v2/models/{side.model}/infer", {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts), 1],
                    "data": list(texts)}],
        "outputs": [{"name": side.output, "parameters": {"binary_data": True}}],
    }
    if side.program == TEI:
        path, value = "/embed", {"inputs": list(texts)}
    body = json.dumps(value).encode()
    lines = (f"POST {path} HTTP/1.1", "Host: bench", "Content-Type: application/json",
             f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


def least_cosine(
    side: Side, done: Sequence[http_load.Done], count: int, expected: numpy.ndarray
) -> float:
    """The least cosine similarity to the reference. Request N has the texts from N on."""
    least = 1.0
    for one in done:
        size = count * 384
        if side.program == TEI:
            found = numpy.array(json.loads(one.body), numpy.float32)
        else:
            found = numpy.frombuffer(one.body[-4 * size:], numpy.float32).reshape(count, 384)
        places = [(one.number + place) % TEXTS for place in range(count)]
        least = min(least, float((found * expected[places]).sum(axis=1).min()))
    return least


class Embeddings:
    """A running server of text-embeddings-inference."""

    def __init__(self, child: subprocess.Popen[bytes], port: int) -> None:
        self._child = child
        self._port = port
        self.pid = child.pid

    def address(self, _protocol: str) -> str:
        """The host and port."""
        return f"{server.HOST}:{self._port}"

    def wait_ready(self) -> None:
        """Waits until the network is loaded and has embedded a text."""
        deadline = time.monotonic() + server.READY_DEADLINE_SECONDS
        while time.monotonic() < deadline and self._child.poll() is None:
            with contextlib.suppress(urllib.error.URLError, OSError):
                with urllib.request.urlopen(f"http://{self.address('http')}/health") as response:
                    if response.status == 200:
                        return
            time.sleep(0.05)
        raise RuntimeError("text-embeddings-inference isn't ready; its log has the reason")


@contextlib.contextmanager
def embeddings(options: argparse.Namespace, network: pathlib.Path, log: pathlib.Path
               ) -> Iterator[Embeddings]:
    """Starts text-embeddings-inference on the server's core, and ends it."""
    (port,) = server.free_ports(1)
    command = [*shlex.split(options.text_embeddings_inference), "--model-id", str(network),
               "--hostname", server.HOST, "--port", str(port), "--tokenization-workers", "1"]
    library = {"ORT_DYLIB_PATH": options.onnxruntime_library}
    with log.open("wb") as output, subprocess.Popen(
        ["taskset", "-c", str(options.server_core), *command], stdout=output,
        stderr=subprocess.STDOUT, env={**os.environ, **library},
    ) as child:
        try:
            running = Embeddings(child, port)
            running.wait_ready()
            yield running
        finally:
            child.terminate()


def start(
    stack: contextlib.ExitStack, options: argparse.Namespace, work: pathlib.Path
) -> dict[str, server.Server | Embeddings]:
    """Starts the servers by their names. Triton has no text models."""
    shutil.copytree(work / "models", work / "ensemble", ignore=shutil.ignore_patterns("texts"))
    servers: dict[str, server.Server | Embeddings] = {}
    for program in run.programs(options, work):
        repository = work / ("models" if program.name == report.OURS else "ensemble")
        log = work / f"{program.name}.log"
        running = server.running(program, repository, options.server_core, log)
        servers[program.name] = stack.enter_context(running)
    if options.text_embeddings_inference:
        network, log = work / "models" / "texts" / "1", work / "embeddings.log"
        servers[TEI] = stack.enter_context(embeddings(options, network, log))
    return servers


def main() -> None:
    """Measures and prints."""
    parser = run.parser()
    parser.add_argument("--text-embeddings-inference", metavar="COMMAND",
                        help="command line that starts text-embeddings-router; flags follow it")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.load_core})
    texts = sentences.mixed(TEXTS)
    rates: dict[tuple[str, str], list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="galatea-bench-"))
        work = pathlib.Path(place)
        write_repository(work / "models")
        listed, expected = work / "texts.json", work / "expected.npy"
        listed.write_text(json.dumps(texts))
        network = work / "models" / "texts" / "1"
        command = ["taskset", "-c", str(options.server_core), sys.executable,
                   str(HERE / "harness/text_direct.py"), str(network), str(listed)]
        subprocess.run([*command, "0", str(expected)], check=True, stdout=subprocess.DEVNULL)
        reference = numpy.load(expected)
        servers = start(stack, options, work)
        sides = [side for side in SIDES if side.program in servers]
        for number in range(options.rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                running = servers[side.program]
                for load, clients, count in LOADS:
                    bodies = [
                        request(side, [texts[(first + place) % TEXTS] for place in range(count)])
                        for first in range(TEXTS)
                    ]
                    cpu = functools.partial(cpu_of, running.pid)
                    plan = http_load.Plan(running.address("http"), bodies, WARM_SECONDS,
                                          options.duration, cpu, number + 1)
                    window = http_load.closed(plan, clients)
                    rates.setdefault((load, side.name), []).append({
                        "texts/s": window.rate() * count,
                        "CPU ms/text": window.cpu * 1e3 / len(window.finished) / count,
                        "p99 ms": window.latency(0.99) * 1e3,
                        "cosine": least_cosine(side, window.done, count, reference),
                    })
                    print(load, side.name, rates[load, side.name][-1], file=sys.stderr, flush=True)
            done = subprocess.run([*command, str(options.duration)], capture_output=True, text=True,
                                  check=True)
            rates.setdefault(("all texts at once", "Python, sorted"), []).append(
                json.loads(done.stdout)
            )
            print("Python, sorted", done.stdout, file=sys.stderr, flush=True)
    for (load, name), rounds in rates.items():
        values = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        cells = " | ".join(f"{value:.6g}" for value in values.values())
        print(f"| {load} | {name} | {cells} |")


def cpu_of(pid: int) -> float:
    """The CPU time of the server and its workers so far, in seconds."""
    used = [process.usage(one) for one in (pid, *process.descendants(pid))]
    return sum(one.user + one.kernel for one in used)


if __name__ == "__main__":
    main()
