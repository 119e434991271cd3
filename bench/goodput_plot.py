"""Draws the output of the goodput simulation.

``cargo run --release -p galatea-sim --bin goodput > goodput.txt`` writes the table;
``python bench/goodput_plot.py goodput.txt --docs docs/images`` draws the charts of docs/deadlines.md.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterator

from harness import plot

COLUMNS = 9
CHARTS = {
    "goodput_poisson": ("Mixed", "Poisson", "2.5 ×", "Steady arrivals, 2.5 times a full batch"),
    "goodput_bursts": ("MostlyFixed", "Bursts", "1.5 ×", "Bursts, 1.5 times a full batch"),
}


def rows(table: str) -> Iterator[list[str]]:
    """The cells of each row of charts."""
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == COLUMNS and cells[3].replace(".", "").isdigit():
            yield cells


def series(table: str, curve: str, law: str, deadline: str) -> dict[str, plot.Points]:
    """Goodput by load. Both are fractions of the rate that full batches can reach."""
    drawn: dict[str, plot.Points] = {"by deadlines": [], "the best setting": [], "no setting": []}
    for cells in rows(table):
        if cells[:3] != [curve, law, deadline]:
            continue
        load, ratio, ours, plain = (float(cells[place]) for place in (3, 4, 5, 7))
        drawn["by deadlines"].append((load, ours))
        drawn["the best setting"].append((load, ours / ratio))
        drawn["no setting"].append((load, plain))
    return drawn


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--docs", type=pathlib.Path, required=True, help="where the charts are written")
    options = parser.parse_args()
    table = options.table.read_text()
    for name, (curve, law, deadline, title) in CHARTS.items():
        drawn = series(table, curve, law, deadline)
        text = plot.lines(title, "load", "goodput", drawn, plot.Scale(marks=True))
        (options.docs / f"{name}.svg").write_text(text)


if __name__ == "__main__":
    main()
