"""Compares the same networks in the formats of several frameworks, with and without a server.

    python bench/runtimes.py --torch-python FILE --torch-library FILE ...

PyTorch, OpenVINO and TensorFlow write three networks with the same weights: a small network of
layers, a convolutional network and a small transformer. Each is served on one core and receives
requests from the other core, with one row per request. Then the framework runs on the server's core
without a server. Formats whose options are missing are skipped. See bench/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

# pylint: disable=wrong-import-position
import numpy  # noqa: E402
import run  # noqa: E402
from harness import h2load, http_load, process, runtime_models, server  # noqa: E402
from harness.generator import Generator, Plan  # noqa: E402

CLIENTS = (1, 8)
#: OpenVINO computes with 16 bits where the processor has instructions for it.
TOLERANCE = 2e-2


@dataclasses.dataclass(frozen=True)
class Form:
    """A format of model files, and the backend that serves it."""

    name: str
    #: The framework whose Python writes it and runs it alone.
    framework: str
    file: str
    config: str
    #: The option of the server that names the library.
    flag: str


FORMS = [
    Form("onnx", "onnxruntime", "model.onnx", 'backend: "onnxruntime"', "--onnxruntime-library"),
    Form("openvino", "openvino", "model.xml", 'backend: "openvino"', "--openvino-library"),
    Form("torchscript", "torch", "model.pt", 'platform: "pytorch_libtorch"', "--torch-library"),
    Form("aoti", "torch", "model.pt2", 'platform: "torch_aoti"', "--torch-library"),
    Form("savedmodel", "tensorflow", "model.savedmodel", 'platform: "tensorflow_savedmodel"',
         "--tensorflow-library"),
]
#: Settings by which each backend has one thread.
ONE_THREAD = {
    "onnx": ["intra_op_thread_count", "inter_op_thread_count"],
    "openvino": ["INFERENCE_NUM_THREADS"],
    "torchscript": ["INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT"],
    "aoti": ["INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT"],
    "savedmodel": ["TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS"],
}
DIMS = {"mlp": 8, "convolutions": 10}


def config(form: Form, network: str) -> str:
    """A configuration with a batch size of one, so that each request is one execution."""
    dims = ", ".join(map(str, runtime_models.INPUTS[network]))
    results = str(DIMS[network]) if network in DIMS else dims
    lines = [
        form.config,
        "max_batch_size: 1",
        f'input [{{ name: "INPUT__0" data_type: TYPE_FP32 dims: [{dims}] }}]',
        f'output [{{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [{results}] }}]',
    ]
    keys = ONE_THREAD[form.name]
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "1" }} }}' for key in keys]
    return "\n".join(lines) + "\n"


def body(x: numpy.ndarray) -> tuple[bytes, int]:
    """A request in the binary format, and the length of its header."""
    data = x.tobytes()
    head = json.dumps({
        "inputs": [{"name": "INPUT__0", "shape": list(x.shape), "datatype": "FP32",
                    "parameters": {"binary_data_size": len(data)}}],
        "outputs": [{"name": "OUTPUT__0", "parameters": {"binary_data": True}}],
    }).encode()
    return head + data, len(head)


def whole(network: str, content: bytes, header: int) -> bytes:
    """The request with its header, for the checks."""
    lines = (
        f"POST /v2/models/{network}/infer HTTP/1.1", "Host: bench",
        f"Inference-Header-Content-Length: {header}", f"Content-Length: {len(content)}", "", "",
    )
    return "\r\n".join(lines).encode() + content


class Bench:
    """The options, the directories and the results."""

    def __init__(self, options: argparse.Namespace, work: pathlib.Path) -> None:
        self.options, self.work = options, work
        self.models = options.models or work / "models"
        self.pythons = {
            "onnxruntime": sys.executable,
            "openvino": options.openvino_python,
            "torch": options.torch_python,
            "tensorflow": options.tensorflow_python,
        }
        self.libraries = {
            "--onnxruntime-library": options.onnxruntime_library,
            "--openvino-library": options.openvino_library,
            "--torch-library": options.torch_library,
            "--tensorflow-library": options.tensorflow_library,
        }
        #: Form and network, then value, then rounds.
        self.found: dict[tuple[str, str], dict[str, list[float]]] = {}

    def forms(self) -> list[Form]:
        """The formats that can be written and served here."""
        return [one for one in FORMS if self.libraries[one.flag] and self.pythons[one.framework]]

    def write_models(self) -> None:
        """Makes each framework write its files, unless they exist."""
        if self.models.exists():
            return
        program = str(HERE / "harness/runtime_models.py")
        wanted = {one.framework for one in self.forms()} - {"onnxruntime", "torch"}
        for framework in ["torch", *sorted(wanted)]:
            line = [self.pythons[framework], program, framework, str(self.models)]
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)

    def note(self, form: Form, network: str, values: dict[str, float]) -> None:
        """Keeps values."""
        kept = self.found.setdefault((network, form.name), {})
        for key, value in values.items():
            kept.setdefault(key, []).append(value)
        brief = {key: round(value, 2) for key, value in values.items()}
        print(f"{network}, {form.name}: {brief}", file=sys.stderr, flush=True)

    def serve(self, form: Form, network: str) -> None:
        """Serves one network, and measures it."""
        repository = self.work / f"repository_{form.name}_{network}"
        version = repository / network / "1"
        if not version.exists():
            version.mkdir(parents=True)
            for path in (self.models / network).glob(f"{pathlib.Path(form.file).stem}.*"):
                if path.name == form.file or (form.name == "openvino" and path.suffix == ".bin"):
                    (version / path.name).symlink_to(path)
            (repository / network / "config.pbtxt").write_text(config(form, network))
        command = (str(self.options.galatea), f"{form.flag}={self.libraries[form.flag]}")
        program = server.Program("Galatea", command)
        log = self.work / f"{form.name}_{network}.log"
        example = numpy.load(self.models / network / "example.npz")
        content, header = body(example["x"][:1])
        with server.running(program, repository, self.options.server_core, log) as running:
            idle = process.memory([running.pid]).resident
            request = whole(network, content, header)
            plan = http_load.Plan(running.address("http"), [request], 0.0, 1.0, lambda: 0.0, 1)
            done = http_load.closed(plan, 1).done
            wanted = example["y"][:1]
            found = numpy.frombuffer(done[0].body[-wanted.nbytes:], numpy.float32)
            numpy.testing.assert_allclose(found, wanted.ravel(), TOLERANCE, TOLERANCE)
            values = {"ready_ms": running.ready_seconds * 1e3, "idle_mib": idle / 1024}
            for clients in CLIENTS:
                values |= self.load(running, network, clients, content, header)
            values["loaded_mib"] = process.memory([running.pid]).resident / 1024
        self.note(form, network, values)

    def load(
        self, running: server.Server, network: str, clients: int, content: bytes, header: int
    ) -> dict[str, float]:
        """A closed loop by h2load, whose cost is small."""
        options = self.options
        (self.work / "body").write_bytes(content)
        address, report = running.address("http"), self.work / "requests.tsv"
        line = [
            options.h2load, "--h1", "-D", f"{round(options.duration * 1000)}ms", "-c", str(clients),
            "-d", str(self.work / "body"), f"--log-file={report}",
            "-H", "content-type: application/octet-stream",
            "-H", f"inference-header-content-length: {header}",
            f"http://{address}/v2/models/{network}/infer",
        ]
        before, counts = process.usage(running.pid), running.counts(network)
        generator = Generator(Plan(tuple(line), report, h2load.parse_log), options.load_core)
        try:
            view = generator.finish(options.duration)
        finally:
            generator.close()
        after, more = process.usage(running.pid), running.counts(network)
        used = after.user + after.kernel - before.user - before.kernel
        requests = more.requests - counts.requests
        used_us = used * 1e6 / requests
        return {
            f"rate_{clients}": view.throughput,
            f"p50_us_{clients}": view.p50,
            f"cpu_us_{clients}": used_us,
            f"beside_us_{clients}": used_us - (more.infer_ns - counts.infer_ns) / 1e3 / requests,
        }

    def alone(self, form: Form, network: str) -> None:
        """The framework without a server, on the server's core."""
        options = self.options
        program = str(HERE / "harness/runtime_direct.py")
        line = ["taskset", "-c", str(options.server_core), self.pythons[form.framework], program]
        line += [form.name, str(self.models / network), str(options.duration)]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        self.note(form, network, {"alone_us": json.loads(done.stdout.splitlines()[-1])["cpu_us"]})


def table(found: dict[tuple[str, str], dict[str, list[float]]]) -> str:
    """The medians over the rounds."""
    head = (
        "| network | form | requests/s, 1 | 8 clients | p50 µs, 1 | CPU µs a request, 1 | 8 | "
        "framework alone, µs | server's share, µs | beside executions, µs | idle MiB | loaded MiB | "
        "ready ms |"
    )
    lines = [head, "|---|" + "---|" * 12]
    for (network, form), values in found.items():
        if "alone_us" not in values:
            continue
        one = {key: statistics.median(rounds) for key, rounds in values.items()}
        cells = [one["rate_1"], one["rate_8"], one["p50_us_1"], one["cpu_us_1"], one["cpu_us_8"]]
        cells += [one["alone_us"], one["cpu_us_8"] - one["alone_us"], one["beside_us_8"]]
        cells += [one["idle_mib"], one["loaded_mib"], one["ready_ms"]]
        shown = " | ".join(f"{each:,.0f}" for each in cells)
        lines.append(f"| {network} | {form} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = run.parser()
    add = parser.add_argument
    for name in ("torch", "tensorflow", "openvino"):
        add(f"--{name}-python", metavar="FILE", help=f"a Python with {name}")
        add(f"--{name}-library", metavar="FILE", help="as the server's flag")
    add("--models", type=pathlib.Path, metavar="DIR", help="a directory that an earlier run wrote")
    options = parser.parse_args()
    if not options.torch_python or not options.h2load:
        parser.error("--torch-python and h2load are needed")
    os.sched_setaffinity(0, {options.load_core})
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="galatea-bench-"))
        bench = Bench(options, pathlib.Path(place))
        bench.write_models()
        begun = time.monotonic()
        for _ in range(options.rounds):
            for network in runtime_models.INPUTS:
                for form in bench.forms():
                    try:
                        bench.serve(form, network)
                        bench.alone(form, network)
                    except RuntimeError as error:
                        print(f"{network}, {form.name}: {error}", file=sys.stderr, flush=True)
        print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    print(table(bench.found))
    if options.json:
        named = {" ".join(key): value for key, value in bench.found.items()}
        options.json.write_text(json.dumps(named, indent=1) + "\n")


if __name__ == "__main__":
    main()
