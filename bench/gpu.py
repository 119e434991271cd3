"""Compares models on a GPU with ONNX Runtime and torch driven directly on the same GPU.

    pip install onnxruntime-gpu
    python bench/gpu.py --galatea target/release/galatea --output gpu-results

It measures the convolutional network and MiniLM with one, two and three instances, alone and side
by side; tensors of 1 and 16 MiB over plain HTTP, system shared memory and CUDA shared memory;
states that grow; and a torch model in Python. It writes `report.md`, `results.json`, and timelines
of the instances as SVG. See bench/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "clients"), str(ROOT / "examples")]

# pylint: disable=wrong-import-position
from server import Program, Server  # noqa: E402

from harness import gpu_memory, timeline  # noqa: E402

PARTS = ["networks", "memory", "states", "torch"]
INSTANCES = [1, 2, 3]
MEBIBYTES = [1, 16]
TIMELINE_SECONDS = 0.05
TRACED = 4000
#: Of the throughput of the library alone.
RATIO_MIN = 0.95
ROWS_MAX = 32
CONFIG = """
max_batch_size: {rows}
dynamic_batching {{ }}
instance_group {{ kind: KIND_GPU gpus: [ {gpu} ] count: {count} }}
"""
#: CUDA's provider looks for the fastest convolutions whenever the number of rows changes, and
#: what it finds the first time is found sooner later.
WARMUP = """
model_warmup {{
  name: "{rows}" batch_size: {rows}
  {inputs}
}}
"""
SEARCH = 'parameters { key: "cudnn_conv_algo_search" value { string_value: "%d" } }'
WARMUP_INPUT = 'inputs {{ key: "{name}" value {{ data_type: {kind} dims: {dims} zero_data: true }} }}'
IDENTITY = """
max_batch_size: 1
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
#: A list that grows by 256 KiB with each request of a sequence, whose sum is the response.
STATES = """
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  oldest { max_candidate_sequences: 8 }
  state {
    input_name: "LIST_IN" output_name: "LIST_OUT" data_type: TYPE_INT32 dims: [ -1 ]
    initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }
    %s
  }
}
"""
ADDED, STEPS = 65_536, 64
GROWING = "use_same_buffer_for_input_output: true use_growable_memory: true"
TORCH_CONFIG = """
backend: "python"
max_batch_size: 32
input { name: "IN" data_type: TYPE_FP32 dims: [ 1024 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1024 ] }
dynamic_batching { }
"""
TORCH_FILE = """
import torch
import triton_python_backend_utils as pb_utils


def network(device):
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).to(device).eval()


class TritonPythonModel:
    def initialize(self, args):
        kind, number = args["model_instance_kind"], args["model_instance_device_id"]
        self.device = f"cuda:{number}" if kind == "GPU" else "cpu"
        self.network = network(self.device)

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(one, "IN") for one in requests]
        parts = [torch.from_dlpack(tensor) for tensor in tensors]
        with torch.inference_mode():
            result = self.network(torch.cat(parts).to(self.device))
        split = result.split([len(part) for part in parts])
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", one.contiguous())])
                for one in split]
"""
TORCH_ALONE = """
import json, sys, time
import torch
sys.modules["triton_python_backend_utils"] = type(sys)("triton_python_backend_utils")
sys.path.insert(0, sys.argv[1])
from model import network
device, batch, seconds = sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
computing, values = network(device), torch.full((batch, 1024), 0.5)
with torch.inference_mode():
    for _ in range(5):
        computing(values.to(device)).cpu()
    runs, begin = 0, time.monotonic()
    while (taken := time.monotonic() - begin) < seconds:
        computing(values.to(device)).cpu()
        runs += 1
print(json.dumps(runs * batch / taken))
"""


@dataclasses.dataclass(frozen=True)
class Network:
    """An ONNX model, and the requests that it gets."""

    name: str
    #: Sizes of its inputs that vary, behind the batch.
    shapes: dict[str, list[int]]
    #: Types and sizes of all inputs, behind the batch.
    inputs: dict[str, tuple[str, list[int]]]
    #: Other settings that are measured with one instance, by what they are called.
    ways: dict[str, str] = dataclasses.field(default_factory=dict)

    def warmup(self, step: int, most: int) -> str:
        """A warmup configuration with each number of rows that requests of `step` rows can add
        up to."""
        inputs = " ".join(
            WARMUP_INPUT.format(name=name, kind=kind, dims=dims)
            for name, (kind, dims) in self.inputs.items()
        )
        sizes = range(step, min(ROWS_MAX, most) + 1, step)
        return "".join(WARMUP.format(rows=rows, inputs=inputs) for rows in sizes)


TOKENS = ["input_ids", "attention_mask", "token_type_ids"]
NETWORKS = {
    "convnet": Network(
        "convnet", {}, {"image": ("TYPE_FP32", [3, 224, 224])},
        {"heuristic search of convolutions": SEARCH % 1, "default convolutions": SEARCH % 2},
    ),
    "minilm": Network(
        "minilm", {name: [32] for name in TOKENS}, {name: ("TYPE_INT64", [32]) for name in TOKENS}
    ),
}


@dataclasses.dataclass
class Results:
    """The rows of figures, each with the conditions of its measurement."""

    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, part: str, what: str, **values: float | None) -> None:
        """Keeps and prints a row."""
        self.rows.append({"part": part, "what": what, **values})
        print(json.dumps(self.rows[-1]), flush=True)

    def value(self, part: str, what: str, name: str) -> float | None:
        """Returns a figure from an earlier row."""
        for row in self.rows:
            if (row["part"], row["what"]) == (part, what):
                return row.get(name)
        return None


class Bench:
    """The measurements and their settings."""

    def __init__(self, options: argparse.Namespace, work: pathlib.Path) -> None:
        self.options, self.work = options, work
        self.results = Results()
        self.program = Program(options.galatea.resolve(), options.onnxruntime_library, False)

    def models(self, names: list[str]) -> pathlib.Path:
        """The ONNX files, which the examples write."""
        folder = self.work / "files"
        command = [sys.executable, str(ROOT / "examples" / "make_models.py"), "--output", str(folder)]
        for name in names:
            subprocess.run([*command, "--only", name], check=True, stdout=subprocess.DEVNULL)
        return folder

    def repository(
        self, files: pathlib.Path, names: list[str], count: int, way: str = ""
    ) -> pathlib.Path:
        """A repository of these models, each with this number of instances, and with the
        settings of a variant."""
        folder = self.work / "-".join([*names, str(count), *way.split()])
        for name in names:
            version = folder / name / "1"
            version.mkdir(parents=True)
            (version / "model.onnx").symlink_to(files / name / "1" / "model.onnx")
            text = CONFIG.format(rows=ROWS_MAX, gpu=self.options.gpu, count=count)
            batch = self.options.batch
            text += NETWORKS[name].warmup(batch, batch * self.options.concurrency)
            text += NETWORKS[name].ways.get(way, "")
            (folder / name / "config.pbtxt").write_text(text)
        return folder

    @contextlib.contextmanager
    def server(self, repository: pathlib.Path, *flags: str) -> Iterator[Server]:
        """A server that is ready."""
        log = self.work / f"{repository.name}.log"
        running = Server(self.program, repository, log, flags)
        try:
            yield running.wait_until_ready(self.options.start_seconds)
        finally:
            running.stop()

    def load(self, server: Server, network: Network) -> subprocess.Popen[str]:
        """Starts a load on the model."""
        options = self.options
        command = [
            str(options.galatea), "bench", "--url", f"grpc://127.0.0.1:{server.grpc_port}",
            "--model", network.name, "--concurrency", str(options.concurrency),
            "--batch", str(options.batch), "--duration", str(options.seconds), "--json",
        ]
        for name, sizes in network.shapes.items():
            command += ["--shape", f"{name}:{','.join(map(str, sizes))}"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def mean_batch(self, server: Server, model: str) -> float:
        """The number of inferences per execution so far."""
        stats = server.get(f"/v2/models/{model}/stats").json()["model_stats"][0]
        return stats["inference_count"] / max(1, stats["execution_count"])

    def together(self, part: str, what: str, server: Server, names: list[str]) -> None:
        """Measures several models at the same time."""
        loads = [(name, self.load(server, NETWORKS[name])) for name in names]
        for name, load in loads:
            output, _ = load.communicate()
            if load.returncode:
                raise RuntimeError(f"the load of {name} failed: {output[:500]}")
            (row,) = json.loads(output)["results"]
            self.results.add(
                part, f"{name}, {what}",
                inferences_per_second=row["inferences_per_second"],
                p50_ms=row["latency_ms"]["p50"], p99_ms=row["latency_ms"]["p99"],
                mean_batch=self.mean_batch(server, name),
            )

    def traced(self, name: str, server_flags: list[str]) -> tuple[list[str], pathlib.Path]:
        """The flags for a server that records when its instances execute."""
        file = self.work / f"{name}.traces"
        settings = ["level=TIMESTAMPS", "rate=1", f"count={TRACED}", f"triton,file={file}"]
        return [*server_flags, *(f"--trace-config={one}" for one in settings)], file

    def picture(self, name: str, title: str, file: pathlib.Path) -> None:
        """Draws a timeline, and keeps the fraction of the computing time during which several
        instances computed."""
        found = timeline.read(sorted(file.parent.glob(f"{file.name}*")))
        shown = timeline.window(found, TIMELINE_SECONDS)
        (self.options.output / f"{name}.svg").write_text(timeline.draw(title, shown))
        self.results.add("timeline", name, overlap=timeline.overlap(found), executions=len(found))

    def networks(self) -> None:
        """One, two and three instances, two models side by side, and the library alone."""
        names = self.options.models
        files = self.models(names)
        for name in names:
            for count in self.options.instances:
                repository = self.repository(files, [name], count)
                what = f"{count} instance{'s' if count > 1 else ''}"
                with self.server(repository) as server:
                    self.together("instances", what, server, [name])
                flags, traces = self.traced(f"{name}-{count}", [])
                with self.server(repository, *flags) as server:
                    load = self.load(server, NETWORKS[name])
                    load.communicate()
                self.picture(f"timeline-{name}-{count}", f"{name}, {what}", traces)
            for way in NETWORKS[name].ways:
                with self.server(self.repository(files, [name], 1, way)) as server:
                    self.together("instances", f"1 instance, {way}", server, [name])
            self.alone(name, files / name / "1" / "model.onnx")
        if len(names) > 1:
            repository = self.repository(files, names, 1)
            flags, traces = self.traced("pair", [])
            with self.server(repository) as server:
                self.together("side by side", "both loaded", server, names)
            with self.server(repository, *flags) as server:
                for load in [self.load(server, NETWORKS[name]) for name in names]:
                    load.communicate()
            self.picture("timeline-pair", "two models side by side", traces)

    def alone(self, name: str, file: pathlib.Path) -> None:
        """The library without a server, with the same batch size as the server's mean."""
        first = f"{name}, {self.options.instances[0]} instance"
        mean = self.results.value("instances", first, "mean_batch") or 1.0
        served = self.results.value("instances", first, "inferences_per_second") or 0.0
        command = [sys.executable, str(ROOT / "bench" / "harness" / "direct_gpu.py"), str(file)]
        command += [str(round(mean)), str(self.options.seconds)]
        command += ["--provider", self.options.provider, "--device", str(self.options.gpu)]
        for key, sizes in NETWORKS[name].shapes.items():
            command += ["--shape", f"{key}:{','.join(map(str, sizes))}"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rate = json.loads(done.stdout.splitlines()[-1])
        self.results.add("library alone", name, inferences_per_second=rate, batch=round(mean),
                         ratio=served / rate)

    def memory(self) -> None:
        """Large tensors over three transports."""
        folder = self.work / "identity"
        files = self.work / "identity-file"
        (folder / gpu_memory.MODEL / "1").mkdir(parents=True)
        files.mkdir()
        write_identity(folder / gpu_memory.MODEL / "1" / "model.onnx")
        group = f"instance_group {{ kind: KIND_GPU gpus: [ {self.options.gpu} ] }}\n"
        (folder / gpu_memory.MODEL / "config.pbtxt").write_text(IDENTITY + group)
        with self.server(folder, "--allow-client-shm=true") as server:
            for size in MEBIBYTES:
                for way in gpu_memory.WAYS:
                    taken = gpu_memory.latencies(
                        server.http_port, way, size, self.options.gpu, self.options.seconds
                    )
                    milliseconds = sorted(1000 * one for one in taken)
                    self.results.add(
                        "memory", f"{size} MiB, {way}", p50_ms=statistics.median(milliseconds),
                        p99_ms=milliseconds[int(len(milliseconds) * 0.99)],
                        requests_per_second=len(taken) / sum(taken),
                    )

    def states(self) -> None:
        """States that grow on the GPU, both in place and not."""
        folder = self.work / "states"
        group = f"instance_group {{ kind: KIND_GPU gpus: [ {self.options.gpu} ] }}\n"
        kinds = {"in place": GROWING, "anew": ""}
        for name, flags in kinds.items():
            version = folder / name.replace(" ", "_") / "1"
            version.mkdir(parents=True)
            write_list(version / "model.onnx")
            (version.parent / "config.pbtxt").write_text(STATES % flags + group)
        with self.server(folder) as server:
            for number, name in enumerate(kinds):
                taken = [
                    step_of_list(server, name.replace(" ", "_"), number + 1, step)
                    for step in range(1, STEPS + 1)
                ]
                milliseconds = sorted(1000 * one for one in taken)
                self.results.add(
                    "states", f"{STEPS} steps to {4 * ADDED * STEPS >> 20} MiB, {name}",
                    p50_ms=statistics.median(milliseconds), max_ms=milliseconds[-1],
                )

    def torch(self) -> None:
        """A torch model in Python, compared with torch alone."""
        if importlib.util.find_spec("torch") is None:
            print("torch is not installed: the model in Python is left out", file=sys.stderr)
            return
        folder = self.work / "torch"
        version = folder / "torch_model" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(TORCH_FILE)
        group = f"instance_group {{ kind: KIND_GPU gpus: [ {self.options.gpu} ] }}\n"
        (folder / "torch_model" / "config.pbtxt").write_text(TORCH_CONFIG + group)
        flag = f"--backend-config=python,interpreter={sys.executable}"
        NETWORKS["torch_model"] = Network("torch_model", {}, {})
        with self.server(folder, flag) as server:
            self.together("python", "1 instance", server, ["torch_model"])
        what = "torch_model, 1 instance"
        mean = round(self.results.value("python", what, "mean_batch") or 1)
        command = [sys.executable, "-c", TORCH_ALONE, str(version), f"cuda:{self.options.gpu}"]
        command += [str(mean), str(self.options.seconds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rate = json.loads(done.stdout.splitlines()[-1])
        served = self.results.value("python", what, "inferences_per_second") or 0.0
        self.results.add("torch alone", "torch_model", inferences_per_second=rate, batch=mean,
                         ratio=served / rate)


def write_identity(path: pathlib.Path) -> None:
    """An ONNX model that returns its input."""
    from onnx import TensorProto, helper

    dims = ["batch", "count"]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], "identity",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, dims)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def write_list(path: pathlib.Path) -> None:
    """An ONNX model that appends its input many times to its state, and returns the sum of the
    state."""
    from onnx import TensorProto, helper

    number, tensor = TensorProto.INT32, helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Expand", ["INPUT", "count"], ["new"]),
            helper.make_node("Concat", ["LIST_IN", "new"], ["LIST_OUT"], axis=1),
            helper.make_node("ReduceSum", ["LIST_OUT", "axes"], ["SUM"]),
        ],
        "lists",
        [tensor("INPUT", number, ["batch", 1]), tensor("LIST_IN", number, ["batch", "before"])],
        [tensor("SUM", number, ["batch", 1]), tensor("LIST_OUT", number, ["batch", "after"])],
        [
            helper.make_tensor("count", TensorProto.INT64, [2], [1, ADDED]),
            helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def step_of_list(server: Server, model: str, sequence: int, step: int) -> float:
    """The time of a sequence's request in seconds. Its response is checked."""
    tensor = {"name": "INPUT", "shape": [1, 1], "datatype": "INT32", "data": [1]}
    parameters = {"sequence_id": sequence, "sequence_start": step == 1}
    begin = time.monotonic()
    reply = server.infer(model, {"inputs": [tensor], "parameters": parameters})
    taken = time.monotonic() - begin
    if reply.status != 200 or reply.json()["outputs"][0]["data"] != [ADDED * step]:
        raise RuntimeError(f"step {step} of {model}: {reply}")
    return taken


def figure(value: float | None) -> str:
    """A figure with three digits; empty if no response came in time."""
    if value is None:
        return "-"
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def report(results: Results, device: str, date: str) -> str:
    """The figures as tables, one for each part."""
    lines = [f"Device: {device}. Date: {date}.", ""]
    for part in dict.fromkeys(row["part"] for row in results.rows):
        rows = [row for row in results.rows if row["part"] == part]
        names = [name for name in rows[0] if name not in ("part", "what")]
        lines += ["| " + " | ".join([part, *(name.replace("_", " ") for name in names)]) + " |"]
        lines += ["|---" * (len(names) + 1) + "|"]
        for row in rows:
            lines.append("| " + " | ".join([row["what"], *(figure(row[name]) for name in names)]) + " |")
        lines.append("")
    for row in results.rows:
        if "ratio" in row and row["ratio"] < RATIO_MIN:
            lines.append(f"{row['what']}: {row['ratio']:.2f} of {row['part']}, less than {RATIO_MIN}.")
    return "\n".join(lines).rstrip() + "\n"


def device_name(gpu: int) -> str:
    """The GPU's name according to the driver."""
    command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown (no nvidia-smi)"


def library() -> pathlib.Path | None:
    """The shared library in the Python package onnxruntime-gpu."""
    package = importlib.util.find_spec("onnxruntime")
    if package is None or package.origin is None:
        return None
    found = sorted(pathlib.Path(package.origin).parent.glob("capi/libonnxruntime.so*"))
    return found[-1] if found else None


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--galatea", type=pathlib.Path, default=ROOT / "target" / "release" / "galatea")
    add("--onnxruntime-library", type=pathlib.Path, default=library(), metavar="FILE")
    add("--output", type=pathlib.Path, required=True, help="folder of the report and the pictures")
    add("--gpu", type=int, default=0)
    add("--seconds", type=int, default=10, help="of each measurement")
    add("--concurrency", type=int, default=32, help="requests in flight")
    add("--batch", type=int, default=4, help="of each request")
    add("--start-seconds", type=float, default=120.0, help="until a server must be ready")
    add("--models", nargs="+", default=["convnet", "minilm"], choices=["convnet", "minilm"])
    add("--instances", nargs="+", type=int, default=INSTANCES)
    add("--parts", nargs="+", default=PARTS, choices=PARTS)
    add("--provider", default="CUDAExecutionProvider", help="of ONNX Runtime alone")
    options = parser.parse_args()
    if options.onnxruntime_library is None:
        parser.error("no ONNX Runtime library found; pip install onnxruntime-gpu")
    return options


def main() -> None:
    """Runs the command."""
    options = parse()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(options, pathlib.Path(work))
        for part in options.parts:
            getattr(bench, part)()
    text = report(bench.results, device_name(options.gpu), f"{datetime.datetime.now():%Y-%m-%d %H:%M}")
    (options.output / "report.md").write_text(text)
    (options.output / "results.json").write_text(json.dumps(bench.results.rows, indent=1))
    print(text)


if __name__ == "__main__":
    main()
