"""Compares padded batches for sentences of unequal lengths with the alternatives.

    python bench/padding.py --triton COMMAND --triton-backends DIR --rounds 3 --duration 8

MiniLM embeds English text on one core, with one sentence per request. All servers run at the
same time, and are measured in turn: Galatea with padding, with batches of equal shapes, and
without batches; Triton with the same model file, whose padding settings it ignores; and ONNX
Runtime, driven directly with all sentences sorted by length. It accepts the options of run.py.
See bench/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

# pylint: disable=wrong-import-position
import numpy  # noqa: E402
import run  # noqa: E402
from harness import http_load, models, process, report, sentences, server  # noqa: E402

MODEL = "minilm"
COUNT = 400
BUDGET = 1024
PADDED, EQUAL, ALONE = "padded", "equal shapes", "batch size 1"
DIRECT = "ONNX Runtime, sorted"
#: Requests in flight in a closed loop. The largest is saturation: twice a full batch.
CLIENTS = [1, 4, 16, 64]
#: Of what a server without batches can do, as arrivals of an open loop.
SHARES = [0.5, 0.7, 0.9, 1.1]
#: Of what the server with padding can do.
OWN_SHARE = 0.7
#: Open loops last longer, because of the quantiles of their latencies.
OPEN_LONGER = 2
LEARN_SECONDS, WARM_SECONDS = 6.0, 1.5
BYTES = 384 * 4


@dataclasses.dataclass(frozen=True)
class Side:
    """A running server."""

    name: str
    running: server.Server

    def cpu(self) -> float:
        """Its CPU time so far, in seconds."""
        used = process.usage(self.running.pid)
        return used.user + used.kernel


@dataclasses.dataclass
class Stage:
    """The parts that the measurements share, and their results."""

    options: argparse.Namespace
    requests: list[bytes]
    #: The embedding of each sentence, executed alone and without a server.
    alone: numpy.ndarray
    cosine_min: float = 1.0
    #: Load, then side, then a value of each round.
    found: dict[str, dict[str, list[dict[str, float]]]] = dataclasses.field(default_factory=dict)

    def measure(
        self, load: str, one: Side, seed: int, send: Callable[[http_load.Plan], http_load.Window]
    ) -> None:
        """Runs a load. All responses are compared."""
        counts = one.running.counts(MODEL)
        plan = http_load.Plan(
            address=one.running.address("http"),
            requests=self.requests,
            warm=WARM_SECONDS,
            seconds=self.options.duration * (1 if "flight" in load else OPEN_LONGER),
            cpu=one.cpu,
            seed=seed,
        )
        window = send(plan)
        self._compare(window.done)
        after = one.running.counts(MODEL)
        executions = after.executions - counts.executions
        values = {
            "rate": window.rate(),
            "cpu_ms": window.cpu * 1e3 / len(window.finished),
            "p50_ms": window.latency(0.5) * 1e3,
            "p99_ms": window.latency(0.99) * 1e3,
            "batch": (after.inferences - counts.inferences) / executions,
        }
        self.note(load, one.name, values)

    def in_turn(
        self, all_sides: list[Side], load: str, number: int,
        send: Callable[[http_load.Plan], http_load.Window],
    ) -> None:
        """Measures all of them in a round. The order is reversed in each round."""
        for one in all_sides if number % 2 == 0 else all_sides[::-1]:
            self.measure(load, one, number + 1, send)

    def note(self, load: str, name: str, values: dict[str, float]) -> None:
        """Keeps the results."""
        self.found.setdefault(load, {}).setdefault(name, []).append(values)
        brief = {key: round(value, 2) for key, value in values.items()}
        print(f"{load}, {name}: {brief}", file=sys.stderr, flush=True)

    def _compare(self, done: list[http_load.Done]) -> None:
        embeddings = numpy.array(
            [numpy.frombuffer(each.body[-BYTES:], numpy.float32) for each in done]
        )
        cosines = (embeddings * self.alone[[each.number for each in done]]).sum(axis=1)
        self.cosine_min = min(self.cosine_min, float(cosines.min()))


def request(sentence: list[int]) -> bytes:
    """A request over HTTP, with binary tensors."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    size = 8 * len(sentence)
    head = {
        "inputs": [
            {"name": name, "shape": [1, len(sentence)], "datatype": "INT64",
             "parameters": {"binary_data_size": size}}
            for name in names
        ],
        "outputs": [{"name": "sentence_embedding", "parameters": {"binary_data": True}}],
    }
    text = json.dumps(head).encode()
    values = (sentence, [1] * len(sentence), [0] * len(sentence))
    body = text + b"".join(numpy.array(each, "<i8").tobytes() for each in values)
    lines = (
        f"POST /v2/models/{MODEL}/infer HTTP/1.1", "Host: bench",
        f"Inference-Header-Content-Length: {len(text)}", f"Content-Length: {len(body)}", "", "",
    )
    return "\r\n".join(lines).encode() + body


def configs(text: str) -> dict[str, str]:
    """The example's configuration, and variants of it without padding and without batches."""
    equal = re.sub(r"parameters \{\s*key: \"batch_padding.*?\n?\}\s*\}?\n", "", text, flags=re.S)
    assert "padding" not in equal and "dynamic_batching" in equal, equal
    return {PADDED: text, EQUAL: equal, ALONE: equal.replace("dynamic_batching { }\n", "")}


def direct(
    options: argparse.Namespace, model: pathlib.Path, tokens: pathlib.Path, *more: str
) -> dict[str, float]:
    """ONNX Runtime without a server, on the server's core."""
    program = str(HERE / "harness/sorted_batches.py")
    command = ["taskset", "-c", str(options.server_core), sys.executable, program]
    command += [str(model), str(tokens), str(BUDGET), str(options.duration), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def start(
    stack: contextlib.ExitStack,
    options: argparse.Namespace,
    work: pathlib.Path,
    store: models.ModelStore,
) -> list[Side]:
    """Starts all servers, and lets them learn if they do so."""
    source = store.network(MODEL).parent.parent
    ours, *rest = run.programs(options, work)
    own = (source / "config.pbtxt").read_text()
    wanted = [(name, ours, text) for name, text in configs(own).items()]
    wanted += [(each.name, each, own) for each in rest]
    all_sides = []
    for number, (name, program, text) in enumerate(wanted):
        repository = work / f"repository_{number}"
        (repository / MODEL).mkdir(parents=True)
        (repository / MODEL / "1").symlink_to(source / "1")
        (repository / MODEL / "config.pbtxt").write_text(text)
        log = work / f"server_{number}.log"
        running = server.running(program, repository, options.server_core, log)
        all_sides.append(Side(name, stack.enter_context(running)))
    return all_sides


def measure_all(
    stage: Stage, all_sides: list[Side], run_direct: Callable[[], dict[str, float]]
) -> None:
    """Closed loops, which determine the capacities, and then open loops."""
    saturated = f"{max(CLIENTS)} in flight"
    for number in range(stage.options.rounds):
        for clients in sorted(CLIENTS, reverse=True):
            send = functools.partial(http_load.closed, clients=clients)
            stage.in_turn(all_sides, f"{clients} in flight", number, send)
            if clients == max(CLIENTS):
                stage.note(saturated, DIRECT, run_direct())
    alone, padded = (median(stage.found[saturated][name], "rate") for name in (ALONE, PADDED))
    rates = {f"{share:.0%} of {alone:.0f}/s": share * alone for share in SHARES}
    rates[f"{OWN_SHARE:.0%} of {padded:.0f}/s"] = OWN_SHARE * padded
    for number in range(stage.options.rounds):
        for load, rate in rates.items():
            send = functools.partial(http_load.opened, rate=rate)
            stage.in_turn(all_sides, load, number, send)


def median(rounds: list[dict[str, float]], key: str) -> float:
    """The median over the rounds."""
    return statistics.median(each[key] for each in rounds)


def ratio(sides: dict[str, list[dict[str, float]]], key: str, others: list[str]) -> str:
    """The median over the rounds of our value divided by the best of the others in the same
    round."""
    best = min if key.endswith("ms") else max
    rounds = [
        values[key] / best(sides[name][number][key] for name in others)
        for number, values in enumerate(sides[PADDED])
    ]
    return f"{statistics.median(rounds):.2f} ({min(rounds):.2f}–{max(rounds):.2f})"


def tables(stage: Stage) -> str:
    """The results."""
    lines = []
    for load, sides in stage.found.items():
        head = "| | sentences/s | CPU ms | p50 ms | p99 ms | rows of a batch |"
        lines += ["", f"**{load}**", "", head]
        lines += ["|---|---|---|---|---|---|"]
        for name, rounds in sides.items():
            cells = [
                f"{median(rounds, key):.1f}" if key in rounds[0] else ""
                for key in ("rate", "cpu_ms", "p50_ms", "p99_ms", "batch")
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        for others in ([EQUAL, ALONE], [EQUAL], [ALONE], [report.TRITON], [DIRECT]):
            if all(name in sides for name in others):
                known = sides[others[0]][0]
                keys = (key for key in ("rate", "cpu_ms", "p99_ms") if key in known)
                values = (f"{key} {ratio(sides, key, others)}" for key in keys)
                lines.append(f"- padded beside {' or '.join(others)}: {', '.join(values)}")
    lines += ["", f"The least cosine to a sentence executed alone: {stage.cosine_min:.7f}"]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = run.parser()
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.load_core})
    chosen = sentences.corpus(COUNT)
    lengths = sorted(map(len, chosen))
    mean = statistics.mean(lengths)
    print(f"{COUNT} texts of {lengths[0]} to {lengths[-1]} tokens, mean {mean:.1f}")
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="galatea-bench-"))
        work = pathlib.Path(place)
        store = models.ModelStore(work)
        store.write({MODEL})
        tokens, alone = work / "tokens.json", work / "alone.npy"
        tokens.write_text(json.dumps(chosen))
        model = store.network(MODEL)
        direct(options, model, tokens, str(alone))
        stage = Stage(options, [request(each) for each in chosen], numpy.load(alone))
        all_sides = start(stack, options, work, store)
        for one in all_sides:
            address = one.running.address("http")
            plan = http_load.Plan(address, stage.requests, 0.0, LEARN_SECONDS, one.cpu, 0)
            http_load.closed(plan, max(CLIENTS))
        measure_all(stage, all_sides, lambda: direct(options, model, tokens))
    print(tables(stage))
    if options.json:
        options.json.write_text(json.dumps(stage.found, indent=1) + "\n")


if __name__ == "__main__":
    main()
