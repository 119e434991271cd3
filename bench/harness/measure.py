"""Measures one workload on one server, once."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import time
from contextlib import AbstractContextManager

from . import bare, h2load, perf_analyzer, process, request_body, server, tls
from .generator import Generator, Plan
from .models import ModelStore
from .server import Program, ModelCounts, Server
from .workloads import Client, Load, Startup, Workload

SETTLE_SECONDS = 0.3
IDLE_SECONDS = 1.0
POLL_SECONDS = 0.02
KIBIBYTES_PER_MEBIBYTE = 1024
STARTS = 3

Values = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Bench:
    """The place and duration of a measurement."""

    store: ModelStore
    work: pathlib.Path
    # The program of the bare loop.
    bare: pathlib.Path
    perf_analyzer: str
    h2load: str
    server_core: int
    load_core: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The server, the model and the client at one moment."""

    time: float
    counts: ModelCounts
    server: process.Usage
    client: process.Usage | None


def measure(
    bench: Bench, program: Program, workload: Workload, recording: pathlib.Path | None = None
) -> Values:
    """Starts the server, measures the workload and stops the server.

    If there is a file for them and the workload needs them, the server's responses are recorded
    first.
    """
    if isinstance(workload, Startup):
        return _startup(bench, program, workload)
    with _start(bench, program, workload) as running:
        values = _under_load(bench, running, workload)
        if recording is not None and workload.compare_bare:
            bare.record(running.address("http"), workload.model, recording)
        return values


def measure_bare(bench: Bench, workload: Load, recording: pathlib.Path) -> Values:
    """Measures the workload on a loop that sends these responses."""
    ports = server.free_ports(2)
    command = [str(bench.bare), str(recording), str(ports[0])]
    log = bench.work / "bare.log"
    with server.started(command, (ports[0], ports[1]), bench.server_core, log) as running:
        return _under_load(bench, running, workload)


def _start(
    bench: Bench, program: Program, workload: Workload
) -> AbstractContextManager[Server]:
    copies = workload.copies if isinstance(workload, Startup) else 1
    repository = bench.store.repository(workload.model_names(), copies)
    log = bench.work / f"{program.name}.log"
    core = bench.server_core
    flags = []
    if isinstance(workload, Load) and workload.cache:
        flags.append(f"--cache-config={workload.cache}")
    if isinstance(workload, Load) and workload.apart:
        flags.append(f"--host-policy=cpu,cpu-cores={core}-{core}")
        core = bench.load_core
    context = None
    if isinstance(workload, Load) and workload.tls:
        certificate = tls.certificate(bench.work)
        flags += certificate.flags(workload)
        context = certificate.context() if workload.protocol == "http" else None
    program = dataclasses.replace(program, command=(*program.command, *flags))
    return server.running(program, repository, core, log, context)


def _startup(bench: Bench, program: Program, workload: Startup) -> Values:
    ready = []
    # The first start also reads programs and models from disk, so it isn't counted.
    for _ in range(STARTS):
        with _start(bench, program, workload) as running:
            ready.append(running.ready_seconds)
    with _start(bench, program, workload) as running:
        ready.append(running.ready_seconds)
        idle = _idle(running)
        workers = _worker_memory(running, workload)
    values = {
        "ready_ms": statistics.median(ready[1:]) * 1e3,
        "resident_mib": idle.resident / KIBIBYTES_PER_MEBIBYTE,
        "threads": float(idle.threads),
        **workers,
    }
    if workload.copies > 1:
        # The memory of the program and its libraries doesn't belong to any model.
        one_of_each = dataclasses.replace(workload, copies=1)
        with _start(bench, program, one_of_each) as running:
            few = _idle(running)
        models = len(workload.models) * (workload.copies - 1)
        values["model_kib"] = (idle.resident - few.resident) / models
    return values


def _worker_memory(running: Server, workload: Startup) -> Values:
    """The memory of a model's worker, before and after its first request."""
    values: Values = {}
    pids = process.descendants(running.pid)
    if not pids:
        return values
    count = len(workload.models) * workload.copies * KIBIBYTES_PER_MEBIBYTE
    for when in ("idle", "used"):
        found = process.memory(pids)
        values |= {
            f"{when}_rss_mib": found.resident / count,
            f"{when}_pss_mib": found.proportional / count,
            f"{when}_uss_mib": found.unique / count,
        }
        for name in workload.models:
            body, header_length = request_body.http_body(name)
            for number in range(1, workload.copies + 1):
                copy = name if number == 1 else f"{name}_{number}"
                running.infer(copy, body, header_length)
    return values


def _idle(running: Server) -> process.Usage:
    time.sleep(IDLE_SECONDS)
    return process.usage(running.pid)


def _under_load(bench: Bench, running: Server, load: Load) -> Values:
    seconds = bench.seconds * load.longer
    plan = _plan(bench, running, load, seconds + 2 * SETTLE_SECONDS)
    generator = Generator(plan, bench.load_core)
    try:
        _wait_for_requests(running, load, generator)
        time.sleep(SETTLE_SECONDS)
        before = _snapshot(running, load, generator)
        time.sleep(seconds)
        after = _snapshot(running, load, generator)
        client = generator.finish(seconds)
    finally:
        generator.close()
    values = per_request(before, after, cached=load.cache is not None)
    return values | {"throughput": client.throughput, "p50_us": client.p50, "p99_us": client.p99}


def _plan(bench: Bench, running: Server, load: Load, seconds: float) -> Plan:
    address = running.address(load.protocol)
    match load.client:
        case Client.PERF_ANALYZER:
            return perf_analyzer.plan(bench.perf_analyzer, load, address, seconds, bench.work)
        case Client.H2LOAD:
            return h2load.plan(bench.h2load, load, address, seconds, bench.work)


def _wait_for_requests(running: Server, load: Load, generator: Generator) -> None:
    while running.counts(load.model).requests <= load.concurrency:
        if generator.ended():
            generator.finish(0.0)
            return
        time.sleep(POLL_SECONDS)


def _snapshot(running: Server, load: Load, generator: Generator) -> Snapshot:
    return Snapshot(
        time=time.monotonic(),
        counts=running.counts(load.model),
        server=process.usage(running.pid),
        client=None if generator.ended() else process.usage(generator.pid),
    )


def per_request(before: Snapshot, after: Snapshot, *, cached: bool = False) -> Values:
    """Divides the server's usage between two snapshots by the number of completed requests.

    A cache has to serve either all or none of them.
    """
    requests = after.counts.requests - before.counts.requests
    executions = after.counts.executions - before.counts.executions
    if requests <= 0 or (executions <= 0 and not cached):
        raise RuntimeError("the server answered no request in the measured time")
    if cached and executions > 0:
        raise RuntimeError(f"the cache lacked the answers of {executions} executions")
    user = after.server.user - before.server.user
    kernel = after.server.kernel - before.server.kernel
    values = {
        "cpu_us": (user + kernel) * 1e6 / requests,
        "kernel_us": kernel * 1e6 / requests,
        "children_us": (after.server.children - before.server.children) * 1e6 / requests,
        "switches": _switches(before, after) / requests,
        "resident_mib": after.server.resident / KIBIBYTES_PER_MEBIBYTE,
        "peak_mib": after.server.resident_peak / KIBIBYTES_PER_MEBIBYTE,
        "requests": requests,
        "failures": after.counts.failures,
    }
    if values["children_us"] > 0:
        values["all_us"] = values["cpu_us"] + values["children_us"]
    if executions > 0:
        values["batch"] = (after.counts.inferences - before.counts.inferences) / executions
    if before.client and after.client:
        spent = after.client.user + after.client.kernel - before.client.user - before.client.kernel
        values["client_core"] = spent / (after.time - before.time)
    return values


def _switches(before: Snapshot, after: Snapshot) -> int:
    def total(usage: process.Usage) -> int:
        return usage.voluntary_switches + usage.involuntary_switches

    return total(after.server) - total(before.server)


def direct_throughput(bench: Bench, model: str, batch: int) -> float:
    """The inferences per second of ONNX Runtime alone, on the server's core."""
    program = pathlib.Path(__file__).with_name("direct.py")
    command = ["taskset", "-c", str(bench.server_core), sys.executable, str(program)]
    command += [str(bench.store.network(model)), str(batch), str(bench.seconds)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(result.stdout))


def fed_throughput(bench: Bench, load: Load, batch: int) -> float:
    """The inferences per second of a loop on the server's core that reads its batches from
    sockets."""
    program = pathlib.Path(__file__).with_name("fed.py")
    (port,) = server.free_ports(1)
    command = ["taskset", "-c", str(bench.server_core), sys.executable, str(program)]
    command += [str(bench.store.network(load.model)), str(batch), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as loop:
        try:
            if loop.stdout is None or not loop.stdout.readline():
                raise RuntimeError("the loop that is fed did not start")
            over_http = dataclasses.replace(load, protocol="http")
            plan = h2load.plan(
                bench.h2load, over_http, f"{server.HOST}:{port}", bench.seconds, bench.work
            )
            generator = Generator(plan, bench.load_core)
            try:
                return generator.finish(bench.seconds).throughput
            finally:
                generator.close()
        finally:
            loop.terminate()
