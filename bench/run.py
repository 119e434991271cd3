"""Compares Galatea with Triton on the same models in the same run.

    python bench/run.py --triton "start-triton" --triton-backends DIR

Without --triton, it measures Galatea alone. See bench/README.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shlex
import sys
import tempfile

from harness import bare, h2load, measure, models, perf_analyzer, report, workloads
from harness.server import Program

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = pathlib.Path(__file__).resolve().parent / "RESULTS.md"


def onnxruntime_library() -> str | None:
    """Finds the shared library in the Python package onnxruntime."""
    package = importlib.util.find_spec("onnxruntime")
    if package is None or package.origin is None:
        return None
    found = sorted(pathlib.Path(package.origin).parent.glob("capi/libonnxruntime.so*"))
    return str(found[0]) if found else None


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    known = parser()
    options = known.parse_args(arguments)
    check(known, options)
    return options


def parser() -> argparse.ArgumentParser:
    """The options that all measurements share."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = made.add_argument
    add("--galatea", default=str(ROOT / "target/release/galatea"), metavar="COMMAND")
    add("--onnxruntime-library", default=onnxruntime_library(), metavar="FILE")
    add("--before", metavar="COMMAND", help="another Galatea to compare with, in Triton's place")
    add("--triton", metavar="COMMAND", help="command line that starts Triton; flags follow it")
    add("--triton-backends", metavar="DIR", help="Triton's --backend-directory")
    add("--triton-caches", metavar="DIR", help="Triton's --cache-directory")
    add("--cc", default="cc", help="the C compiler for the libraries that both servers host")
    add("--perf-analyzer", default=perf_analyzer.find(), metavar="FILE")
    add("--h2load", default=h2load.find(), metavar="FILE", help="without it its rows are left out")
    add("--rounds", type=int, default=3, help="medians are taken over these")
    add("--duration", type=float, default=3.0, metavar="SECONDS", help="of one measurement")
    add("--workloads", nargs="*", default=[], metavar="TEXT", help="only names with one of these")
    add("--list", action="store_true", help="print the names of the workloads and end")
    add("--server-core", type=int, default=0)
    add("--load-core", type=int, default=1)
    add("--json", type=pathlib.Path, metavar="FILE", help="write everything measured")
    add("--append-results", action="store_true", help="append a section to bench/RESULTS.md")
    add("--date", help="heading of that section")
    return made


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuses options that can't work."""
    if options.append_results and not options.date:
        parser.error("--append-results needs --date")
    if options.rounds < 1 or options.duration <= 0:
        parser.error("--rounds and --duration must be positive")
    if options.before and options.triton:
        parser.error("--before takes the place of --triton")
    if options.server_core == options.load_core:
        parser.error("server and load need a core each")
    if not options.list and not options.perf_analyzer:
        parser.error("perf_analyzer not found; give --perf-analyzer")
    if not options.list and not options.onnxruntime_library:
        parser.error("no ONNX Runtime library found; give --onnxruntime-library")


def programs(options: argparse.Namespace, work: pathlib.Path) -> list[Program]:
    """Returns the servers to compare, each with the compiled examples."""
    flags = [
        f"--onnxruntime-library={options.onnxruntime_library}",
        f"--backend-directory={models.backends(work / 'backends', options.cc)}",
        f"--cache-directory={models.caches(work / 'caches', options.cc)}",
    ]
    # The measured release of Triton allows this without a flag.
    own = ["--allow-client-shm=true", f"--backend-config=python,interpreter={sys.executable}"]
    found = [Program(report.OURS, (*shlex.split(options.galatea), *flags, *own))]
    if options.before:
        found.append(Program(report.BEFORE, (*shlex.split(options.before), *flags)))
    if options.triton:
        triton = shlex.split(options.triton)
        if options.triton_backends:
            folder = models.backends(work / "triton_backends", options.cc, options.triton_backends)
            triton.append(f"--backend-directory={folder}")
        folder = models.caches(work / "triton_caches", options.cc, options.triton_caches)
        triton.append(f"--cache-directory={folder}")
        found.append(Program(report.TRITON, tuple(triton)))
    return found


NOT_MEASURED = (RuntimeError, OSError, KeyError, ValueError)


class Run:
    """Runs all rounds of all workloads."""

    def __init__(self, bench: measure.Bench, servers: list[Program]) -> None:
        self._bench = bench
        self._servers = servers
        self._recording = bench.work / "answers"
        self.results: report.Results = {}
        self.errors: list[str] = []

    def workload(self, workload: workloads.Workload, rounds: int) -> None:
        """Measures the servers in turn, round after round."""
        servers = [
            each for each in self._servers if workload.has_rival() or each.name != report.TRITON
        ]
        sides: dict[str, report.Rounds] = {each.name: [] for each in servers}
        self.results[workload.name] = sides
        is_load = isinstance(workload, workloads.Load)
        compared = workload if is_load and workload.compare_bare else None
        if compared:
            sides[report.BARE] = []
        for number in range(rounds):
            for server in servers:
                sides[server.name].append(self._once(server, workload, number))
            if compared:
                sides[report.BARE].append(self._bare(compared, number))
                report.share_of_loop({name: side[-1] for name, side in sides.items()})

    def _once(
        self, server: Program, workload: workloads.Workload, number: int
    ) -> dict[str, float]:
        recording = self._recording if server.name == report.OURS else None
        try:
            values = measure.measure(self._bench, server, workload, recording)
            if isinstance(workload, workloads.Load) and workload.compare_direct:
                batch = max(1, round(values["batch"]))
                rate = measure.direct_throughput(self._bench, workload.model, batch)
                values["direct"] = values["throughput"] / rate
                values["direct_throughput"] = rate
                if workload.client is workloads.Client.H2LOAD and not workload.apart:
                    rate = measure.fed_throughput(self._bench, workload, batch)
                    values["fed"] = values["throughput"] / rate
                    values["fed_throughput"] = rate
            if isinstance(workload, workloads.Load) and workload.executes:
                model, times = workload.executes
                rate = measure.direct_throughput(self._bench, model, 1)
                values["beside_us"] = values["cpu_us"] - times * 1e6 / rate
        except NOT_MEASURED as error:
            return self._failed_pair(workload, server.name, number, error)
        return _print_values(workload, server.name, values)

    def _bare(self, workload: workloads.Load, number: int) -> dict[str, float]:
        """Measures the loop with the responses that were recorded in this round."""
        try:
            values = measure.measure_bare(self._bench, workload, self._recording)
        except NOT_MEASURED as error:
            return self._failed_pair(workload, report.BARE, number, error)
        finally:
            self._recording.unlink(missing_ok=True)
        return _print_values(workload, report.BARE, values)

    def _failed_pair(
        self, workload: workloads.Workload, side: str, number: int, error: Exception
    ) -> dict[str, float]:
        # A refused workload must not affect the others, so this round's pair is dropped.
        self.errors.append(f"{workload.name}, {side}, round {number + 1}: {error}")
        print(self.errors[-1], file=sys.stderr, flush=True)
        return {}


def _print_values(
    workload: workloads.Workload, side: str, values: dict[str, float]
) -> dict[str, float]:
    brief = {key: round(value, 1) for key, value in values.items()}
    print(f"{workload.name} {side} {brief}", file=sys.stderr, flush=True)
    return values


def explain(options: argparse.Namespace) -> list[str]:
    """Describes the measurement for the report."""
    rival = "the Galatea before" if options.before else "Triton"
    return [
        f"Server on one core, perf_analyzer on another; {options.rounds} rounds of",
        f"{options.duration:g} s, medians; a cell is Galatea / {rival} = ratio of a round.",
    ]


def write(options: argparse.Namespace, run: Run) -> None:
    """Prints the table, and writes the requested files."""
    print(report.table(run.results))
    if options.json:
        document = {
            "date": options.date,
            "machine": report.machine(),
            "rounds": options.rounds,
            "seconds": options.duration,
            "summary": report.summary(run.results),
            "measured": run.results,
            "errors": run.errors,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.append_results:
        text = report.section(
            options.date, report.machine(), explain(options), run.results, run.errors
        )
        with RESULTS.open("a") as results:
            results.write(("\n" if results.tell() else "# Results\n\n") + text)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command, and returns the exit status."""
    options = parse_arguments(arguments)
    chosen = workloads.select(workloads.all_workloads(), options.workloads)
    if not options.h2load:
        chosen = [each for each in chosen if not each.needs(workloads.Client.H2LOAD)]
    if options.list:
        print("\n".join(work.name for work in chosen))
        return 0
    os.sched_setaffinity(0, {options.load_core})
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as folder:
        work = pathlib.Path(folder)
        store = models.ModelStore(work)
        store.write(set().union(*(each.model_names() for each in chosen)))
        bench = measure.Bench(
            store=store,
            work=work,
            bare=bare.program(work, options.cc),
            perf_analyzer=options.perf_analyzer,
            h2load=options.h2load or "",
            server_core=options.server_core,
            load_core=options.load_core,
            seconds=options.duration,
        )
        run = Run(bench, programs(options, work))
        for each in chosen:
            run.workload(each, options.rounds)
    write(options, run)
    return 1 if run.errors else 0


if __name__ == "__main__":
    sys.exit(main())
