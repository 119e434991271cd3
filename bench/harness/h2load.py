"""Runs h2load, and parses its log.

h2load repeats the same bytes and checks only the status, so it costs a fraction of what
perf_analyzer costs: with small tensors, perf_analyzer fills its own core before a fast server fills
the other.
"""

from __future__ import annotations

import pathlib
import shutil

from . import request_body
from .generator import ClientView, Plan
from .workloads import Load

MICROSECONDS = 1_000_000
OK = "200"


def find() -> str | None:
    """Searches for h2load on the path."""
    return shutil.which("h2load")


def plan(program: str, load: Load, address: str, seconds: float, work: pathlib.Path) -> Plan:
    """Plans a run of this many seconds."""
    report, body = work / "requests.tsv", work / "request.bin"
    command = [program, "-D", f"{round(seconds * 1000)}ms", "-d", str(body), f"--log-file={report}"]
    if load.protocol == "http":
        content, header_length = request_body.http_body(load.model)
        command += ["--h1", "-c", str(load.concurrency)]
        command += ["-H", "content-type: application/octet-stream"]
        command += ["-H", f"inference-header-content-length: {header_length}"]
        path = f"v2/models/{load.model}/infer"
    else:
        content = request_body.grpc_body(load.model)
        streams = min(load.concurrency, load.streams)
        command += ["-c", str(load.concurrency // streams), "-m", str(streams)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        method = "ModelStreamInfer" if load.is_streamed else "ModelInfer"
        path = f"inference.GRPCInferenceService/{method}"
    body.write_bytes(content)
    return Plan((*command, f"http://{address}/{path}"), report, parse_log)


def parse_log(text: str) -> ClientView:
    """Reads one line per request, which contains its start time, its status and its duration."""
    rows = [line.split("\t") for line in text.splitlines()]
    refused = [row[1] for row in rows if row[1] != OK]
    if refused or not rows:
        raise RuntimeError(f"{len(refused)} of {len(rows)} requests failed: {refused[:3]}")
    starts = [int(row[0]) for row in rows]
    latencies = sorted(int(row[2]) for row in rows)
    ends = (int(row[0]) + int(row[2]) for row in rows)
    return ClientView(
        throughput=len(rows) * MICROSECONDS / max(1, max(ends) - min(starts)),
        p50=float(latencies[len(latencies) // 2]),
        p99=float(latencies[len(latencies) * 99 // 100]),
    )
