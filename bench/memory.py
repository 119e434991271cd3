"""Serves more models than fit into memory, and checks the responses and the memory.

    .cache/venv-tests/bin/python bench/memory.py --galatea target/release/galatea [--seconds 600]

Clients choose models by a Zipf law, whose ranks change in the middle. The server runs in a control group
with a limit, if one can be created. Prints a table; the exit status is 1 if a requirement isn't met.
It uses the helpers of the tests. See bench/README.md.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import http.client
import itertools
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "clients"), str(ROOT / "examples"), str(ROOT / "bench")]

# pylint: disable=wrong-import-position
import numpy  # noqa: E402
import onnx  # noqa: E402
from conftest import find_onnxruntime_library  # noqa: E402
from harness import process  # noqa: E402
from python_backend import interpreter_flag  # noqa: E402
from server import Program, Server, wait_until  # noqa: E402

MEBIBYTE = 1 << 20
KINDS = ("onnx", "python")
#: The values of a table repeat after this number of rows.
PERIOD = 997
#: The memory of models may exceed the budget by this share, and the idle server's memory the memory
#: before the traffic.
EXCESS_MAX, IDLE_EXCESS_MAX = 0.03, 0.10
SAMPLE_SECONDS = 0.25
SETTLE_SECONDS_MAX = 60.0
GROUPS = pathlib.Path("/sys/fs/cgroup")

CONFIG = """\
backend: "{backend}"
max_batch_size: 8
input {{ name: "ROW" data_type: TYPE_INT64 dims: [ 1 ] }}
output {{ name: "VALUE" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group {{ kind: KIND_CPU count: 1 }}
dynamic_batching {{ }}
"""
MODEL = """
import os
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], args["model_version"], "weights")
        # It is read rather than computed, because a computation takes several times the memory.
        self.table = numpy.fromfile(path, numpy.float32)

    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(one, "ROW").as_numpy() for one in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("VALUE", self.table[row] + {first})])
            for row in rows
        ]
"""


def first_value(number: int) -> int:
    """The value in the first row of a model's table. All values are exact as floats."""
    return 1_000 * (number + 1)


def expected(number: int, row: int) -> float:
    """The value in a row."""
    return float(first_value(number) + row % PERIOD)


def table_from(first: int, rows: int) -> numpy.ndarray:
    """A table whose first row has this value."""
    return (numpy.arange(rows) % PERIOD + first).astype(numpy.float32)


def write_model(repository: pathlib.Path, number: int, kind: str, rows: int) -> None:
    """Writes a model that returns rows of its table."""
    folder = repository / name_of(number)
    (folder / "1").mkdir(parents=True)
    backend = "python" if kind == "python" else "onnxruntime"
    (folder / "config.pbtxt").write_text(CONFIG.format(backend=backend))
    if kind == "python":
        first = first_value(number)
        (folder / "1" / "model.py").write_text(MODEL.format(first=first))
        table_from(0, rows).tofile(folder / "1" / "weights")
        return
    table = table_from(first_value(number), rows)
    helper, kinds = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("Gather", ["TABLE", "ROW"], ["VALUE"], axis=0)],
        "table",
        [helper.make_tensor_value_info("ROW", kinds.INT64, ["batch", 1])],
        [helper.make_tensor_value_info("VALUE", kinds.FLOAT, ["batch", 1])],
        [onnx.numpy_helper.from_array(table, "TABLE")],
    )
    operators = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=operators, ir_version=8)
    onnx.save(model, folder / "1" / "model.onnx")


def name_of(number: int) -> str:
    """The name of a model."""
    return f"m{number}"


def zipf(count: int) -> list[float]:
    """The cumulative shares of ranks by a Zipf law."""
    shares = [1 / rank for rank in range(1, count + 1)]
    return [part / sum(shares) for part in itertools.accumulate(shares)]


@contextlib.contextmanager
def control_group(limit: int) -> Iterator[pathlib.Path | None]:
    """A control group with a limit, or None if none can be created."""
    versions = [
        (GROUPS / "memory", "memory.limit_in_bytes"),
        (GROUPS, "memory.max"),
    ]
    for parent, file in versions:
        group = parent / f"galatea-bench-{time.monotonic_ns()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(limit))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            # The processes of the group have ended, but the kernel may not have noticed.
            wait_until(lambda: has_removed(group), 30, "the control group is removed")
        return
    yield None


def has_removed(group: pathlib.Path) -> bool:
    """Removes a control group, if it has no processes."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def kills(group: pathlib.Path | None) -> int:
    """The number of processes that were killed because the group's limit was exceeded."""
    if group is None:
        return 0
    for file in ("memory.oom_control", "memory.events"):
        if (group / file).exists():
            found = re.search(r"^oom_kill (\d+)$", (group / file).read_text(), re.MULTILINE)
            return int(found[1]) if found else 0
    return 0


def memory_bytes(server: Server) -> int:
    """The proportional set size of the server and its workers. It is measured again if a worker ends
    meanwhile."""
    while True:
        pids = [server.process.pid, *process.descendants(server.process.pid)]
        with contextlib.suppress(OSError, KeyError):
            return process.memory(pids).proportional * 1024


def metric(server: Server, name: str) -> int:
    """The value of a metric without labels."""
    found = re.search(rf"^{name} (\S+)$", server.metrics(), re.MULTILINE)
    return int(float(found[1])) if found else 0


class Traffic:
    """Clients that send requests until the end, and what became of their requests."""

    def __init__(self, server: Server, options: argparse.Namespace, rows: int) -> None:
        self._server, self._options, self._rows = server, options, rows
        self._shares = zipf(options.models)
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.first_error = ""
        self.waits: list[float] = []
        clients = range(options.clients)
        self._threads = [threading.Thread(target=self._send, args=(one,)) for one in clients]
        for thread in self._threads:
            thread.start()

    def _model(self, draw: random.Random) -> int:
        """Draws a model. In the second half, the last models are the most popular."""
        share = draw.random()
        rank = next(place for place, most in enumerate(self._shares) if share <= most)
        has_shifted = time.monotonic() - self._begin > self._options.seconds / 2
        return self._options.models - 1 - rank if has_shifted else rank

    def _send(self, client: int) -> None:
        draw = random.Random(self._options.seed * 1_000 + client)
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=120)
        while time.monotonic() - self._begin < self._options.seconds:
            number, row = self._model(draw), draw.randrange(self._rows)
            start = time.monotonic()
            try:
                outcome, pause = self._ask(connection, number, row)
            except (OSError, http.client.HTTPException) as error:
                outcome, pause = f"failed: {error!r}", 0.1
                connection.close()
            with self._lock:
                self.outcomes[outcome.partition(":")[0]] += 1
                self.waits.append(time.monotonic() - start)
                if outcome.startswith(("failed", "wrong")) and not self.first_error:
                    self.first_error = outcome
            time.sleep(pause)

    def _ask(
        self, connection: http.client.HTTPConnection, number: int, row: int
    ) -> tuple[str, float]:
        """Sends a request. Returns the outcome, and the pause before the next request."""
        tensor = {"name": "ROW", "datatype": "INT64", "shape": [1, 1], "data": [row]}
        body = json.dumps({"inputs": [tensor]})
        connection.request("POST", f"/v2/models/{name_of(number)}/infer", body)
        reply = connection.getresponse()
        text = reply.read()
        if reply.status == 503 and reply.headers["Retry-After-Ms"]:
            return "refused", min(int(reply.headers["Retry-After-Ms"]) / 1_000, 1.0)
        if reply.status != 200:
            return f"failed: {reply.status} {text[:300]!r}", 0.1
        [value] = json.loads(text)["outputs"][0]["data"]
        if value != expected(number, row):
            return f"wrong: model {number}, row {row}: {value}", 0.0
        return "served", 0.0

    def is_running(self) -> bool:
        """True until all clients have ended."""
        return any(thread.is_alive() for thread in self._threads)

    def wait(self) -> None:
        """Waits for the clients."""
        for thread in self._threads:
            thread.join()


@dataclasses.dataclass
class Samples:
    """The memory at each sample, in bytes."""

    #: That of the server without models, after each model type has been loaded once.
    base: int = 0
    idle: int = 0
    #: That of the models after the traffic, when nothing is loaded or unloaded, and what they count.
    rest: int = 0
    rest_counted: int = 0
    counted: list[int] = dataclasses.field(default_factory=list)
    #: That of the models: the growth over `base`.
    grown: list[int] = dataclasses.field(default_factory=list)
    is_alive: bool = True

    def take(self, server: Server) -> None:
        """Takes a sample."""
        self.is_alive = server.process.poll() is None
        if self.is_alive:
            self.counted.append(metric(server, "galatea_model_memory_used_bytes"))
            self.grown.append(memory_bytes(server) - self.base)


def quantile(values: list[int], share: float) -> int:
    """The value that this share of the values doesn't exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def unload_all(server: Server, numbers: range) -> None:
    """Unloads all models, and waits until their memory is no longer counted."""
    for number in numbers:
        path = f"/v2/repository/models/{name_of(number)}/unload"
        server.request("POST", path, b"{}")
    is_empty = lambda: metric(server, "galatea_model_memory_used_bytes") == 0  # noqa: E731
    wait_until(is_empty, SETTLE_SECONDS_MAX, "all models are unloaded")


def settled_bytes(server: Server) -> int:
    """The server's memory when it no longer falls."""
    least, since = memory_bytes(server), time.monotonic()
    while time.monotonic() - since < 3:
        time.sleep(SAMPLE_SECONDS)
        now = memory_bytes(server)
        if now < least - MEBIBYTE:
            least, since = now, time.monotonic()
    return least


def base_bytes(server: Server, options: argparse.Namespace) -> int:
    """The memory without models, with the libraries and processes that remain after a first load.

    The models that are loaded for this get no requests later.
    """
    numbers = warm_numbers(options)
    for number in numbers:
        path = f"/v2/models/{name_of(number)}/infer"
        tensor = {"name": "ROW", "datatype": "INT64", "shape": [1, 1], "data": [0]}
        reply = server.request("POST", path, json.dumps({"inputs": [tensor]}).encode())
        if reply.status != 200:
            raise SystemExit(f"the first request failed: {reply}")
    unload_all(server, numbers)
    return settled_bytes(server)


def warm_numbers(options: argparse.Namespace) -> range:
    """Models of each kind that only warm the server up."""
    return range(options.models, options.models + len(options.kinds))


def report(
    options: argparse.Namespace, group: pathlib.Path | None, traffic: Traffic, samples: Samples,
    counters: dict[str, int],
) -> bool:
    """Prints the table. Returns true if all requirements are met."""
    budget = options.budget * MEBIBYTE
    mib = lambda value: f"{value / MEBIBYTE:.0f} MiB"  # noqa: E731
    outcomes, waits = traffic.outcomes, sorted(traffic.waits)
    most_counted, most_grown = max(samples.counted), max(samples.grown)
    usual, rest = quantile(samples.grown, 0.99), samples.rest
    idle_share = samples.idle / samples.base - 1
    killed = kills(group)
    checks = {
        "the server is alive": samples.is_alive and killed == 0,
        "no response is wrong or failed": not traffic.first_error,
        "counted memory is within the budget": most_counted <= budget,
        "measured memory at rest is within the budget + 3 %": rest <= budget * (1 + EXCESS_MAX),
        "idle memory is within 10 %": idle_share <= IDLE_EXCESS_MAX,
    }
    limit = f"{options.group} MiB" if group is not None else "none could be created"
    print(f"{options.models} models of {options.megabytes} MiB ({', '.join(options.kinds)}), "
          f"{options.clients} clients, {options.seconds:.0f} s")
    print(f"control group        {limit}; killed {killed}")
    print(f"budget               {mib(budget)}")
    print(f"counted, at most     {mib(most_counted)} ({most_counted / budget:.3f} of the budget)")
    print(f"measured at rest     {mib(rest)} ({rest / budget:.3f}); "
          f"counted {mib(samples.rest_counted)}")
    print(f"with loads, p99      {mib(usual)} ({usual / budget:.3f}); "
          f"at most {mib(most_grown)} ({most_grown / budget:.3f})")
    print(f"without models       {mib(samples.base)} before, {mib(samples.idle)} after "
          f"({idle_share:+.1%})")
    print(f"requests             {dict(outcomes)}; loads {counters['loads']}, evictions "
          f"{counters['evictions']}, failed loads {counters['load_failures']}")
    print(f"duration             p50 {waits[len(waits) // 2]:.3f} s, "
          f"p99 {waits[len(waits) * 99 // 100]:.3f} s, at most {waits[-1]:.3f} s")
    if traffic.first_error:
        print(f"first error          {traffic.first_error}")
    for check, is_met in checks.items():
        print(f"{'yes' if is_met else 'NO ':3}  {check}")
    return all(checks.values())


def run(server: Server, options: argparse.Namespace, rows: int) -> tuple[Traffic, Samples]:
    """Sends the traffic, and samples the memory."""
    samples = Samples(base=base_bytes(server, options))
    traffic = Traffic(server, options, rows)
    while traffic.is_running() and samples.is_alive:
        samples.take(server)
        time.sleep(SAMPLE_SECONDS)
    traffic.wait()
    return traffic, samples


def measure(options: argparse.Namespace, folder: pathlib.Path) -> bool:
    """Runs the server and prints the table."""
    repository, rows = folder / "models", options.megabytes * MEBIBYTE // 4
    for number in range(warm_numbers(options).stop):
        kind = options.kinds[number % len(options.kinds)]
        write_model(repository, number, kind, rows)
    program = Program(options.galatea.resolve(), options.onnxruntime_library, False)
    flags = ["--model-control-mode=demand", f"--model-memory={options.budget}M", interpreter_flag()]
    with control_group(options.group * MEBIBYTE) as group:
        enter = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
        launcher = [] if group is None else ["sh", "-c", enter, str(group)]
        server = Server(program, repository, folder / "log", flags, launcher=launcher)
        try:
            traffic, samples = run(server.wait_until_ready(), options, rows)
            names = ("loads", "load_failures", "evictions")
            counters = dict.fromkeys(names, 0)
            if samples.is_alive:
                for name in names:
                    counters[name] = metric(server, f"galatea_model_{name}_total")
                samples.rest = settled_bytes(server) - samples.base
                samples.rest_counted = metric(server, "galatea_model_memory_used_bytes")
                unload_all(server, range(options.models))
                samples.idle = settled_bytes(server)
            return report(options, group, traffic, samples, counters)
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.stop()
            if options.keep_log is not None:
                options.keep_log.write_text(server.log())


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--galatea", type=pathlib.Path, required=True)
    parser.add_argument("--onnxruntime-library", type=pathlib.Path, default=None)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=60, help="the size of each model")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--budget", type=int, default=256, help="--model-memory, in MiB")
    parser.add_argument("--group", type=int, default=512, help="the control group's limit, in MiB")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep-log", type=pathlib.Path, default=None)
    options = parser.parse_args()
    options.onnxruntime_library = options.onnxruntime_library or find_onnxruntime_library()
    with tempfile.TemporaryDirectory() as folder:
        is_good = measure(options, pathlib.Path(folder))
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
