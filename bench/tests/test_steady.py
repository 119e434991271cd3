"""Tests of steady.py's report and plots, without servers."""

from __future__ import annotations

import array
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import steady_report
from harness import plot

LINE = {"workers": 2, "workers_pss": 1024, "descriptors": 9, "threads": 5, "cpu": 1.0}


def write_run(folder: pathlib.Path, growth: float, slower: float) -> steady_report.Run:
    """Two hours in which memory grows by MiB per hour, and whose last minutes are slower."""
    with (folder / "record.jsonl").open("w") as file:
        for seconds in range(10, 7201, 10):
            size = 50_000 + growth * 1024 * seconds / 3600
            file.write(json.dumps({"seconds": seconds, "rss": size, "pss": size, **LINE}) + "\n")
    floats = array.array("f")
    for second in range(7200):
        floats.extend((second, slower if second > 6600 else 1.0))
    (folder / "http-identity.samples").write_bytes(floats.tobytes())
    return steady_report.Run(folder)


class Report(unittest.TestCase):
    def check(self, growth: float, slower: float) -> list[bool]:
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            run = write_run(folder, growth, slower)
            steady_report.draw(run, folder)
            for file in folder.glob("*.svg"):
                ElementTree.parse(file)
            return [is_met for *_, is_met in steady_report.rows(run)]

    def test_a_steady_run_is_steady(self) -> None:
        self.assertEqual(self.check(0.5, 1.05), [True, True, True])

    def test_growth_and_slowness_are_seen(self) -> None:
        self.assertEqual(self.check(1.5, 1.05), [False, False, True])
        self.assertEqual(self.check(0.5, 1.2), [True, True, False])

    def test_the_slope_is_that_of_the_line(self) -> None:
        self.assertAlmostEqual(steady_report.slope([(0, 1), (1, 3), (2, 5)]), 2)

    def test_windows_have_their_own_percentiles(self) -> None:
        samples = [(1.0, 5.0), (59.0, 7.0), (61.0, 9.0)]
        self.assertEqual(steady_report.windows(samples, 60, 1.0), [(0.5, 7.0), (1.5, 9.0)])


class Plot(unittest.TestCase):
    def test_names_are_escaped_and_values_in_the_frame(self) -> None:
        for scale in (plot.Scale(), plot.Scale(log_x=True, log_y=True, marks=True)):
            text = plot.lines("a < b", "x", "y", {"one & two": [(1, 2), (100, 50)]}, scale)
            svg = ElementTree.fromstring(text)
            line = svg.find("{http://www.w3.org/2000/svg}polyline")
            for pair in line.get("points").split():
                x, y = map(float, pair.split(","))
                self.assertTrue(0 <= x <= plot.WIDTH and 0 <= y <= plot.HEIGHT)

    def test_ticks_are_round(self) -> None:
        self.assertEqual(plot.Axis([3, 47], (0, 1), log=False).ticks(), [0, 10, 20, 30, 40, 50])
        self.assertEqual(plot.Axis([0.5, 30], (0, 1), log=True).ticks(), [0.1, 1, 10, 100])


if __name__ == "__main__":
    unittest.main()
