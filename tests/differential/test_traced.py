"""Compares what our server records of requests with what Triton does."""

from __future__ import annotations

import json

import pytest

from traced_cases import GOLDEN_PATH, SCENARIOS, recorded

GOLDENS = json.loads(GOLDEN_PATH.read_text())


@pytest.mark.parametrize("name", SCENARIOS)
def test_records_like_triton(name: str, request: pytest.FixtureRequest) -> None:
    """The same traces, with the same entries; spans in the same places."""
    program = [str(request.config.getoption("--galatea"))]
    ours = json.loads(json.dumps(recorded(program, SCENARIOS[name])))
    assert ours == GOLDENS[name]
