"""Compares latencies in an open loop, in which requests arrive as a Poisson process.

    python bench/open_loop.py --load-generator target/release/galatea-load \\
        --triton COMMAND --triton-backends DIR

It first measures how many requests per second Triton can serve if there are always enough arrivals.
It then sends 50, 70 and 90 % of that rate to both servers in turn, round after round. A latency
starts at the arrival, so it includes all waiting times. It accepts the options of run.py. See
bench/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
import run  # noqa: E402
from harness import report, server  # noqa: E402

MODEL = "identity"
SHARES = [0.5, 0.7, 0.9]
#: How a server is asked: over a protocol, on at most this number of connections.
CONNECTIONS = 256
#: The closed loop that shows the capacity.
CAPACITY_CLIENTS = 32
WARM_SECONDS, WARM_RATE = 2, 500
#: Of the p99 at 70 %, beside Triton's.
ASKED_SHARE, ASKED_RATIO = 0.7, 0.5
#: A generator that is later than this at one of 100 arrivals did not make the load.
LATE_MS_MAX = 1.0

CONFIG = """\
name: "identity"
backend: "identity"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""

Report = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Stage:
    """The parts that the measurements share."""

    options: argparse.Namespace
    work: pathlib.Path
    repository: pathlib.Path
    protocol: str

    def load(self, running: server.Server, **more: object) -> Report:
        """Runs the generator. Every request must succeed."""
        settings = {
            "model": MODEL, "elements": 16, "hostile": 0, "disconnects": 0,
            "connections": CONNECTIONS, "seconds": round(self.options.duration), **more,
        }
        core = str(self.options.load_core)
        command = ["taskset", "-c", core, str(self.options.load_generator)]
        command += [f"--{self.protocol}", running.address(self.protocol)]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{done.stdout[-500:]} {done.stderr}")
        found: Report = json.loads(done.stdout)
        return found

    def measure(self, program: server.Program, **more: object) -> Report:
        """Starts a server, warms it up and runs a load."""
        core, log = self.options.server_core, self.work / f"{program.name}.log"
        with server.running(program, self.repository, core, log) as running:
            self.load(running, seconds=WARM_SECONDS, rate=WARM_RATE)
            return self.load(running, **more)


def capacity(stage: Stage, program: server.Program) -> float:
    """The requests per second of a closed loop, in which either the server or the generator is
    busy."""
    found = stage.measure(program, connections=CAPACITY_CLIENTS)
    return float(found["good"]) / round(stage.options.duration)


def rounds(stage: Stage, servers: list[server.Program], rate: float) -> dict[str, list[Report]]:
    """All rounds at one rate."""
    found: dict[str, list[Report]] = {each.name: [] for each in servers}
    for number in range(stage.options.rounds):
        for each in servers:
            one = stage.measure(each, rate=rate, seed=number + 1)
            found[each.name].append(one)
            print(f"{rate:,.0f}/s {each.name} {one}", file=sys.stderr, flush=True)
    return found


def row(share: float, rate: float, found: dict[str, list[Report]]) -> str:
    """A row of the table: medians over the rounds, and the median of the rounds' ratios."""
    cells = []
    for key in ("p50_ms", "p99_ms", "p999_ms"):
        values = {name: [one[key] for one in reports] for name, reports in found.items()}
        text = " / ".join(f"{statistics.median(one):.3f}" for one in values.values())
        if report.TRITON in values:
            pairs = zip(values[report.OURS], values[report.TRITON], strict=True)
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            text += f" = **{ratio:.2f}**"
            if key == "p99_ms" and share == ASKED_SHARE:
                text += " (met)" if ratio <= ASKED_RATIO else f" ({ASKED_RATIO} is asked)"
        cells.append(text)
    late = max(one["late_p99_ms"] for reports in found.values() for one in reports)
    remark = f"{late:.2f}" + ("" if late <= LATE_MS_MAX else " **too late**")
    return f"| {share:.0%} | {rate:,.0f} | {' | '.join(cells)} | {remark} |"


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = run.parser()
    release = run.ROOT / "target" / "release"
    parser.add_argument("--load-generator", type=pathlib.Path, default=release / "galatea-load")
    parser.add_argument("--protocols", nargs="*", default=["http", "grpc"], choices=["http", "grpc"])
    parser.add_argument("--rate", type=float, help="the capacity, in place of a measured one")
    options = parser.parse_args()
    run.check(parser, options)
    return options


def main() -> None:
    """Measures and prints."""
    options = parse_arguments()
    os.sched_setaffinity(0, {options.load_core})
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as place:
        work = pathlib.Path(place)
        repository = work / "models"
        (repository / MODEL / "1").mkdir(parents=True)
        (repository / MODEL / "config.pbtxt").write_text(CONFIG)
        servers = run.programs(options, work)
        everything = {}
        for protocol in options.protocols:
            stage = Stage(options, work, repository, protocol)
            limit = options.rate or capacity(stage, servers[-1])
            print(f"\n{protocol}: {servers[-1].name} answers {limit:,.0f} requests a second\n")
            print("| of it | arrivals/s | p50 ms | p99 ms | p99.9 ms | generator late ms |")
            print("|---|---|---|---|---|---|")
            for share in SHARES:
                found = rounds(stage, servers, limit * share)
                everything[f"{protocol} {share}"] = found
                print(row(share, limit * share, found), flush=True)
        if options.json:
            options.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
