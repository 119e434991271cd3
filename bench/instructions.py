"""Counts the instructions of a request outside the kernel, with and without metrics and traces.

    python bench/instructions.py --galatea target/release/galatea

Takes the options of run.py. The counts are valgrind's: they repeat to a few parts of 1,000 on a
busy machine too, where the CPU time of metrics.py and tracing.py does not. See bench/README.md.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
import metrics  # noqa: E402
import run  # noqa: E402
import tracing  # noqa: E402
from harness import models, request_body, server  # noqa: E402

MODEL = "identity"
CLIENTS = 32
#: What the server does once is taken out by the difference of two runs.
FEW, MANY = 1_000, 11_000

COUNT = re.compile(rb"Collected : (\d+)")


def infer(options: argparse.Namespace, work: pathlib.Path, address: str, requests: int) -> None:
    """Sends this number of requests to the model."""
    content, header_length = request_body.http_body(MODEL)
    body = work / "request.bin"
    body.write_bytes(content)
    command = [
        options.h2load, "--h1", "-n", str(requests), "-c", str(CLIENTS), "-d", str(body),
        "-H", "content-type: application/octet-stream",
        "-H", f"inference-header-content-length: {header_length}",
        f"http://{address}/v2/models/{MODEL}/infer",
    ]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if f" {requests} succeeded" not in log:
        sys.exit(f"not every request succeeded:\n{log}")


def count(
    options: argparse.Namespace, work: pathlib.Path, program: server.Program, requests: int
) -> int:
    """The instructions of a server that starts, answers this number of requests and stops."""
    log = work / "server.log"
    valgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={work / 'callgrind.out'}")
    counted = server.Program(program.name, (*valgrind, *program.command))
    repository = models.ModelStore(work).repository((MODEL,))
    with server.running(counted, repository, options.server_core, log) as running:
        infer(options, work, running.address("http"), requests)
    found = COUNT.search(log.read_bytes())
    if not found:
        sys.exit(f"valgrind told no count:\n{log.read_text(errors='replace')}")
    return int(found.group(1))


def main() -> None:
    """Prints a row for each variant."""
    options = run.parse_arguments(None)
    with tracing.collecting() as url, tempfile.TemporaryDirectory(prefix="galatea-bench-") as place:
        work = pathlib.Path(place)
        models.ModelStore(work).write({MODEL})
        ours = run.programs(options, work)[0]
        print("| server | instructions per request | compared with the first |")
        print("|---|---|---|")
        first = None
        for program in (*metrics.of(ours), *tracing.of(ours, work, url)):
            many, few = (count(options, work, program, number) for number in (MANY, FEW))
            each = (many - few) / (MANY - FEW)
            first = first or each
            print(f"| {program.name} | {each:,.0f} | {each / first:.4f} |", flush=True)


if __name__ == "__main__":
    main()
