"""Custom metrics: the results of their functions, here and in Triton.

The same program runs on Triton's own library, which GALATEA_TRITON_PACKAGES
locates.
"""

from __future__ import annotations

import json
import pathlib

import pytest

from implementations import Implementation

HERE = pathlib.Path(__file__).resolve().parent

COUNTER, GAUGE, HISTOGRAM = range(3)
INVALID, UNSUPPORTED, INTERNAL = "Invalid argument", "Unsupported", "Internal"

Results = dict[str, list[object]]


@pytest.fixture(scope="module")
def results(implementation: Implementation, repository: pathlib.Path) -> Results:
    """The results of each case; errors are reduced to their codes."""
    ended = implementation.run(HERE / "metrics.py", implementation.library, repository)
    found = json.loads(ended.stdout.splitlines()[-1])
    return {case: list(map(code, lines)) for case, lines in found.items()}


def code(line: object) -> object:
    """An error's code, and anything else as it is."""
    if isinstance(line, str) and line.startswith((INVALID, UNSUPPORTED, INTERNAL)):
        return line.split(":")[0]
    return line


def head(name: str, kind: str) -> list[str]:
    """The comment lines of a family."""
    return [f"# HELP {name} What {name} is", f"# TYPE {name} {kind}"]


def test_counters_grow_and_gauges_move(results: Results) -> None:
    level = 'c_level{place="here",side="left"} 8'
    assert results["numbers"] == [
        *[COUNTER, GAUGE] * 2,
        *[None, 2.5, INVALID, 2.5, UNSUPPORTED, 2.5, UNSUPPORTED, 2.5],
        *[None, 2.5, None, -1.5, None, 7.0, UNSUPPORTED, 7.0],
        *[None, 8.0],
        *[*head("c_count", "counter"), "c_count 2.5"],
        *[*head("c_level", "gauge"), level],
        # The shared value of two metrics is shown until both are deleted.
        level,
    ]


def test_histograms_count_observations(results: Results) -> None:
    assert results["histograms"] == [
        *[HISTOGRAM] * 2,
        *[None, *[UNSUPPORTED] * 5],
        *head("c_sizes", "histogram"),
        *[
            f'c_sizes_bucket{{place="here",le="{bound}"}} {count}'
            for bound, count in (("+Inf", 4), ("1", 1), ("2.5", 3))
        ],
        'c_sizes_count{place="here"} 4',
        'c_sizes_sum{place="here"} 105',
    ]


def test_invalid_arguments_create_nothing(results: Results) -> None:
    """Unknown kinds, bounds of a gauge, and missing, null or unset bounds are refused."""
    assert results["invalid_arguments"] == [INVALID] * 5


def test_a_family_is_not_deleted_before_its_metrics(results: Results) -> None:
    assert results["deletion_order"] == [
        *[INTERNAL, None, 3.0],
        *[*head("c_order", "gauge"), "c_order 3"],
        *[None, None],
    ]
