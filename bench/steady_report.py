"""Reports on a run of steady.py, finished or in progress, from the files that it writes.

    python bench/steady_report.py FOLDER [--docs docs/images]

It prints a Markdown table and, with --docs, draws the plots. The exit status is 1 if the run missed
one of its targets.
"""

from __future__ import annotations

import argparse
import array
import json
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
from harness import plot  # noqa: E402

#: Of the memory's slope, and of p99 at the end beside that of the beginning.
SLOPE_MIB_MAX, RATIO_MAX = 1.0, 1.1
#: Between two records of ten seconds.
PAUSE_SECONDS = 25
HOUR, TEN_MINUTES, MINUTE = 3600.0, 600.0, 60.0
KIBIBYTES_PER_MEBIBYTE = 1024

Samples = list[tuple[float, float]]


def read_samples(file: pathlib.Path) -> Samples:
    """The time in seconds and the latency in milliseconds of each successful request of a load
    generator."""
    floats = array.array("f")
    content = file.read_bytes()
    floats.frombytes(content[: len(content) // 8 * 8])
    return list(zip(floats[::2], floats[1::2], strict=True))


def percentile(values: list[float], share: float) -> float:
    """The value at this rank; 0 if there are no values."""
    ranked = sorted(values)
    return ranked[int((len(ranked) - 1) * share)] if ranked else 0.0


def slope(points: list[tuple[float, float]]) -> float:
    """The slope of a straight line through the points, by least squares."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def windows(samples: Samples, seconds: float, share: float) -> list[tuple[float, float]]:
    """A percentile for each window: the minutes since the beginning, and the value in
    milliseconds."""
    by_window: dict[int, list[float]] = {}
    for moment, latency in samples:
        by_window.setdefault(int(moment / seconds), []).append(latency)
    return [
        ((window + 0.5) * seconds / 60, percentile(latencies, share))
        for window, latencies in sorted(by_window.items())
    ]


class Run:
    """The contents of a directory."""

    def __init__(self, folder: pathlib.Path) -> None:
        lines = (folder / "record.jsonl").read_text().splitlines()
        self.record: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.samples = {one.stem: read_samples(one) for one in sorted(folder.glob("*.samples"))}
        result = folder / "result.json"
        self.result = json.loads(result.read_text()) if result.exists() else None
        self.end: float = self.record[-1]["seconds"]

    def series(self, *keys: str, scale: float = 1.0) -> list[tuple[float, float]]:
        """A sum of recorded values, over minutes."""
        return [
            (line["seconds"] / 60, sum(line[key] for key in keys) / scale) for line in self.record
        ]

    def memory_slope(self, *keys: str) -> float:
        """The growth in MiB per hour, in the last hour or, for a shorter run, after the first
        sixth."""
        begin = max(self.end - HOUR, self.end / 6)
        points = [
            (line["seconds"] / HOUR, sum(line[key] for key in keys) / KIBIBYTES_PER_MEBIBYTE)
            for line in self.record
            if line["seconds"] >= begin
        ]
        return slope(points)

    def percentile(self, name: str, begin: float, end: float, share: float) -> float:
        """A percentile of the requests that began in this period."""
        return percentile([ms for at, ms in self.samples[name] if begin <= at < end], share)

    def edges(self) -> float:
        """The lengths of the beginning and the end that are compared."""
        return min(TEN_MINUTES, self.end / 4)


def rows(run: Run) -> list[tuple[str, str, str, bool]]:
    """The measurements: name, value, target, and whether the target is met."""
    found = []
    for name, keys in (("resident memory of the server", ("rss",)),
                       ("proportional memory of the server and its workers",
                        ("pss", "workers_pss"))):
        growth = run.memory_slope(*keys)
        asked = f"< {SLOPE_MIB_MAX:g}"
        found.append((f"slope of the {name}, MiB an hour", f"{growth:+.2f}", asked,
                      growth < SLOPE_MIB_MAX))
    edge = run.edges()
    for name in run.samples:
        first = run.percentile(name, 0, edge, 0.99)
        last = run.percentile(name, run.end - edge, run.end, 0.99)
        ratio = last / first if first else 0.0
        found.append((f"p99 of {name} in the last {edge / 60:.0f} minutes beside the first",
                      f"{last:.2f} / {first:.2f} ms = {ratio:.2f}", f"≤ {RATIO_MAX}",
                      0 < ratio <= RATIO_MAX))
    if run.result:
        wrong = run.result["problems"]
        found.append(("requests with no answer, two, or a wrong one; other problems",
                      str(len(wrong)), "0", not wrong))
        before, after = run.result["at_rest_before"], run.result["at_rest_after"]
        for key in ("descriptors", "threads", "workers"):
            found.append((f"{key} at rest, before and after", f"{before[key]}, {after[key]}",
                          "as before", after[key] <= before[key]))
    return found


def pauses(run: Run) -> list[str]:
    """The times at which everything was suspended. Clients may have given up then, so
    latencies mean nothing."""
    moments = [line["seconds"] for line in run.record]
    return [
        f"suspended for {after - before:.0f} s after {before / 60:.0f} minutes"
        for before, after in zip(moments, moments[1:])
        if after - before > PAUSE_SECONDS
    ]


def ledger(result: dict[str, Any]) -> list[str]:
    """A row of the table for each kind of client."""
    lines = ["| clients | requests |", "|---|---|"]
    for name, report in result["generators"].items():
        hostile = sum(report["hostile"].values())
        lines.append(f"| {name} | {report['good']:,} answered, {report['failed']} failed, "
                     f"{hostile:,} hostile refused, {report['disconnects']:,} interrupted |")
    for name, counts in result["clients"].items():
        lines.append(f"| {name} | {counts['sent']:,} sent, {counts['answered']:,} answered |")
    for name, counts in result["crowd"].items():
        text = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
        lines.append(f"| Python model `{name}` | {text} |")
    text = ", ".join(f"{count:,} of {model}" for model, count in result["reloads"].items())
    return [*lines, f"| reloads | {text} |"]


def draw(run: Run, docs: pathlib.Path) -> None:
    """Draws the plots."""
    mebi = float(KIBIBYTES_PER_MEBIBYTE)
    memory = {
        "resident": run.series("rss", scale=mebi),
        "proportional": run.series("pss", scale=mebi),
        "workers, proportional": run.series("workers_pss", scale=mebi),
    }
    counts = {key: run.series(key) for key in ("descriptors", "threads", "workers")}
    tails = {name: windows(samples, MINUTE, 0.99) for name, samples in run.samples.items()}
    for name, title, unit, series in (
        ("steady_memory", "Memory", "MiB", memory),
        ("steady_counts", "Descriptors, threads and workers", "", counts),
        ("steady_p99", "p99 of each minute", "ms", tails),
    ):
        text = plot.lines(title, "minutes", unit, series, plot.Scale(log_y=name == "steady_p99"))
        (docs / f"{name}.svg").write_text(text)


def report(folder: pathlib.Path, docs: pathlib.Path | None) -> int:
    """Prints the report, and returns the exit status."""
    run = Run(folder)
    found = rows(run)
    hours, minutes = divmod(round(run.end / 60), 60)
    print(f"{hours} h {minutes} min of traffic\n\n| what | measured | asked | |\n|---|---|---|---|")
    for name, value, asked, is_met in found:
        print(f"| {name} | {value} | {asked} | {'met' if is_met else '**missed**'} |")
    for pause in pauses(run):
        print(pause)
    if run.result:
        print("\n" + "\n".join(ledger(run.result)))
        for problem in run.result["problems"][:20]:
            print(f"problem: {problem}")
    if docs:
        docs.mkdir(parents=True, exist_ok=True)
        draw(run, docs)
    return 0 if all(is_met for *_, is_met in found) else 1


def main() -> int:
    """Runs the command, and returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--docs", type=pathlib.Path)
    options = parser.parse_args()
    return report(options.folder, options.docs)


if __name__ == "__main__":
    sys.exit(main())
