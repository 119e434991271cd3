"""Measures what metrics cost at full load: CPU per request with all of them, and with none.

    python bench/metrics.py --galatea target/release/galatea [--triton COMMAND]

Takes the options of run.py. In each round every server is measured without metrics and with all
of them, one after the other in an order that alternates, and the ratio of the two is a value. The
table shows the median of these values and their quartiles. See bench/README.md.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
import run  # noqa: E402
from harness import bare, measure, models, report, workloads  # noqa: E402
from harness.server import Program  # noqa: E402

WORKLOADS = ["identity16-http-32-h2load", "identity16-grpc-32-h2load"]
NONE = ("--allow-metrics=false",)
ALL = tuple(
    f"--metrics-config={setting}=true" for setting in ("histogram_latencies", "summary_latencies")
)
#: Triton takes unknown settings, but has no use for this one.
OWN = "--metrics-config=galatea_histograms=true"


def variants(program: Program) -> tuple[Program, Program]:
    """The server without metrics and with all of them."""
    every = (*ALL, OWN) if program.name == report.OURS else ALL
    return (
        Program(f"{program.name}-none", (*program.command, *NONE)),
        Program(f"{program.name}-all", (*program.command, *every)),
    )


def ratios(
    bench: measure.Bench, program: Program, workload: workloads.Workload, rounds: int
) -> tuple[list[float], list[float]]:
    """CPU per request without metrics, and with all of them compared to that."""
    without, shares = [], []
    for number in range(rounds):
        pair = variants(program)
        order = pair if number % 2 == 0 else pair[::-1]
        cost = {each.name: measure.measure(bench, each, workload)["cpu_us"] for each in order}
        none, every = (cost[each.name] for each in pair)
        without.append(none)
        shares.append(every / none)
    return without, shares


def main() -> None:
    """Prints a row for each workload and server."""
    options = run.parse_arguments(None)
    names = options.workloads or WORKLOADS
    chosen = [each for each in workloads.all_workloads() if each.name in names]
    os.sched_setaffinity(0, {options.load_core})
    print("| workload | server | CPU per request without | with all, of that | quartiles |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as folder:
        work = pathlib.Path(folder)
        store = models.ModelStore(work)
        store.write(set().union(*(each.model_names() for each in chosen)))
        bench = measure.Bench(
            store=store, work=work, bare=bare.program(work, options.cc),
            perf_analyzer=options.perf_analyzer, h2load=options.h2load or "",
            server_core=options.server_core, load_core=options.load_core,
            seconds=options.duration,
        )
        for workload in chosen:
            for program in run.programs(options, work):
                without, shares = ratios(bench, program, workload, options.rounds)
                low, middle, high = statistics.quantiles(shares, n=4)
                print(
                    f"| {workload.name} | {program.name} | {statistics.median(without):.1f} µs "
                    f"| {middle:.3f} | {low:.3f} to {high:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
