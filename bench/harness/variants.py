"""Compares the CPU time per request of servers that differ in their flags, at full load.

In each round, every variant of a server is measured, in an order that alternates between rounds.
The ratio to the first variant is a value. The table shows the medians and quartiles of these
values.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
from collections.abc import Sequence

from . import bare, measure, models, workloads
from .server import Program

#: Full load, so that a core is busy all the time.
WORKLOADS = ["identity16-http-32-h2load", "identity16-grpc-32-h2load"]

#: The variants of each server. The first is what the others are compared with.
Servers = Sequence[Sequence[Program]]


def compare(options: argparse.Namespace, work: pathlib.Path, servers: Servers) -> None:
    """Prints a row for each workload and each variant except the first."""
    names = options.workloads or WORKLOADS
    every = workloads.all_workloads()
    chosen = [each for each in every if any(text in each.name for text in names)]
    os.sched_setaffinity(0, {options.load_core})
    store = models.ModelStore(work)
    store.write(set().union(*(each.model_names() for each in chosen)))
    bench = measure.Bench(
        store=store, work=work, bare=bare.program(work, options.cc),
        perf_analyzer=options.perf_analyzer, h2load=options.h2load or "",
        server_core=options.server_core, load_core=options.load_core,
        seconds=options.duration,
    )
    print("| workload | server | CPU per request | compared with | ratio | quartiles |")
    print("|---|---|---|---|---|---|")
    for workload in chosen:
        for variants in servers:
            costs = _costs(bench, variants, workload, options.rounds)
            for program, cost in zip(variants[1:], costs[1:]):
                ratios = [value / base for value, base in zip(cost, costs[0])]
                low, middle, high = _quartiles(ratios)
                print(
                    f"| {workload.name} | {program.name} | {statistics.median(cost):.1f} µs "
                    f"| {variants[0].name}, {statistics.median(costs[0]):.1f} µs "
                    f"| {middle:.3f} | {low:.3f} to {high:.3f} |",
                    flush=True,
                )


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4) if len(values) > 1 else values * 3


def _costs(
    bench: measure.Bench, variants: Sequence[Program], workload: workloads.Workload, rounds: int
) -> list[list[float]]:
    """The CPU time per request of each variant in each round."""
    costs: list[list[float]] = [[] for _ in variants]
    for number in range(rounds):
        order = list(enumerate(variants))
        for index, program in order if number % 2 == 0 else reversed(order):
            costs[index].append(measure.measure(bench, program, workload)["cpu_us"])
    return costs
