"""Creates metrics with the functions of tritonserver.h, and prints the results.

    python metrics.py LIBRARY REPOSITORY

Prints a JSON document: the list of results of each case.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import byref, c_bool, c_char_p, c_double, c_size_t, c_uint, c_uint64, c_void_p

from functions import Functions

COUNTER, GAUGE, HISTOGRAM = range(3)


class Program(Functions):
    """A server and its custom metrics."""

    def __init__(self, library: str, repository: str) -> None:
        super().__init__(library)
        self.library.TRITONSERVER_ParameterNew.restype = c_void_p
        self.server, options = c_void_p(), c_void_p()
        self.check_call("ServerOptionsNew", byref(options))
        self.check_call("ServerOptionsSetModelRepositoryPath", options, repository.encode())
        self.check_call("ServerOptionsSetModelControlMode", options, c_uint(2))
        self.check_call("ServerOptionsSetMetrics", options, c_bool(True))
        self.check_call("ServerOptionsSetGpuMetrics", options, c_bool(False))
        self.check_call("ServerOptionsSetLogInfo", options, c_bool(False))
        self.check_call("ServerNew", byref(self.server), options)
        self.check_call("ServerOptionsDelete", options)

    def family(self, kind: int, name: str) -> c_void_p:
        family = c_void_p()
        named = c_uint(kind), name.encode(), f"What {name} is".encode()
        self.check_call("MetricFamilyNew", byref(family), *named)
        return family

    def metric(self, family: c_void_p, args: object = (), **labels: str) -> c_void_p | str:
        """A metric, or the error; `args` are none, MetricArgs or null."""
        made = [
            c_void_p(
                self.library.TRITONSERVER_ParameterNew(name.encode(), c_uint(0), text.encode())
            )
            for name, text in labels.items()
        ]
        metric, array = c_void_p(), (c_void_p * max(len(made), 1))(*made)
        given = byref(metric), family, array, c_uint64(len(made))
        if args == ():
            error = self.call("MetricNew", *given)
        else:
            error = self.call("MetricNewWithArgs", *given, args)
        for one in made:
            self.library.TRITONSERVER_ParameterDelete(one)
        return error or metric

    def arguments(self, *bounds: float) -> c_void_p:
        args = c_void_p()
        self.check_call("MetricArgsNew", byref(args))
        self.check_call(
            "MetricArgsSetHistogram", args, (c_double * len(bounds))(*bounds), c_uint64(len(bounds))
        )
        return args

    def change(self, metric: c_void_p, **steps: float) -> list[object]:
        """The result of each function with a value, and the value afterwards."""
        results: list[object] = []
        for name, value in steps.items():
            results.append(self.call(f"Metric{name.rstrip('_')}", metric, c_double(value)))
            results.append(self.read("MetricValue", metric, c_double))
        return results

    def exposition(self, name: str) -> list[str]:
        """The lines of a family in the metrics text."""
        metrics, text, size = c_void_p(), c_char_p(), c_size_t()
        self.check_call("ServerMetrics", self.server, byref(metrics))
        self.check_call("MetricsFormatted", metrics, c_uint(0), byref(text), byref(size))
        lines = ctypes.string_at(text, size.value).decode().splitlines()
        self.check_call("MetricsDelete", metrics)
        return sorted(line for line in lines if name in line)


def numbers(program: Program) -> list[object]:
    """A counter grows, a gauge also falls, and neither accepts observations."""
    counter, gauge = program.family(COUNTER, "c_count"), program.family(GAUGE, "c_level")
    families = counter, gauge
    results: list[object] = [program.read("GetMetricFamilyKind", one, c_uint) for one in families]
    one, other = program.metric(counter), program.metric(gauge, None, place="here", side="left")
    results += [program.read("GetMetricKind", metric, c_uint) for metric in (one, other)]
    results += program.change(one, Increment=2.5, Increment_=-1, Set=4, Observe=1)
    results += program.change(other, Increment=2.5, Increment_=-4, Set=7, Observe=1)
    twin = program.metric(gauge, side="left", place="here")
    results += program.change(twin, Increment=1)
    results += program.change(other)
    results += program.exposition("c_count") + program.exposition("c_level")
    program.check_call("MetricDelete", other)
    results += program.exposition("c_level{")
    program.check_call("MetricDelete", twin)
    results += program.exposition("c_level{")
    program.check_call("MetricDelete", one)
    for family in families:
        program.check_call("MetricFamilyDelete", family)
    return results


def histograms(program: Program) -> list[object]:
    """Histograms need bounds, and count observations."""
    family = program.family(HISTOGRAM, "c_sizes")
    bare = program.arguments()
    results: list[object] = [program.read("GetMetricFamilyKind", family, c_uint)]
    bounds = program.arguments(1, 2.5)
    metric = program.metric(family, bounds, place="here")
    program.check_call("MetricArgsDelete", bounds)
    program.check_call("MetricArgsDelete", bare)
    results.append(program.read("GetMetricKind", metric, c_uint))
    results += program.change(metric, Observe=1, Increment=1, Set=1)
    for value in (1.5, 2.5, 100):
        program.check_call("MetricObserve", metric, c_double(value))
    results += program.exposition("c_sizes")
    program.check_call("MetricDelete", metric)
    program.check_call("MetricFamilyDelete", family)
    return results


def invalid_arguments(program: Program) -> list[object]:
    """Calls with invalid arguments."""
    results: list[object] = []
    family = c_void_p()
    results.append(program.call("MetricFamilyNew", byref(family), c_uint(9), b"c_none", b""))
    gauge = program.family(GAUGE, "c_wrong")
    bounds = program.arguments(1)
    results.append(program.metric(gauge, bounds))
    histogram = program.family(HISTOGRAM, "c_wrong_too")
    results.append(program.metric(histogram))
    results.append(program.metric(histogram, None))
    fresh = c_void_p()
    program.check_call("MetricArgsNew", byref(fresh))
    results.append(program.metric(histogram, fresh))
    for args in (bounds, fresh):
        program.check_call("MetricArgsDelete", args)
    results.append(program.call("MetricFamilyNew", byref(family), c_uint(GAUGE), b"c-wrong", b""))
    clash = byref(family), c_uint(COUNTER), b"c_wrong", b""
    results.append(program.call("MetricFamilyNew", *clash))
    results.append(program.metric(gauge, None, **{"not-a-label": "x"}))
    for family in (gauge, histogram):
        program.check_call("MetricFamilyDelete", family)
    return results


def deletion_order(program: Program) -> list[object]:
    """A family is deleted before its metric."""
    family = program.family(GAUGE, "c_order")
    metric = program.metric(family)
    results: list[object] = [program.call("MetricFamilyDelete", family)]
    results += program.change(metric, Set=3)
    results += program.exposition("c_order")
    results.append(program.call("MetricDelete", metric))
    results.append(program.call("MetricFamilyDelete", family))
    return results


def main() -> None:
    """Runs every case."""
    program = Program(*sys.argv[1:])
    cases = [numbers, histograms, invalid_arguments, deletion_order]
    json.dump({case.__name__: case(program) for case in cases}, sys.stdout)
    program.check_call("ServerDelete", program.server)


if __name__ == "__main__":
    main()
