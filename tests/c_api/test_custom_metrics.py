"""Tests of custom metrics: the results of their functions, here and in Triton.

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

Results = dict[str, list[object]]


@pytest.fixture(scope="module")
def results(implementation: Implementation, repository: pathlib.Path) -> Results:
    """The results of each case."""
    ended = implementation.run(HERE / "metrics.py", implementation.library, repository)
    return json.loads(ended.stdout.splitlines()[-1])


def unsupported(kind: str, function: str) -> str:
    """The error of a function that this kind of metric doesn't support."""
    return f"Unsupported: TRITONSERVER_METRIC_KIND_{kind} does not support {function}"


FALLING = (
    "Invalid argument: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by "
    "non-negative values."
)
NO_VALUE = unsupported("HISTOGRAM", "Value")


def head(name: str, kind: str) -> list[str]:
    """The comment lines of a family."""
    return [f"# HELP {name} What {name} is", f"# TYPE {name} {kind}"]


# row: SAPI-10 MET-16
def test_counters_grow_and_gauges_move(results: Results) -> None:
    level = 'c_level{place="here",side="left"} 8'
    assert results["numbers"] == [
        *[COUNTER, GAUGE] * 2,
        *[None, 2.5, FALLING, 2.5, unsupported("COUNTER", "Set"), 2.5],
        *[unsupported("COUNTER", "Observe"), 2.5],
        *[None, 2.5, None, -1.5, None, 7.0, unsupported("GAUGE", "Observe"), 7.0],
        *[None, 8.0],
        *[*head("c_count", "counter"), "c_count 2.5"],
        *[*head("c_level", "gauge"), level],
        # The shared value of two metrics is shown until both are deleted.
        level,
    ]


def test_histograms_count_observations(results: Results) -> None:
    assert results["histograms"] == [
        *[HISTOGRAM] * 2,
        *[None, NO_VALUE, unsupported("HISTOGRAM", "Increment"), NO_VALUE],
        *[unsupported("HISTOGRAM", "Set"), NO_VALUE],
        *head("c_sizes", "histogram"),
        *[
            f'c_sizes_bucket{{place="here",le="{bound}"}} {count}'
            for bound, count in (("+Inf", 4), ("1", 1), ("2.5", 3))
        ],
        'c_sizes_count{place="here"} 4',
        'c_sizes_sum{place="here"} 105',
    ]


# row: SAPI-10
def test_invalid_arguments_create_nothing(results: Results) -> None:
    """Unknown kinds, bounds of a gauge, missing, null or unset bounds, and wrong names."""
    texts = [
        "Unsupported kind passed to MetricFamily constructor.",
        "Unexpected args found in gauge Metric constructor.",
        *["Bucket boundaries not found in Metric args."] * 2,
        "Metric args not set to histogram kind.",
        "Invalid metric name",
        "Family name already exists with different type",
        "Invalid label name",
    ]
    assert results["invalid_arguments"] == [f"Invalid argument: {text}" for text in texts]


def test_a_family_is_not_deleted_before_its_metrics(results: Results) -> None:
    assert results["deletion_order"] == [
        "Internal: Must call MetricDelete on all dependent metrics before calling "
        "MetricFamilyDelete.",
        *[None, 3.0],
        *[*head("c_order", "gauge"), "c_order 3"],
        *[None, None],
    ]
