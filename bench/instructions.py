"""Counts the instructions of plain requests, and of requests with metrics and traces.

    python bench/instructions.py --galatea target/release/galatea [--plain] [--only WORDS] [--agree]

It accepts the options of run.py. Valgrind counts the instructions. Even on a busy machine, the
counts are repeatable to a few parts in 10,000, unlike the CPU time that metrics.py and tracing.py
measure. Plain requests are compared with the numbers in instructions.toml, which --agree rewrites.
See bench/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
import metrics  # noqa: E402
import run  # noqa: E402
import tracing  # noqa: E402
from harness import models, request_body, server  # noqa: E402

MODEL = "identity"
CLIENTS = 32
#: What the server does once is taken out by the difference of two runs.
FEW, MANY = 1_000, 6_000

AGREED = pathlib.Path(__file__).resolve().with_suffix(".toml")
#: The part of the agreed instructions that a plain request may take in addition.
GROWTH_MAX = 0.005

COUNT = re.compile(rb"Collected : (\d+)")


@dataclasses.dataclass(frozen=True)
class Load:
    """Requests to a model, sent one after the other on each connection."""

    protocol: str
    model: str
    clients: int = 1

    @property
    def name(self) -> str:
        """Its name in the table and in the file of agreed numbers."""
        return f"{self.protocol}_{self.model}"

    def models(self) -> tuple[str, ...]:
        """The models in the repository."""
        return (self.model, models.STEP) if self.model == models.THREE_STEPS else (self.model,)


#: The way of a plain request: through each door, and to each kind of model.
PLAIN = tuple(
    Load(protocol, model)
    for model in (MODEL, models.STEP, models.THREE_STEPS, models.SEQUENCE)
    for protocol in ("http", "grpc")
)


def infer(
    options: argparse.Namespace, work: pathlib.Path, address: str, load: Load, requests: int
) -> None:
    """Sends this number of requests to the model."""
    body = work / "request.bin"
    command = [options.h2load, "-n", str(requests), "-c", str(load.clients), "-m", "1"]
    if load.protocol == "http":
        content, header_length = request_body.http_body(load.model)
        command += ["--h1", "-H", "content-type: application/octet-stream"]
        command += ["-H", f"inference-header-content-length: {header_length}"]
        path = f"v2/models/{load.model}/infer"
    else:
        content = request_body.grpc_body(load.model)
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        path = "inference.GRPCInferenceService/ModelInfer"
    body.write_bytes(content)
    command += ["-d", str(body), f"http://{address}/{path}"]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if f" {requests} succeeded" not in log:
        sys.exit(f"not every request succeeded:\n{log}")


def count(
    options: argparse.Namespace,
    work: pathlib.Path,
    program: server.Program,
    load: Load,
    requests: int,
) -> int:
    """The number of instructions of a server that starts, responds to this number of requests
    and stops."""
    log = work / "server.log"
    valgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={work / 'callgrind.out'}")
    counted = server.Program(program.name, (*valgrind, *program.command))
    repository = models.ModelStore(work).repository(load.models())
    with server.running(counted, repository, options.server_core, log) as running:
        infer(options, work, running.address(load.protocol), load, requests)
    found = COUNT.search(log.read_bytes())
    if not found:
        sys.exit(f"valgrind told no count:\n{log.read_text(errors='replace')}")
    return int(found.group(1))


def each(
    options: argparse.Namespace, work: pathlib.Path, program: server.Program, load: Load
) -> float:
    """The number of instructions per request."""
    many, few = (count(options, work, program, load, number) for number in (MANY, FEW))
    return (many - few) / (MANY - FEW)


def plain(options: argparse.Namespace, work: pathlib.Path, ours: server.Program) -> dict[str, int]:
    """Prints a row for each kind of plain request, and returns the numbers.

    One thread serves one client, whose requests follow one another. With more threads or clients,
    the number of times that a thread waits, and therefore the number of instructions, would depend
    on the machine's load.
    """
    program = server.Program(ours.name, (*ours.command, "--http-thread-count=1"))
    agreed = read_agreed()
    found = {}
    print("| way | instructions per request | agreed | ratio |")
    print("|---|---|---|---|")
    for load in PLAIN:
        if options.only and options.only not in load.name:
            continue
        number = found[load.name] = round(each(options, work, program, load))
        known = agreed.get(load.name)
        rest = f"{known:,} | {number / known:.4f}" if known else "- | -"
        print(f"| {load.name} | {number:,} | {rest} |", flush=True)
    return found


def variants(options: argparse.Namespace, work: pathlib.Path, ours: server.Program) -> None:
    """Prints a row for each variant of metrics and traces."""
    load = Load("http", MODEL, CLIENTS)
    with tracing.collecting() as url:
        print("\n| server | instructions per request | compared with the first |")
        print("|---|---|---|")
        first = None
        for program in (*metrics.of(ours), *tracing.of(ours, work, url)):
            number = each(options, work, program, load)
            first = first or number
            print(f"| {program.name} | {number:,.0f} | {number / first:.4f} |", flush=True)


def read_agreed() -> dict[str, int]:
    """The agreed numbers for each kind of request."""
    return tomllib.loads(AGREED.read_text())["instructions"]


def grown(agreed: dict[str, int], found: dict[str, int]) -> list[str]:
    """The kinds of requests that take more instructions than agreed."""
    return [
        f"{name}: {number:,} instructions, where {agreed[name]:,} are agreed"
        for name, number in found.items()
        if name in agreed and number > agreed[name] * (1 + GROWTH_MAX)
    ]


def agreed_text(text: str, found: dict[str, int]) -> str:
    """The text of the file of agreed numbers, with these numbers."""
    for name, number in found.items():
        text, count_of = re.subn(rf"(?m)^{name} = .*$", f"{name} = {number:_}", text)
        if not count_of:
            text += f"{name} = {number:_}\n"
    return text


def parse_arguments() -> argparse.Namespace:
    """Parses the command line. perf_analyzer is not needed."""
    known = run.parser()
    known.add_argument("--only", metavar="TEXT", help="plain requests whose way has this name")
    known.add_argument("--plain", action="store_true", help="plain requests alone")
    known.add_argument("--agree", action="store_true", help="write the numbers to the file")
    options = known.parse_args()
    options.perf_analyzer = options.perf_analyzer or "unused"
    run.check(known, options)
    return options


def main() -> None:
    """Prints the tables. The exit code is 1 if a plain request takes more instructions than
    agreed."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as place:
        work = pathlib.Path(place)
        models.ModelStore(work).write({name for load in PLAIN for name in load.models()})
        ours = run.programs(options, work)[0]
        found = plain(options, work, ours)
        if not (options.only or options.plain or options.agree):
            variants(options, work, ours)
    if options.agree:
        AGREED.write_text(agreed_text(AGREED.read_text(), found))
        return
    mistakes = grown(read_agreed(), found)
    if mistakes:
        sys.exit("\n".join(mistakes))


if __name__ == "__main__":
    main()
