"""Tests of gpu.py's report and timelines, without a GPU.

python -m unittest discover bench/tests
"""

from __future__ import annotations

import pathlib
import sys
import unittest
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import gpu
from harness import timeline


def trace(key: int, model: str, times: tuple[int, int, int, int]) -> list[dict[str, object]]:
    stamps = [{"name": name, "ns": time} for name, time in zip(timeline.TIMES, times, strict=True)]
    return [
        {"id": key, "model_name": model, "model_version": 1},
        {"id": key, "timestamps": [{"name": "REQUEST_START", "ns": 0}]},
        *({"id": key, "timestamps": [stamp]} for stamp in stamps),
    ]


#: Two requests of one batch, one that overlaps it, one behind it, one of another model, and one
#: that was cancelled before it computed.
ENTRIES = [
    *trace(1, "m", (0, 10, 90, 100)),
    *trace(2, "m", (0, 10, 90, 100)),
    *trace(3, "m", (50, 60, 140, 150)),
    *trace(4, "m", (100, 110, 190, 200)),
    *trace(5, "other", (0, 0, 0, 40)),
    {"id": 6, "model_name": "m", "model_version": 1},
    {"id": 6, "timestamps": [{"name": "COMPUTE_START", "ns": 5}]},
]


class Timeline(unittest.TestCase):
    def test_requests_of_a_batch_are_one_execution(self) -> None:
        found = timeline.executions(ENTRIES)
        self.assertEqual([one.times[0] for one in found], [0, 0, 50, 100])

    def test_a_row_has_what_does_not_overlap(self) -> None:
        rows = timeline.lanes(timeline.executions(ENTRIES))
        begins = [(model, [one.times[0] for one in row]) for model, row in rows]
        self.assertEqual(begins, [("m", [0, 100]), ("m", [50]), ("other", [0])])

    def test_the_share_of_time_in_which_several_compute(self) -> None:
        found = [one for one in timeline.executions(ENTRIES) if one.model == "m"]
        # Executions compute from 10 to 90, 60 to 140 and 110 to 190: several do in 60 of 180 ns.
        self.assertAlmostEqual(timeline.overlap(found), 60 / 180)
        self.assertEqual(timeline.overlap([]), 0)

    def test_a_window_has_whole_executions(self) -> None:
        found = [timeline.Execution((n, n, n + 9, n + 9), "m") for n in range(0, 1000, 10)]
        shown = timeline.window(found, 50e-9)
        self.assertEqual([one.times[0] for one in shown], [500, 510, 520, 530, 540])
        self.assertEqual(timeline.window([], 1), [])

    def test_a_picture_has_a_bar_for_each_step(self) -> None:
        for found in (timeline.executions(ENTRIES), []):
            root = ElementTree.fromstring(timeline.draw("a < b", found))
            bars = [one for one in root.iter() if one.get("height") == str(timeline.ROW)]
            self.assertEqual(len(bars), 3 * len(found))


class Report(unittest.TestCase):
    def test_each_part_is_a_table(self) -> None:
        results = gpu.Results()
        results.add("instances", "m, 1 instance", inferences_per_second=1900.0, p50_ms=1.5)
        results.add("instances", "m, 2 instances", inferences_per_second=12345.6, p50_ms=0.25)
        results.add("instances", "m, 3 instances", inferences_per_second=0.0, p50_ms=None)
        results.add("library alone", "m", inferences_per_second=2000.0, ratio=0.93)
        text = gpu.report(results, "A GPU", "2026-01-01 00:00")
        self.assertIn("Device: A GPU. Date: 2026-01-01 00:00.", text)
        self.assertIn("| instances | inferences per second | p50 ms |", text)
        self.assertIn("| m, 2 instances | 12,346 | 0.25 |", text)
        self.assertIn("| m, 3 instances | 0 | - |", text)
        self.assertIn("m: 0.93 of library alone, less than 0.95.", text)
        self.assertEqual(results.value("instances", "m, 1 instance", "p50_ms"), 1.5)
        self.assertIsNone(results.value("instances", "x", "p50_ms"))


if __name__ == "__main__":
    unittest.main()
