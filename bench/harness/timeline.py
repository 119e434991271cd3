"""Draws when instances executed, from a trace file."""

from __future__ import annotations

import dataclasses
import html
import json
import pathlib
from collections.abc import Iterable

from . import plot

ROW, GAP, LEFT, TOP, BOTTOM, RIGHT = 22, 6, 150, 40, 40, 16
#: What an instance does in turn: it takes the inputs, computes, and gives the outputs.
STEPS = [("COMPUTE_START", "COMPUTE_INPUT_END"), ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
         ("COMPUTE_OUTPUT_START", "COMPUTE_END")]
NAMES = ["inputs", "computation", "outputs"]
TIMES = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


@dataclasses.dataclass(frozen=True, order=True)
class Execution:
    """One batch: the times at which its steps began and ended, in nanoseconds."""

    times: tuple[int, int, int, int]
    model: str


def executions(entries: Iterable[dict[str, object]]) -> list[Execution]:
    """The executions in traces, in the order in which they began. Requests of the same batch
    form one execution."""
    models: dict[object, str] = {}
    times: dict[object, dict[str, int]] = {}
    for entry in entries:
        key = entry["id"]
        if "model_name" in entry:
            models[key] = str(entry["model_name"])
        for stamp in entry.get("timestamps", []):  # type: ignore[attr-defined]
            times.setdefault(key, {})[stamp["name"]] = stamp["ns"]
    found = set()
    for key, stamps in times.items():
        if key in models and all(name in stamps for name in TIMES):
            begin, computing, computed, end = (stamps[name] for name in TIMES)
            found.add(Execution((begin, computing, computed, end), models[key]))
    return sorted(found)


def read(paths: Iterable[pathlib.Path]) -> list[Execution]:
    """The executions in trace files."""
    entries: list[dict[str, object]] = []
    for path in paths:
        entries += json.loads(path.read_text())
    return executions(entries)


def lanes(found: list[Execution]) -> list[tuple[str, list[Execution]]]:
    """Groups a model's executions into rows that don't overlap, like the executions of an
    instance."""
    rows: list[tuple[str, list[Execution]]] = []
    for one in sorted(found):
        for model, row in rows:
            if model == one.model and row[-1].times[3] <= one.times[0]:
                row.append(one)
                break
        else:
            rows.append((one.model, [one]))
    return sorted(rows, key=lambda row: row[0])


def overlap(found: list[Execution]) -> float:
    """The fraction of the computing time during which several instances compute."""
    changes = [(one.times[1], 1) for one in found] + [(one.times[2], -1) for one in found]
    busy = together = count = before = 0
    for time, change in sorted(changes):
        busy += (time - before) * (count > 0)
        together += (time - before) * (count > 1)
        count, before = count + change, time
    return together / busy if busy else 0.0


def window(found: list[Execution], seconds: float) -> list[Execution]:
    """The executions that lie completely within a period of this length, starting in the middle."""
    if not found:
        return []
    start = sorted(found)[len(found) // 2].times[0]
    end = start + int(seconds * 1e9)
    return [one for one in found if start <= one.times[0] and one.times[3] <= end]


def draw(title: str, found: list[Execution]) -> str:
    """A row for each instance, with a bar for each step of an execution."""
    rows = lanes(found)
    begin = min((one.times[0] for one in found), default=0)
    span = max((one.times[3] for one in found), default=1) - begin or 1
    width, height = plot.WIDTH - LEFT - RIGHT, TOP + len(rows) * (ROW + GAP) + BOTTOM
    text = 'font-family="sans-serif" font-size="12" fill="#808080"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {plot.WIDTH} {height}">',
        f'<text x="{LEFT}" y="18" {text}>{html.escape(title)}</text>',
    ]
    for step, name in enumerate(NAMES):
        x = plot.WIDTH - RIGHT - 110 * (len(NAMES) - step)
        lines.append(f'<rect x="{x}" y="{TOP - 14}" width="10" height="10" fill="{plot.COLOURS[step]}"/>')
        lines.append(f'<text x="{x + 14}" y="{TOP - 5}" {text}>{name}</text>')
    for number, (model, row) in enumerate(rows):
        y = TOP + GAP + number * (ROW + GAP)
        lines.append(f'<text x="4" y="{y + 15}" {text}>{html.escape(model)}</text>')
        for one in row:
            for step in range(len(STEPS)):
                low, high = one.times[step] - begin, one.times[step + 1] - begin
                x, wide = LEFT + low / span * width, max((high - low) / span * width, 0.3)
                lines.append(f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{ROW}" '
                             f'fill="{plot.COLOURS[step]}"/>')
    y = height - BOTTOM + 24
    lines.append(f'<text x="{LEFT}" y="{y}" {text}>0</text>')
    lines.append(f'<text x="{plot.WIDTH - RIGHT}" y="{y}" text-anchor="end" {text}>'
                 f'{span / 1e6:.2f} ms</text>')
    return "\n".join([*lines, "</svg>", ""])
