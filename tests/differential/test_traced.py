"""Compares our server's traces of requests with Triton's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from traced_cases import GOLDEN_PATH, SCENARIOS, recorded

GOLDENS = json.loads(GOLDEN_PATH.read_text())


@pytest.mark.parametrize("name", SCENARIOS)
# row: OTEL-02
def test_records_like_triton(name: str, request: pytest.FixtureRequest) -> None:
    """The traces are the same and have the same entries, and spans are in the same places."""
    program = [str(request.config.getoption("--galatea"))]
    ours = json.loads(json.dumps(recorded(program, SCENARIOS[name])))
    compared = without_generation if SCENARIOS[name].is_talking else lambda record: record
    assert compared(ours) == compared(GOLDENS[name])


def without_generation(record: Any) -> Any:
    """The record, without the differences that docs/differences.md lists for responses of the
    generate extension."""
    if isinstance(record, dict):
        return {key: without_generation(value) for key, value in record.items()}
    if not isinstance(record, list):
        return record
    if "HTTP_RECV_START" not in record:
        return [without_generation(value) for value in record]
    return sorted(name for name in set(record) if not name.startswith("HTTP_SEND"))
