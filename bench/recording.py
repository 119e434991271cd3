"""Measures the cost of recording traffic, in instructions and CPU time per request.

    python bench/recording.py --galatea target/release/galatea

Recording is off, allowed, or read by a client. Valgrind counts the instructions. The CPU time is
the kernel's, measured in alternating rounds. See bench/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
from harness import h2load, models, process, request_body, server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = "identity"
CLIENTS = 32
#: What the server does once is taken out by the difference of two runs.
FEW, MANY = 1_000, 11_000

OFF, ALLOWED, READ = "off", "allowed", "allowed, and a client reads"
FLAG = "--allow-traffic-recording=true"
COUNT = re.compile(rb"Collected : (\d+)")

CONFIG = models.IDENTITY_CONFIG
DYNAMIC = "dynamic_batching { }\n"


def infer(options: argparse.Namespace, work: pathlib.Path, address: str, requests: int) -> None:
    """Sends this number of requests to the model."""
    content, header_length = request_body.http_body(MODEL)
    body = work / "request.bin"
    body.write_bytes(content)
    command = [
        "taskset", "-c", str(options.load_core), options.h2load, "--h1", "-n", str(requests),
        "-c", str(CLIENTS), "-d", str(body), "-H", "content-type: application/octet-stream",
        "-H", f"inference-header-content-length: {header_length}",
        f"http://{address}/v2/models/{MODEL}/infer",
    ]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if f" {requests} succeeded" not in log:
        sys.exit(f"not every request succeeded:\n{log}")


@contextlib.contextmanager
def read(
    options: argparse.Namespace, work: pathlib.Path, address: str, variant: str
) -> Iterator[None]:
    """Reads the model's recording, if the variant includes this. Nothing may be lost."""
    if variant != READ:
        yield
        return
    output = work / "traffic.jsonl"
    command = [
        "taskset", "-c", str(options.load_core), *shlex.split(options.galatea), "record",
        f"http://{address}", "--model", MODEL, "--output", str(output), "--seconds", "600",
        "--max-bytes", str(1 << 30),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        while not output.exists() or output.stat().st_size == 0:
            if reader.poll() is not None:
                sys.exit("the recording ended")
        yield
        reader.terminate()
    lost = re.findall(rb'^{"lost":(\d+)}', output.read_bytes(), re.MULTILINE)
    output.unlink()
    if lost:
        print(f"{sum(map(int, lost))} requests and executions were lost", file=sys.stderr)


@contextlib.contextmanager
def serving(
    options: argparse.Namespace, work: pathlib.Path, variant: str, config: str, *before: str
) -> Iterator[server.Server]:
    """A server with the model."""
    flags = () if variant == OFF else (FLAG,)
    program = server.Program("galatea", (*before, *shlex.split(options.galatea), *flags))
    repository = work / "models"
    (repository / MODEL / "1").mkdir(parents=True, exist_ok=True)
    (repository / MODEL / "config.pbtxt").write_text(config)
    log = work / "server.log"
    with server.running(program, repository, options.server_core, log) as running:
        yield running


def instructions(
    options: argparse.Namespace, work: pathlib.Path, variant: str, config: str
) -> float:
    """The number of instructions per request outside the kernel."""
    counts = []
    for requests in (FEW, MANY):
        output = f"--callgrind-out-file={work / 'callgrind.out'}"
        valgrind = ("valgrind", "--tool=callgrind", output)
        with (
            serving(options, work, variant, config, *valgrind) as running,
            read(options, work, running.address("http"), variant),
        ):
            infer(options, work, running.address("http"), requests)
        found = COUNT.search((work / "server.log").read_bytes())
        if not found:
            sys.exit("valgrind told no count")
        counts.append(int(found.group(1)))
    return (counts[1] - counts[0]) / (MANY - FEW)


def microseconds(
    options: argparse.Namespace, work: pathlib.Path, variant: str, config: str
) -> float:
    """The CPU time per request."""
    with (
        serving(options, work, variant, config) as running,
        read(options, work, running.address("http"), variant),
    ):
        infer(options, work, running.address("http"), options.requests // 10)
        before = process.usage(running.pid)
        infer(options, work, running.address("http"), options.requests)
        after = process.usage(running.pid)
    spent = after.user + after.kernel - before.user - before.kernel
    return spent * 1e6 / options.requests


def main() -> None:
    """Prints a row for each variant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--galatea", default=str(ROOT / "target/release/galatea"), metavar="COMMAND")
    add("--h2load", default=h2load.find(), metavar="FILE")
    add("--rounds", type=int, default=5)
    add("--requests", type=int, default=200_000, help="of a round")
    add("--server-core", type=int, default=0)
    add("--load-core", type=int, default=1)
    options = parser.parse_args()
    print("| model | recording | instructions per request | | CPU µs per request | |")
    print("|---|---|---|---|---|---|")
    variants = (OFF, ALLOWED, READ)
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as place:
        work = pathlib.Path(place)
        for name, config in (("direct", CONFIG), ("dynamic batcher", CONFIG + DYNAMIC)):
            counted = {one: instructions(options, work, one, config) for one in variants}
            times: dict[str, list[float]] = {one: [] for one in variants}
            for _ in range(options.rounds):
                for one in variants:
                    times[one].append(microseconds(options, work, one, config))
            for one in variants:
                ratio = statistics.median(
                    mine / off for mine, off in zip(times[one], times[OFF], strict=True)
                )
                print(
                    f"| {name} | {one} | {counted[one]:,.0f} | {counted[one] / counted[OFF]:.4f} "
                    f"| {statistics.median(times[one]):.2f} | {ratio:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
