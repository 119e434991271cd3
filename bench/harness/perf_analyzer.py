"""Runs perf_analyzer, and parses its report."""

from __future__ import annotations

import csv
import importlib.util
import os
import pathlib
import shutil
import sys

from . import tls
from .generator import ClientView, Plan
from .workloads import Load

WINDOWS = 3


def find() -> str | None:
    """Searches for perf_analyzer next to the running Python, then on the path."""
    beside = pathlib.Path(sys.executable).parent / "perf_analyzer"
    return str(beside) if beside.is_file() else shutil.which("perf_analyzer")


def _environment() -> dict[str, str]:
    """Adds the CUDA runtime library from its Python package, because the program links to
    it."""
    environment = dict(os.environ)
    try:
        package = importlib.util.find_spec("nvidia.cuda_runtime")
    except ModuleNotFoundError:
        package = None
    if package is not None and package.submodule_search_locations:
        folders = [f"{place}/lib" for place in package.submodule_search_locations]
        folders.append(environment.get("LD_LIBRARY_PATH", ""))
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    return environment


def plan(program: str, load: Load, address: str, seconds: float, work: pathlib.Path) -> Plan:
    """Plans a run that lasts about this many seconds once requests flow."""
    report = work / "load.csv"
    window_ms = round(seconds * 1000 / WINDOWS)
    scheme = "https://" if load.tls and load.protocol == "http" else ""
    command = [program, "-m", load.model, "-i", load.protocol, "-u", scheme + address]
    if load.tls:
        command += _tls_options(load, str(tls.certificate(work).certificate))
    command += ["--concurrency-range", str(load.concurrency)]
    # A single thread drives all clients, because several threads on one core can make it
    # hang.
    if load.concurrency > 1:
        command += ["-a", "--max-threads", "1"]
    for shape in load.shapes:
        command += ["--shape", shape]
    if load.shared_memory:
        size = 4 * max([_elements(shape) for shape in load.shapes], default=1024)
        command += ["--shared-memory", "system", "--output-shared-memory-size", str(size)]
    # Every run has the same number of windows, however much they differ. Instead, we reduce
    # noise by taking the median over rounds.
    command += ["-p", str(window_ms), "-r", str(WINDOWS), "-s", "999"]
    command += ["-f", str(report)]
    return Plan(tuple(command), report, parse_report, _environment())


def _tls_options(load: Load, certificate: str) -> list[str]:
    if load.protocol == "grpc":
        return ["--ssl-grpc-use-ssl", "--ssl-grpc-root-certifications-file", certificate]
    return ["--ssl-https-ca-certificates-file", certificate]


def _elements(shape: str) -> int:
    product = 1
    for dimension in shape.rpartition(":")[2].split(","):
        product *= int(dimension)
    return product


def parse_report(text: str) -> ClientView:
    """Reads the throughput, the median and the 99th percentile from the CSV report."""
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) != 1:
        raise RuntimeError(f"perf_analyzer reported {len(rows)} rows instead of one")
    row = rows[0]
    return ClientView(
        throughput=float(row["Inferences/Second"]),
        p50=float(row["p50 latency"]),
        p99=float(row["p99 latency"]),
    )
