"""Tests of the agreed numbers of instructions, without servers."""

from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import instructions

FILE = "# why\n[instructions]\nhttp_identity = 1_000\n"


class Agreed(unittest.TestCase):
    def test_a_growth_above_the_bound_is_a_mistake(self) -> None:
        agreed = {"http_identity": 1_000, "grpc_identity": 2_000}
        self.assertEqual(instructions.grown(agreed, {"http_identity": 1_004, "other": 9}), [])
        self.assertEqual(
            instructions.grown(agreed, {"grpc_identity": 2_011}),
            ["grpc_identity: 2,011 instructions, where 2,000 are agreed"],
        )

    def test_numbers_are_written_where_they_were(self) -> None:
        text = instructions.agreed_text(FILE, {"http_identity": 900, "grpc_identity": 12_345})
        self.assertEqual(
            text, "# why\n[instructions]\nhttp_identity = 900\ngrpc_identity = 12_345\n"
        )

    def test_every_way_is_agreed(self) -> None:
        self.assertEqual(set(instructions.read_agreed()), {load.name for load in instructions.PLAIN})


if __name__ == "__main__":
    unittest.main()
