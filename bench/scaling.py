"""Measures a server's throughput on 1, 2, 4 and more cores, and compares it with Triton's.

    python bench/scaling.py --cores 1 2 4 8 12 --triton COMMAND --triton-backends DIR

The server has the first cores, and h2load has all others. A row also contains the CPU time per
request and the fraction of its cores that h2load used. If this is near 1, the limit was the load
generator, not the server. A model has as many instances as the server has cores, each with one
thread. See bench/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
import run  # noqa: E402
from harness import models, process, report, request_body, server  # noqa: E402

CORES = [1, 2, 4, 8, 12]
#: Models that take next to nothing, so that the server itself is measured, and one that computes.
MODELS = [models.HOSTED, "simple", "mlp"]
PROTOCOLS = ["http", "grpc"]
#: Requests in flight for each core of the server.
FLIGHT = 32
STREAMS = 8
WARM_SECONDS = 1.0
#: Of h2load's cores, from which on the load may be the limit.
BUSY_MAX = 0.9

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Stage:
    """The options of the run, and the directory of its files."""

    options: argparse.Namespace
    work: pathlib.Path

    def repository(self, model: str, cores: int) -> pathlib.Path:
        """A repository with one model that has one instance per core."""
        folder = self.work / f"{model}-{cores}"
        version = folder / model / "1"
        if version.exists():
            return folder
        version.mkdir(parents=True)
        group = f"instance_group [ {{ count: {cores} kind: KIND_CPU }} ]\n"
        if model in models.CONFIGS:
            config = re.sub(r"instance_group .*\n", group, models.CONFIGS[model])
        else:
            files = self.options.models or self.work / "files"
            if not (files / model).exists():
                command = [sys.executable, str(models.MAKE_MODELS), "--output", str(files)]
                subprocess.run([*command, "--only", model], check=True, stdout=subprocess.DEVNULL)
            (version / "model.onnx").symlink_to((files / model / "1" / "model.onnx").resolve())
            config = (files / model / "config.pbtxt").read_text() + group + models.ONE_THREAD
        (folder / model / "config.pbtxt").write_text(config)
        return folder

    def command(self, model: str, protocol: str, address: str, cores: int) -> list[str]:
        """A run of h2load on the cores that the server doesn't use."""
        others = range(cores, self.options.machine)
        body = self.work / "request.bin"
        flight = FLIGHT * cores
        threads = min(len(others), flight // STREAMS)
        command = ["taskset", "-c", f"{others[0]}-{others[-1]}", self.options.h2load]
        command += ["-D", f"{self.options.duration:g}", f"--warm-up-time={WARM_SECONDS:g}"]
        command += ["-t", str(threads), "-d", str(body)]
        if protocol == "http":
            content, header_length = request_body.http_body(model)
            command += ["--h1", "-c", str(flight)]
            command += ["-H", "content-type: application/octet-stream"]
            command += ["-H", f"inference-header-content-length: {header_length}"]
            path = f"v2/models/{model}/infer"
        else:
            content = request_body.grpc_body(model)
            command += ["-c", str(flight // STREAMS), "-m", str(STREAMS)]
            command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
            path = "inference.GRPCInferenceService/ModelInfer"
        body.write_bytes(content)
        return [*command, f"http://{address}/{path}"]

    def measure(self, program: server.Program, model: str, protocol: str, cores: int) -> Row:
        """Starts a server, and runs one load on it."""
        log = self.work / f"{program.name}.log"
        place = f"0-{cores - 1}"
        with server.running(program, self.repository(model, cores), place, log) as running:
            counted, used = running.counts(model), process.usage(running.pid)
            begin, children = time.monotonic(), os.times()
            done = subprocess.run(
                self.command(model, protocol, running.address(protocol), cores),
                stdout=subprocess.PIPE, text=True, check=True,
            )
            taken, load = time.monotonic() - begin, os.times()
            after, ended = running.counts(model), process.usage(running.pid)
        rate = re.search(r"finished in [^,]+, ([\d.]+) req/s", done.stdout)
        failed = re.search(r"(\d+) failed, (\d+) errored", done.stdout)
        if rate is None or failed is None or any(int(one) for one in failed.groups()):
            raise RuntimeError(f"h2load: {done.stdout[-500:]}")
        requests = after.requests - counted.requests
        # The requests that are in flight at the end are cancelled.
        if after.failures > FLIGHT * cores or not requests:
            raise RuntimeError(f"{after.failures} requests failed, {requests} succeeded")
        busy = load.children_user + load.children_system
        busy -= children.children_user + children.children_system
        cpu = ended.user + ended.kernel - used.user - used.kernel
        return {
            "server": program.name, "model": model, "protocol": protocol, "cores": cores,
            "rate": float(rate[1]), "cpu_us": 1e6 * cpu / requests,
            "server_busy": cpu / taken / cores,
            "load_busy": busy / taken / (self.options.machine - cores),
        }


def table(rows: list[Row]) -> list[str]:
    """A row for each model, protocol and number of cores, with medians over the rounds."""
    names = list(dict.fromkeys(row["server"] for row in rows))
    heads = [f"{name} infer/s, CPU µs, cores used, load's" for name in names]
    lines = [f"| model | protocol | cores | {' | '.join(heads)} | ratio | of one core |"]
    lines.append("|---" * (5 + len(names)) + "|")
    singles: dict[tuple[str, str], float] = {}
    for model, protocol, cores in dict.fromkeys(
        (row["model"], row["protocol"], row["cores"]) for row in rows
    ):
        cells, rates = [], []
        for name in names:
            place = (name, model, protocol, cores)
            own = [r for r in rows if (r["server"], r["model"], r["protocol"], r["cores"]) == place]
            if not own:
                cells.append("-")
                continue
            median = {
                key: statistics.median(row[key] for row in own)
                for key in ("rate", "cpu_us", "server_busy", "load_busy")
            }
            rates.append(median["rate"])
            limit = " **load is the limit**" if median["load_busy"] > BUSY_MAX else ""
            cells.append(
                f"{median['rate']:,.0f}, {median['cpu_us']:.0f}, {median['server_busy']:.2f},"
                f" {median['load_busy']:.2f}{limit}"
            )
        singles.setdefault((model, protocol), rates[0])
        ratio = f"{rates[0] / rates[1]:.2f}" if len(rates) > 1 else "-"
        scale = rates[0] / singles[(model, protocol)]
        lines.append(
            f"| {model} | {protocol} | {cores} | {' | '.join(cells)} | {ratio} | {scale:.1f} |"
        )
    return lines


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = run.parser()
    add = parser.add_argument
    add("--cores", nargs="+", type=int, default=CORES)
    add("--machine", type=int, default=os.cpu_count(), help="cores of the machine to be used")
    add("--only", nargs="+", default=MODELS, choices=MODELS, help="models")
    add("--protocols", nargs="+", default=PROTOCOLS, choices=PROTOCOLS)
    add("--models", type=pathlib.Path, metavar="DIR", help="repository that has the ONNX files")
    options = parser.parse_args()
    if not options.h2load:
        parser.error("h2load not found; give --h2load")
    if max(options.cores) >= options.machine:
        parser.error(f"the load needs a core, of {options.machine}")
    return options


def main() -> None:
    """Measures and prints."""
    options = parse_arguments()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as place:
        stage = Stage(options, pathlib.Path(place))
        servers = run.programs(options, stage.work)
        for _ in range(options.rounds):
            for model in options.only:
                for protocol in options.protocols:
                    for cores in options.cores:
                        for each in servers:
                            if each.name == report.TRITON and model not in models.CONFIGS:
                                continue
                            rows.append(stage.measure(each, model, protocol, cores))
                            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
