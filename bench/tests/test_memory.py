"""Tests of the traffic and the arithmetic of memory.py.

python -m unittest discover bench/tests
"""

from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import memory


class MemoryTest(unittest.TestCase):
    """The parts that need no server."""

    def test_shares_follow_the_law(self) -> None:
        """The second rank has half of the first one's share, and all add up to 1."""
        one, two, three = memory.zipf(3)
        self.assertAlmostEqual(two - one, one / 2)
        self.assertAlmostEqual(three - two, one / 3)
        self.assertAlmostEqual(three, 1.0)

    def test_values_tell_models_and_rows_apart(self) -> None:
        """No row of a model has a value of another model."""
        values = [{memory.expected(number, row) for row in range(2_000)} for number in range(22)]
        self.assertTrue(all(len(one) == memory.PERIOD for one in values))
        self.assertEqual(len(set.union(*values)), 22 * memory.PERIOD)
        self.assertLess(max(max(one) for one in values), 1 << 24)

    def test_quantiles_are_values(self) -> None:
        """The 99th percentile of few values is the largest one."""
        self.assertEqual(memory.quantile([3, 1, 2], 0.99), 3)
        self.assertEqual(memory.quantile(list(range(1_000)), 0.99), 990)


if __name__ == "__main__":
    unittest.main()
