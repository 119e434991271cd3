"""Measures how the cost of a request grows with models, sequences, connections and scrapes.

    python bench/growth.py --galatea target/release/galatea [--docs docs/images] [--json FILE]

The cost is the server's CPU time per request, in user and kernel mode, between two moments. Each
point is measured once per round, and the table contains medians. It also accepts the options of
run.py. See bench/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
import run  # noqa: E402
from harness import models, plot, process, request_body, sequence_crowd, server  # noqa: E402

MODEL = "identity"
CLIENTS = 32
MODELS = [1, 100, 1_000]
SEQUENCES = [1_000, 10_000, 100_000, 1_000_000]
CONNECTIONS = [32, 1_000, 10_000]
SCRAPE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Stage:
    """The parts that the measurements share."""

    options: argparse.Namespace
    work: pathlib.Path
    program: server.Program
    store: models.ModelStore

    @contextlib.contextmanager
    def serve(self, repository: pathlib.Path) -> Iterator[server.Server]:
        """A server on its core."""
        core = self.options.server_core
        log = self.work / "server.log"
        with server.running(self.program, repository, core, log) as running:
            yield running

    def load(self, address: str, paths: list[str], requests: int, clients: int) -> None:
        """Sends requests to the paths in turn. All requests must succeed."""
        content, header_length = request_body.http_body(MODEL)
        body, uris = self.work / "request.bin", self.work / "uris.txt"
        body.write_bytes(content)
        uris.write_text("".join(f"http://{address}{path}\n" for path in paths))
        command = [
            "taskset", "-c", str(self.options.load_core), self.options.h2load, "--h1",
            "-n", str(requests), "-c", str(clients), "-d", str(body), "-i", str(uris),
            "-H", "content-type: application/octet-stream",
            "-H", f"inference-header-content-length: {header_length}",
        ]
        log = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        if f" {requests} succeeded" not in log:
            raise RuntimeError(f"not every request succeeded:\n{log}")

    def cost(self, running: server.Server, requests: int, send: Callable[[], None]) -> float:
        """The server's CPU time per request, in microseconds."""
        before = process.usage(running.pid)
        send()
        after = process.usage(running.pid)
        spent = after.user + after.kernel - before.user - before.kernel
        return spent * 1e6 / requests


#: CPU microseconds for a request, by the number of what grows.
Costs = dict[int, float]


def path_of(model: str) -> str:
    """The path for requests to a model."""
    return f"/v2/models/{model}/infer"


def with_models(stage: Stage) -> Costs:
    """The cost with different numbers of models, with requests to all of them in turn."""
    costs = {}
    for count in MODELS:
        repository = stage.store.repository((MODEL,), count)
        names = sorted(one.name for one in repository.iterdir())
        with stage.serve(repository) as running:
            paths = [path_of(name) for name in names]
            requests = stage.options.requests
            address = running.address("http")
            stage.load(address, paths, requests // 5, CLIENTS)
            send = lambda: stage.load(address, paths, requests, CLIENTS)  # noqa: E731
            costs[count] = stage.cost(running, requests, send)
    return costs


def with_sequences(stage: Stage) -> Costs:
    """Requests of randomly chosen live sequences."""
    repository = stage.work / "sequences"
    folder = repository / sequence_crowd.MODEL
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(sequence_crowd.config())
    costs, live = {}, 0
    with stage.serve(repository) as running:
        address = running.address("http")
        begin = process.usage(running.pid).resident
        for count in SEQUENCES:
            sequence_crowd.start(address, count - live, live)
            live = count
            requests = stage.options.requests
            send = lambda: sequence_crowd.go_on(address, live, requests)  # noqa: E731
            costs[count] = stage.cost(running, requests, send)
        size = (process.usage(running.pid).resident - begin) * 1024 / live
    print(f"a live sequence takes {size:,.0f} bytes", file=sys.stderr)
    return costs


def with_connections(stage: Stage) -> Costs:
    """Requests over many connections at once."""
    costs = {}
    for count in CONNECTIONS:
        with stage.serve(stage.store.repository((MODEL,))) as running:
            address, requests = running.address("http"), max(stage.options.requests, 5 * count)
            stage.load(address, [path_of(MODEL)], requests // 5, CLIENTS)
            send = lambda: stage.load(address, [path_of(MODEL)], requests, count)  # noqa: E731
            costs[count] = stage.cost(running, requests, send)
    return costs


def with_idle_connections(stage: Stage) -> Costs:
    """Requests from 32 clients, in addition to idle connections."""
    costs = {}
    with stage.serve(stage.store.repository((MODEL,))) as running, contextlib.ExitStack() as stack:
        address, requests = running.address("http"), stage.options.requests
        host, _, port = address.partition(":")
        idle = 0
        for count in [0, *CONNECTIONS[1:]]:
            for _ in range(count - idle):
                stack.enter_context(socket.create_connection((host, int(port))))
            idle = count
            send = lambda: stage.load(address, [path_of(MODEL)], requests, CLIENTS)  # noqa: E731
            send()
            costs[count] = stage.cost(running, requests, send)
    return costs


def with_scrapes(stage: Stage) -> Costs:
    """Requests while the metrics of many models are scraped every second; 0 means that they
    aren't scraped."""
    costs = {}
    for count in [0, *MODELS]:
        repository = stage.store.repository((MODEL,), max(1, count))
        with stage.serve(repository) as running, scraped(running if count else None):
            address, requests = running.address("http"), 5 * stage.options.requests
            send = lambda: stage.load(address, [path_of(MODEL)], requests, CLIENTS)  # noqa: E731
            costs[count] = stage.cost(running, requests, send)
    return costs


@contextlib.contextmanager
def scraped(running: server.Server | None) -> Iterator[None]:
    """Scrapes a server's metrics every second."""
    stopped = threading.Event()

    def scrape() -> None:
        while running is not None and not stopped.wait(SCRAPE_SECONDS):
            with urllib.request.urlopen(f"http://{running.address('metrics')}/metrics") as page:
                page.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


GROWTHS: dict[str, tuple[str, Callable[[Stage], Costs]]] = {
    "models": ("models", with_models),
    "sequences": ("live sequences", with_sequences),
    "connections": ("connections", with_connections),
    "idle": ("idle connections beside 32", with_idle_connections),
    "scrapes": ("models scraped each second", with_scrapes),
}


def draw(
    options: argparse.Namespace, name: str, title: str, x: str, y: str, series: dict[str, plot.Points]
) -> None:
    """Draws a plot if there is a directory for it."""
    if options.docs:
        options.docs.mkdir(parents=True, exist_ok=True)
        scale = plot.Scale(log_x=True, marks=True)
        (options.docs / f"{name}.svg").write_text(plot.lines(title, x, y, series, scale))


def measure_costs(stage: Stage, names: list[str], rounds: int) -> dict[str, dict[int, list[float]]]:
    """All rounds for one quantity that grows."""
    measured: dict[str, dict[int, list[float]]] = {name: {} for name in names}
    for number in range(rounds):
        for name in names:
            for count, cost in GROWTHS[name][1](stage).items():
                measured[name].setdefault(count, []).append(cost)
            print(f"round {number + 1}, {name}: {measured[name]}", file=sys.stderr, flush=True)
    return measured


def show(options: argparse.Namespace, measured: dict[str, dict[int, list[float]]]) -> None:
    """Prints the table, and draws the plots."""
    print("| what grows | number | CPU µs a request | beside the smallest |\n|---|---|---|---|")
    series: dict[str, plot.Points] = {}
    for name, points in measured.items():
        title = GROWTHS[name][0]
        medians = {count: statistics.median(costs) for count, costs in points.items()}
        first = next(iter(medians.values()))
        for count, cost in medians.items():
            print(f"| {title} | {count:,} | {cost:.1f} | {cost / first:.2f} |")
        # A logarithmic axis has no zero.
        series[title] = [(max(count, 1), cost / first) for count, cost in medians.items()]
    if series:
        draw(options, "growth", "CPU time of a request, beside that of the smallest number", "number",
             "times", series)


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = run.parser()
    add = parser.add_argument
    add("--only", nargs="*", default=list(GROWTHS), choices=list(GROWTHS))
    add("--requests", type=int, default=50_000, help="of one measurement")
    add("--docs", type=pathlib.Path, help="a folder for plots, such as docs/images")
    options = parser.parse_args()
    run.check(parser, options)
    if not options.h2load:
        parser.error("h2load not found; give --h2load")
    return options


def main() -> None:
    """Measures and prints."""
    options = parse_arguments()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as place:
        work = pathlib.Path(place)
        store = models.ModelStore(work)
        store.write({MODEL})
        servers = run.programs(options, work)
        stage = Stage(options, work, servers[0], store)
        begin = time.monotonic()
        measured = measure_costs(stage, options.only, options.rounds)
        show(options, measured)
        print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
        if options.json:
            options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
