"""Compares the choice of `galatea tune` with the best of all configurations.

    python bench/tune.py --galatea target/release/galatea

For each model, tune is run for maximum throughput. Then every configuration of the same space
(instances, threads, batch sizes and delays) is loaded into a server and saturated. The
configuration that tune chose and the best of all are then measured again in turn, round after
round. See bench/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

# pylint: disable=wrong-import-position
import run  # noqa: E402
from harness import models, server  # noqa: E402

#: A model, and the shapes of its inputs where they vary.
MODELS: dict[str, dict[str, int]] = {
    "convnet": {},
    "mlp": {},
    "minilm": {"input_ids": 32, "attention_mask": 32, "token_type_ids": 32},
}
#: The largest batch, unless the configuration has more; as tune has it.
SIZE_MAX = 32
DELAYS_US = [0, 100, 500, 1000, 2000, 5000]
CONNECTIONS_MAX = 512
THREADS = "intra_op_thread_count"
#: Asked of tune: this share of the best, in this share of the time.
ASKED_SHARE, ASKED_TIME = 0.95, 0.1
#: How many of the best are measured again: one of many measurements is best by chance.
CONTENDERS = 3


@dataclasses.dataclass(frozen=True, order=True)
class Setting:
    """A configuration in the space."""

    instances: int
    threads: int
    max_batch: int
    delay_us: int

    def connections(self) -> int:
        """The number of requests that keeps all instances busy with full batches."""
        return min(2 * self.instances * self.max_batch, CONNECTIONS_MAX)

    def apply(self, config: dict[str, Any]) -> dict[str, Any]:
        """A model's configuration with this choice."""
        removed = ("dynamic_batching", "instance_group")
        made = {key: value for key, value in config.items() if key not in removed}
        made["max_batch_size"] = self.max_batch
        made["instance_group"] = [{"count": self.instances, "kind": "KIND_CPU"}]
        parameters = {k: v for k, v in made.get("parameters", {}).items() if k != THREADS}
        if self.threads:
            parameters[THREADS] = {"string_value": str(self.threads)}
        if self.max_batch > 1:
            made["dynamic_batching"] = {"max_queue_delay_microseconds": self.delay_us}
        else:
            # Padding is one way to join requests.
            parameters = {k: v for k, v in parameters.items() if "padding" not in k}
        return made | {"parameters": parameters}


def space(processors: int, size_max: int) -> list[Setting]:
    """The space that tune chooses from. A thread count of 0 means the backend's own number."""
    found = set()
    sizes = [1 << power for power in range(size_max.bit_length())]
    for instances in range(1, processors + 1):
        threads = {0, 1, max(1, processors // instances)}
        for each, size, delay in itertools.product(threads, sizes, DELAYS_US):
            found.add(Setting(instances, each, size, delay if size > 1 else 0))
    return sorted(found)


class Tuned:
    """A server whose model is loaded with one configuration after the other."""

    def __init__(self, options: argparse.Namespace, running: server.Server, model: str) -> None:
        self._options, self._running, self._model = options, running, model
        self._config = self._call("GET", f"/v2/models/{model}/config")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        url = f"http://{self._running.address('http')}{path}"
        data = json.dumps(body).encode() if body is not None else None
        asked = urllib.request.Request(url, data, method=method)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.loads(answer.read() or b"null")

    def size_max(self) -> int:
        """The largest batch to try."""
        return max(SIZE_MAX, int(self._config["max_batch_size"]))

    def rate(self, setting: Setting, seconds: int) -> float:
        """The throughput of a configuration."""
        config = json.dumps(setting.apply(self._config))
        path = f"/v2/repository/models/{self._model}/load"
        self._call("POST", path, {"parameters": {"config": config}})
        command = [self._options.galatea, "bench", "--json", f"--model={self._model}"]
        command += [f"--url=http://{self._running.address('http')}", f"--duration={seconds}"]
        command += [f"--concurrency={setting.connections()}", *shapes(self._model)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{setting}: {done.stderr}")
        found = json.loads(done.stdout)
        return float(found["results"][0]["inferences_per_second"])


def shapes(model: str) -> list[str]:
    """The options for inputs of variable shape."""
    return [f"--shape={name}:{size}" for name, size in MODELS[model].items()]


def tune(options: argparse.Namespace, directory: pathlib.Path) -> tuple[Setting, float, Any]:
    """Runs the command, and returns its choice, its duration in seconds, and its document."""
    started = time.monotonic()
    own = ["--json", "--allow-smaller-batches", *shapes(directory.name)]
    command = [options.galatea, "tune", str(directory), *own]
    library = f"--onnxruntime-library={options.onnxruntime_library}"
    command += [f"--seconds={options.seconds}", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    seconds = time.monotonic() - started
    document = json.loads(done.stdout)
    best = document["checked"][0]
    threads = best["threads"] or 0
    chosen = Setting(best["instances"], threads, best["max_batch"], best["delay_us"])
    return chosen, seconds, document


def again(
    tuned: Tuned, settings: Iterable[Setting], rounds: int, seconds: int
) -> dict[Setting, list[float]]:
    """Measures these in turn."""
    found: dict[Setting, list[float]] = {each: [] for each in settings}
    for _ in range(rounds):
        for each, values in found.items():
            values.append(tuned.rate(each, seconds))
    return found


def compare(
    options: argparse.Namespace, store: models.ModelStore, work: pathlib.Path, model: str
) -> dict[str, Any]:
    """All measurements of a model."""
    directory = store.network(model).parent.parent
    chosen, tune_seconds, document = tune(options, directory)
    print(f"{model}: tune chose {chosen} in {tune_seconds:.1f} s", file=sys.stderr, flush=True)
    program = server.Program("galatea", (
        options.galatea, f"--onnxruntime-library={options.onnxruntime_library}",
        "--model-control-mode=explicit", "--load-model=*",
    ))
    repository = store.repository((model,))
    cores = f"0-{options.processors - 1}"
    with server.running(program, repository, cores, work / "server.log") as running:
        tuned = Tuned(options, running, model)
        started, rates = time.monotonic(), {}
        for setting in space(options.processors, tuned.size_max()):
            rates[setting] = tuned.rate(setting, options.seconds)
            print(f"{model} {setting}: {rates[setting]:.1f}", file=sys.stderr, flush=True)
        seconds = time.monotonic() - started
        best = sorted(rates, key=lambda one: rates[one], reverse=True)[:CONTENDERS]
        rounds = again(tuned, {chosen: 0} | dict.fromkeys(best, 0), options.rounds, options.seconds)
    found = max(best, key=lambda one: statistics.median(rounds[one]))
    ratios = [ours / theirs for ours, theirs in zip(rounds[chosen], rounds[found], strict=True)]
    return {
        "model": model, "chosen": dataclasses.asdict(chosen), "best": dataclasses.asdict(found),
        "rates": [[dataclasses.asdict(one), rate] for one, rate in rates.items()],
        "chosen_rate": statistics.median(rounds[chosen]),
        "best_rate": statistics.median(rounds[found]),
        "ratio": statistics.median(ratios), "tune_seconds": tune_seconds, "seconds": seconds,
        "worst_rate": min(rates.values()), "tune": document,
    }


def text(setting: dict[str, int]) -> str:
    """A short description of a setting."""
    threads = f", {setting['threads']} threads" if setting["threads"] else ""
    batches = f"batches to {setting['max_batch']}, {setting['delay_us']} µs"
    return f"{setting['instances']} instances{threads}, {batches}"


def row(found: dict[str, Any]) -> str:
    """A row of the table."""
    share = found["tune_seconds"] / found["seconds"]
    verdict = "met" if found["ratio"] >= ASKED_SHARE and share <= ASKED_TIME else "**missed**"
    cells = [
        found["model"], text(found["chosen"]), text(found["best"]),
        f"{found['chosen_rate']:,.1f} / {found['best_rate']:,.1f} = **{found['ratio']:.3f}**",
        f"{found['worst_rate']:,.1f}",
        f"{found['tune_seconds']:.0f} / {found['seconds']:.0f} = **{share:.3f}**", verdict,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--galatea", default=str(run.ROOT / "target/release/galatea"), metavar="PROGRAM")
    add("--onnxruntime-library", default=run.onnxruntime_library(), metavar="FILE")
    add("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    add("--seconds", type=int, default=1, help="of each measurement, tune's checks included")
    add("--rounds", type=int, default=5, help="of the comparison at the end")
    add("--processors", type=int, default=os.cpu_count() or 1)
    add("--json", type=pathlib.Path, metavar="FILE", help="write everything measured")
    options = parser.parse_args()
    everything = []
    with tempfile.TemporaryDirectory(prefix="galatea-bench-") as place:
        work = pathlib.Path(place)
        store = models.ModelStore(work, has_one_thread=False)
        store.write(set(options.models))
        for model in options.models:
            everything.append(compare(options, store, work, model))
    print("| model | tune chose | best of all | inferences/s | worst of all | seconds | |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(map(row, everything)))
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
