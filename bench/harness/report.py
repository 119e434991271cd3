"""Medians and ratios in three forms: a table, JSON, and a section of RESULTS.md.

Galatea's values are compared with those of its rival: Triton, or another Galatea.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import platform
import statistics
from collections.abc import Iterable

Rounds = list[dict[str, float]]
# Indexed by workload, then server, then round.
Results = dict[str, dict[str, Rounds]]


@dataclasses.dataclass(frozen=True)
class Column:
    """One measured value in the table."""

    key: str
    heading: str
    digits: int
    more_is_better: bool = False
    # The bare loop's value is next to the rival's, instead of ours.
    of_loop: bool = False

    @property
    def side(self) -> str:
        """The server whose value is compared with the rival's."""
        return BARE if self.of_loop else OURS


OURS, TRITON, BARE = "galatea", "triton", "bare loop"
#: The rival that is another Galatea.
BEFORE = "before"
COLUMNS = (
    Column("throughput", "infer/s", 0, more_is_better=True),
    Column("direct", "of ONNX Runtime alone", 2, more_is_better=True),
    Column("fed", "of a loop that is fed", 2, more_is_better=True),
    Column("bare", "of a bare loop", 2, more_is_better=True),
    Column("p50_us", "p50 µs", 0),
    Column("p99_us", "p99 µs", 0),
    Column("cpu_us", "CPU µs/request", 1),
    Column("cpu_us", "CPU µs/request of a bare loop", 1, of_loop=True),
    Column("all_us", "CPU µs/request with workers", 1),
    Column("beside_us", "CPU µs beside ONNX Runtime", 1),
    Column("switches", "switches/request", 2),
    Column("ready_ms", "ready ms", 1),
    Column("resident_mib", "resident MiB", 1),
    Column("model_kib", "KiB a model", 0),
    Column("peak_mib", "peak MiB", 1),
    Column("threads", "threads", 0),
    Column("idle_rss_mib", "RSS MiB a worker", 1),
    Column("idle_pss_mib", "PSS MiB a worker", 1),
    Column("idle_uss_mib", "USS MiB a worker", 1),
    Column("used_rss_mib", "RSS MiB after a request", 1),
    Column("used_pss_mib", "PSS MiB after a request", 1),
    Column("used_uss_mib", "USS MiB after a request", 1),
)
CLIENT_BOUND = 0.9
# The ratios of these values should agree between rounds. A note marks those that don't.
STEADY = ("throughput", "cpu_us", "ready_ms")
WIDE_SPREAD = 1.2


def median(rounds: Rounds, key: str) -> float | None:
    """The median of a value over the rounds that have it."""
    values = [each[key] for each in rounds if key in each]
    return statistics.median(values) if values else None


def rival(rounds: dict[str, Rounds]) -> Rounds:
    """The rival's rounds, if there are any."""
    return rounds.get(TRITON) or rounds.get(BEFORE) or []


def _ratios(ours: Rounds, triton: Rounds, key: str) -> list[float]:
    return [
        mine[key] / theirs[key]
        for mine, theirs in zip(ours, triton, strict=False)
        if key in mine and theirs.get(key)
    ]


def ratio(ours: Rounds, triton: Rounds, key: str) -> float | None:
    """The median over rounds of our value divided by Triton's in the same round.

    A machine's speed changes more between rounds than within a round, so each round is compared
    separately.
    """
    pairs = _ratios(ours, triton, key)
    return statistics.median(pairs) if pairs else None


def share_of_loop(values: dict[str, dict[str, float]]) -> None:
    """Adds each server's results in a round as a fraction of what the bare loop reached."""
    rate = values[BARE].get("throughput")
    for name, each in values.items():
        if name != BARE and rate and "throughput" in each:
            each["bare"] = each["throughput"] / rate


def spread(ours: Rounds, triton: Rounds) -> str:
    """The range of ratios, if the rounds differ so much that the median is unreliable."""
    found = []
    for column in COLUMNS:
        steady = column.key in STEADY and not column.of_loop
        pairs = _ratios(ours, triton, column.key) if steady else []
        if pairs and max(pairs) > WIDE_SPREAD * min(pairs):
            found.append(f"{column.heading} {min(pairs):.2f}–{max(pairs):.2f}")
    return ", ".join(found)


def cell(ours: Rounds, triton: Rounds, key: str, digits: int) -> str:
    """Our value, Triton's value and their ratio."""
    values = [median(rounds, key) for rounds in (ours, triton)]
    if all(value is None for value in values):
        return "–"
    texts = ["–" if value is None else f"{value:,.{digits}f}" for value in values]
    if not triton:
        return texts[0]
    quotient = ratio(ours, triton, key)
    return " / ".join(texts) + ("" if quotient is None else f" = **{quotient:.2f}**")


def notes(rounds: dict[str, Rounds]) -> str:
    """Notes about a row: a busy client, failed requests, or unsteady ratios."""
    found = []
    for name, measured in rounds.items():
        if (median(measured, "client_core") or 0) > CLIENT_BOUND:
            found.append(f"client-bound ({name})")
        failures = sum(each.get("failures", 0) for each in measured)
        if failures:
            found.append(f"{failures:.0f} failures ({name})")
    wide = spread(rounds.get(OURS, []), rival(rounds))
    if wide:
        found.append(f"rounds differ: {wide}")
    return ", ".join(found)


def table(results: Results) -> str:
    """The results as Markdown. A cell contains ours / Triton's = ratio.

    Consecutive rows with the same columns share a table.
    """
    groups = itertools.groupby(results.items(), key=lambda item: _used_columns(item[1]))
    return "\n\n".join(_one_table(columns, list(rows)) for columns, rows in groups)


def _used_columns(rounds: dict[str, Rounds]) -> tuple[Column, ...]:
    keys = {(name, key) for name, side in rounds.items() for each in side for key in each}
    return tuple(
        column
        for column in COLUMNS
        if (column.side, column.key) in keys
        or (not column.of_loop and any((name, column.key) in keys for name in (TRITON, BEFORE)))
    )


def _one_table(columns: tuple[Column, ...], rows: list[tuple[str, dict[str, Rounds]]]) -> str:
    heads = ["workload"]
    heads += [f"{each.heading} {'↑' if each.more_is_better else '↓'}" for each in columns]
    heads.append("notes")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, rounds in rows:
        cells = [
            cell(rounds.get(each.side, []), rival(rounds), each.key, each.digits)
            for each in columns
        ]
        lines.append("| " + " | ".join([name, *cells, notes(rounds)]) + " |")
    return "\n".join(lines)


def summary(results: Results) -> dict[str, dict[str, dict[str, float | None]]]:
    """The medians of both sides, their ratio, and the bare loop's median, for the JSON file."""
    out: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, rounds in results.items():
        ours, triton = rounds.get(OURS, []), rival(rounds)
        keys = sorted({key for each in [*ours, *triton] for key in each})
        out[name] = {
            key: {
                OURS: median(ours, key),
                BEFORE if BEFORE in rounds else TRITON: median(triton, key),
                "ratio": ratio(ours, triton, key),
                BARE: median(rounds.get(BARE, []), key),
            }
            for key in keys
        }
    return out


def machine() -> dict[str, str]:
    """The properties of the machine that affect the figures."""
    model = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {"cpu": model, "cores": str(os.cpu_count()), "kernel": platform.release()}


def section(
    date: str,
    facts: dict[str, str],
    how: Iterable[str],
    results: Results,
    errors: list[str],
) -> str:
    """A section for RESULTS.md."""
    lines = [f"## {date}", ""]
    lines.append(
        f"{facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}. " + " ".join(how)
    )
    lines += ["", table(results)]
    if errors:
        lines += ["", "Not measured:", "", *(f"- {error}" for error in errors)]
    return "\n".join(lines) + "\n"
