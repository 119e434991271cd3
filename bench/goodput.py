"""Compares the goodput of a real server with its simulation, with the same arrivals and costs.

    python bench/goodput.py --galatea target/release/galatea

Each cell is one from the table that `cargo run --release -p galatea-sim --bin goodput` prints: a
cost curve, an arrival law, a load and a deadline. The server runs a backend that sleeps for as long
as the curve specifies (examples/backends/sleeper.c). Requests arrive at the simulated times, even
if earlier requests have no response yet. See bench/README.md.
"""

from __future__ import annotations

import argparse
import array
import dataclasses
import itertools
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
from harness import server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = "sleeper"
MAX_BATCH = 16
CURVES = ["MostlyFixed", "Mixed", "MostlyByRow"]
LAWS = ["Poisson", "Bursts", "Day"]
#: Loads as shares of capacity, each with deadlines in full batches.
LOADS = [(0.7, 2.5), (1.5, 2.5)]
#: How batches are formed: by deadlines, with the setting of the dynamic batcher that is best for
#: the cell in simulation, and with none.
WAYS = ["deadlines", "best", "plain"]
#: Plain batches are measured from this load on.
PLAIN_LOAD = 1.0
#: The client has no more connections than this. Later requests wait in it, in their order.
CONNECTIONS = 1024

#: A run is disturbed if the generator was later than this at one of 100 arrivals,
LATE_MS_MAX = 1.0
#: or if executions took longer than the curve by more than this, on average.
SLEPT_MORE_MAX = 1.03
TRIALS = 3
#: Where simulation and measurement differ by more, something is unknown.
ASKED = 0.10

CONFIG = """\
name: "{name}"
backend: "example_sleeper"
max_batch_size: {max_batch}
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "fixed_us" value {{ string_value: "{fixed_us}" }} }}
parameters {{ key: "row_us" value {{ string_value: "{row_us}" }} }}
parameters {{ key: "noise_percent" value {{ string_value: "{noise_percent}" }} }}
{batching}
"""
OBJECTIVE = """\
parameters {{ key: "latency_objective_us" value {{ string_value: "{us}" }} }}
dynamic_batching {{ }}"""
TUNED = """\
dynamic_batching {{
  max_queue_delay_microseconds: {delay_us}
  preferred_batch_size: {preferred}
  default_queue_policy {{ default_timeout_microseconds: {timeout_us} }}
}}"""

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A load, and its simulated results."""

    curve: str
    law: str
    load: float
    objective: float
    arrivals: pathlib.Path
    facts: Json

    @property
    def deadline_ms(self) -> float:
        """The times by which responses are due."""
        return float(self.facts["objective_us"]) / 1000

    def config(self, way: str) -> str:
        """The model's configuration."""
        batching = {
            "deadlines": OBJECTIVE.format(us=self.facts["objective_us"]),
            "best": TUNED.format(**self.facts["best"]),
            "plain": "dynamic_batching { }",
        }
        costs = {name: self.facts[name] for name in ("fixed_us", "row_us", "noise_percent")}
        return CONFIG.format(name=MODEL, max_batch=MAX_BATCH, batching=batching[way], **costs)


@dataclasses.dataclass(frozen=True)
class Measured:
    """The results of a run."""

    in_time: int
    late: int
    refused: int
    goodput: float
    p50_ms: float
    p99_ms: float
    mean_batch: float
    generator_late_ms: float
    slept_more: float

    @property
    def is_disturbed(self) -> bool:
        """Returns true if other programs used the processors."""
        return self.generator_late_ms > LATE_MS_MAX or self.slept_more > SLEPT_MORE_MAX


def make_cell(
    options: argparse.Namespace, work: pathlib.Path, curve: str, law: str, load: float,
    objective: float, overhead_us: int,
) -> Cell:
    """Simulates a cell, and keeps its arrivals."""
    arrivals = work / "arrivals.txt"
    command = [str(options.simulator), curve, law, str(load), str(objective)]

    def simulated(requests: int) -> Json:
        done = subprocess.run(
            [*command, str(requests), str(overhead_us), str(arrivals)],
            capture_output=True, text=True, check=True,
        )
        facts: Json = json.loads(done.stdout)
        return facts

    rate = simulated(1)["capacity"] * load
    facts = simulated(round(rate * options.duration))
    return Cell(curve, law, load, objective, arrivals, facts)


def overhead_us(
    options: argparse.Namespace, work: pathlib.Path, program: server.Program, curve: str
) -> int:
    """The mean time for which an execution occupies an instance beyond the curve's duration,
    from recorded executions. The thread sleeps longer than it should, and requests and responses
    pass between threads."""
    cell, recording = make_cell(options, work, curve, "Poisson", 1.0, 2.5, 0), work / "traffic"

    def record(address: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*shlex.split(options.galatea), "record", f"http://{address}", "--model", MODEL,
             "--output", str(recording)],
            stdout=subprocess.DEVNULL,
        )

    measure(options, work, program, cell, "deadlines", record)
    more = []
    for line in recording.read_text().splitlines():
        seen = json.loads(line)
        if "duration_ns" in seen:
            usual = cell.facts["fixed_us"] + cell.facts["row_us"] * seen["rows"]
            more.append(seen["duration_ns"] / 1000 - usual)
    recording.unlink()
    return round(statistics.mean(more))


def measure(
    options: argparse.Namespace, work: pathlib.Path, program: server.Program, cell: Cell, way: str,
    watch: Callable[[str], subprocess.Popen[bytes]] | None = None,
) -> Measured:
    """Runs a server with the cell's model, and sends the cell's requests."""
    repository = work / "models"
    (repository / MODEL / "1").mkdir(parents=True, exist_ok=True)
    (repository / MODEL / "config.pbtxt").write_text(cell.config(way))
    samples, log = work / "samples", work / f"{program.name}.log"
    with server.running(program, repository, options.server_core, log) as running:
        address = running.address("http")
        watcher = watch(address) if watch else None
        command = [
            "taskset", "-c", str(options.load_core), str(options.load_generator), "--http", address,
            "--model", MODEL, "--elements", "4", "--batched", "yes", "--hostile", "0",
            "--disconnects", "0", "--connections", str(CONNECTIONS), "--refusals", "yes",
            "--times", str(cell.arrivals), "--samples", str(samples),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{done.stdout[-500:]} {done.stderr}")
        with urllib.request.urlopen(f"http://{address}/v2/models/{MODEL}/stats", timeout=30) as got:
            counts = json.load(got)["model_stats"][0]
        if watcher:
            watcher.terminate()
            watcher.wait()
    return summarize(cell, samples, json.loads(done.stdout), counts)


def summarize(cell: Cell, samples: pathlib.Path, told: Json, counts: Json) -> Measured:
    """Counts the responses that were in time."""
    pairs = array.array("f", samples.read_bytes())
    begun, latencies = pairs[0::2], sorted(pairs[1::2])
    ended = max(begin + latency / 1000 for begin, latency in zip(begun, pairs[1::2], strict=True))
    in_time = sum(latency <= cell.deadline_ms for latency in latencies)
    usual = slept = 0.0
    for batch in counts["batch_stats"]:
        spent, count = batch["compute_infer"], int(batch["compute_infer"]["count"])
        rows = int(batch["batch_size"])
        usual += count * (cell.facts["fixed_us"] + cell.facts["row_us"] * rows)
        slept += int(spent["ns"]) / 1000
    return Measured(
        in_time=in_time,
        late=len(latencies) - in_time,
        refused=told["refused"],
        goodput=in_time / ended,
        p50_ms=latencies[len(latencies) // 2],
        p99_ms=latencies[int(len(latencies) * 0.99)],
        mean_batch=int(counts["inference_count"]) / int(counts["execution_count"]),
        generator_late_ms=told["late_p99_ms"],
        slept_more=slept / usual,
    )


def settled(
    options: argparse.Namespace, work: pathlib.Path, program: server.Program, cell: Cell, way: str
) -> tuple[Measured, int]:
    """An undisturbed run, or else the least disturbed one, with the number of runs."""
    runs: list[Measured] = []
    for _ in range(TRIALS):
        runs.append(measure(options, work, program, cell, way))
        print(f"{program.name} {cell.curve} {cell.law} {cell.load} {cell.objective} {way} "
              f"{runs[-1]}", file=sys.stderr, flush=True)
        if not runs[-1].is_disturbed:
            return runs[-1], len(runs)
    return min(runs, key=lambda run: run.generator_late_ms), len(runs)


def row(program: str, cell: Cell, way: str, run: Measured, trials: int) -> str:
    """A row of the table: simulated / simulated with the overhead / measured."""
    simulated, capacity = cell.facts["simulated"][way], cell.facts["capacity"]
    longer = cell.facts["with_overhead"][way]
    requests = run.in_time + run.late + run.refused

    def share(count: int) -> str:
        return f"{100 * count / requests:.2f}"

    ratio = run.goodput / simulated["goodput"] if simulated["goodput"] else float("nan")
    remark = "" if trials == 1 else f"run {trials} times"
    if run.is_disturbed:
        remark = f"disturbed: {run.generator_late_ms:.1f} ms, {run.slept_more:.2f}"
    cells = [
        program, cell.curve, cell.law, f"{cell.load:g}", f"{cell.objective:g} ×", way,
        f"{simulated['goodput'] / capacity:.3f} / {longer['goodput'] / capacity:.3f} / "
        f"{run.goodput / capacity:.3f}",
        f"**{ratio:.3f}**" + ("" if abs(ratio - 1) <= ASKED else " (!)"),
        f"{share(simulated['late'])} / {share(longer['late'])} / {share(run.late)}",
        f"{share(simulated['refused'])} / {share(longer['refused'])} / {share(run.refused)}",
        f"{simulated['p50_ms']:.1f} / {longer['p50_ms']:.1f} / {run.p50_ms:.1f}",
        f"{simulated['p99_ms']:.1f} / {longer['p99_ms']:.1f} / {run.p99_ms:.1f}",
        f"{simulated['mean_batch']:.1f} / {longer['mean_batch']:.1f} / {run.mean_batch:.1f}",
        remark,
    ]
    return f"| {' | '.join(cells)} |"


HEAD = [
    "server", "costs", "arrivals", "load", "deadline", "batches",
    "goodput, of capacity: simulated / with the overhead / measured", "measured beside simulated", "late %",
    "refused %", "p50 ms", "p99 ms", "mean batch", "",
]


def build_backend(work: pathlib.Path, compiler: str) -> pathlib.Path:
    """Compiles the backend, and returns the directory of the backends."""
    folder = work / "backends"
    (folder / "example_sleeper").mkdir(parents=True)
    library = folder / "example_sleeper" / "libtriton_example_sleeper.so"
    subprocess.run(
        [compiler, "-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'include'}",
         str(ROOT / "examples" / "backends" / "sleeper.c"), "-o", str(library)],
        check=True,
    )
    return folder


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    release = ROOT / "target" / "release"
    add = parser.add_argument
    add("--galatea", default=str(release / "galatea"), metavar="COMMAND")
    add("--triton", metavar="COMMAND", help="measure it too, except by deadlines")
    add("--load-generator", type=pathlib.Path, default=release / "galatea-load")
    add("--simulator", type=pathlib.Path, default=release / "goodput_cell")
    add("--cc", default="cc", help="the C compiler for the backend")
    add("--duration", type=float, default=10.0, metavar="SECONDS", help="of the arrivals")
    add("--curves", nargs="*", default=CURVES, choices=CURVES)
    add("--laws", nargs="*", default=LAWS, choices=LAWS)
    add("--loads", nargs="*", metavar="LOAD:DEADLINE", help="such as 1.5:2.5")
    add("--ways", nargs="*", default=WAYS, choices=WAYS)
    add("--server-core", default="0")
    add("--load-core", default="1")
    add("--json", type=pathlib.Path, metavar="FILE", help="write everything measured")
    return parser.parse_args()


def main() -> None:
    """Measures and prints the table."""
    options = parse_arguments()
    loads = [tuple(map(float, text.split(":"))) for text in options.loads or []] or LOADS
    everything: list[Json] = []
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as place:
        work = pathlib.Path(place)
        backends = f"--backend-directory={build_backend(work, options.cc)}"
        ours = (*shlex.split(options.galatea), backends, "--allow-traffic-recording=true")
        programs = [server.Program("galatea", ours)]
        if options.triton:
            programs.append(server.Program("triton", (*shlex.split(options.triton), backends)))
        print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        for curve in options.curves:
            more_us = overhead_us(options, work, programs[0], curve)
            print(f"{curve}: executions take {more_us} µs more", file=sys.stderr, flush=True)
            for (load, objective), law in itertools.product(loads, options.laws):
                cell = make_cell(options, work, curve, law, load, objective, more_us)
                for program, way in itertools.product(programs, options.ways):
                    if way == "plain" and load < PLAIN_LOAD:
                        continue
                    if way == "deadlines" and program.name == "triton":
                        continue
                    run, trials = settled(options, work, program, cell, way)
                    print(row(program.name, cell, way, run, trials), flush=True)
                    everything.append({
                        "server": program.name, "curve": curve, "law": law, "load": load,
                        "objective": objective, "way": way, "trials": trials,
                        "overhead_us": more_us, "measured": dataclasses.asdict(run), **cell.facts,
                    })
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
