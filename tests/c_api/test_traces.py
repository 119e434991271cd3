"""Tests the activities in traces, here and, if its package is installed, in Triton."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = os.environ.get("GALATEA_TRITON_PACKAGES")

TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
BACKEND = 'backend: "trace_points" max_batch_size: 8 instance_group [ { kind: KIND_CPU } ]' + TENSORS
BATCHES = """
dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 30000000 }
"""
STEP = """{ model_name: "%s" model_version: -1
    input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }"""


def ensemble(first: str, second: str) -> str:
    """A model that sends its request through two others."""
    steps = STEP % (first, "INPUT0", "between") + "," + STEP % (second, "between", "OUTPUT0")
    return f'platform: "ensemble" max_batch_size: 8 {TENSORS} ensemble_scheduling {{ step [ {steps} ] }}'


MODELS = {
    "plain": BACKEND,
    "batched": BACKEND + BATCHES,
    "cached": BACKEND + "response_cache { enable: true }",
    "kept": BACKEND + "response_cache { enable: true }",
    "decoupled": BACKEND + "model_transaction_policy { decoupled: true }",
    "failing": BACKEND,
    "unanswering": BACKEND,
    "nested": BACKEND,
    "chain": ensemble("plain", "kept"),
    "broken": ensemble("plain", "failing"),
    "outer": ensemble("chain", "nested"),
}
CASES = [
    "plain:0",
    "plain:1",
    "plain:2",
    "plain:4",
    "plain:8",
    "plain:12",
    "batched+batched:12",
    "cached:12",
    "cached:12",
    "chain:12",
    "chain:12",
    "decoupled:12",
    "failing:12",
    "unanswering:12",
    "broken:12",
    "nested:12",
    "outer:4",
]

START = ["REQUEST_START", "QUEUE_START"]
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
END = ["REQUEST_END", "released"]
INPUT = ["TENSOR_QUEUE_INPUT INPUT0 8 [1, 3] [1, 2, 3] 0"]
OUTPUT = ["TENSOR_BACKEND_OUTPUT OUTPUT0 8 [1, 3] [1, 2, 3] 0"]
WHOLE = START + INPUT + OUTPUT + COMPUTE + END

Traces = list[dict[str, object]]


@pytest.fixture(scope="module")
def arguments(
    compile: Callable[..., pathlib.Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[pathlib.Path, pathlib.Path]:
    """The repository and the directory of backends."""
    folder = tmp_path_factory.mktemp("traces")
    for name, config in MODELS.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(config)
    options = ["-std=gnu11", "-shared", "-fPIC", "-I", ROOT / "examples/backends", "-lpthread"]
    built = compile("cc", HERE / "trace_points.c", *options)
    (folder / "backends/trace_points").mkdir(parents=True)
    built.rename(folder / "backends/trace_points/libtriton_trace_points.so")
    return folder / "models", folder / "backends"


def run(
    library: pathlib.Path, arguments: tuple[pathlib.Path, pathlib.Path], caches: object = ""
) -> list[Traces]:
    """The traces of each case with this library."""
    command = [sys.executable, HERE / "traces.py", library, *arguments, caches, *CASES]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    text = list(map(str, command))
    ended = subprocess.run(text, capture_output=True, text=True, timeout=300, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def ours(
    library: pathlib.Path, arguments: tuple[pathlib.Path, pathlib.Path]
) -> dict[str, Traces]:
    """The traces of each case; repeated cases are numbered."""
    return named(run(library, arguments))


def named(traces: list[Traces]) -> dict[str, Traces]:
    found: dict[str, Traces] = {}
    for case, one in zip(CASES, traces, strict=True):
        found[case if case not in found else f"{case} again"] = one
    return found


def summaries(traces: Traces) -> list[tuple[str, object, list[str]]]:
    """The model, the parent's index and the activities of each trace."""
    return [(one["model"], one["parent"], one["activities"]) for one in traces]


# row: SAPI-09
def test_levels(ours: dict[str, Traces]) -> None:
    times = START + COMPUTE + END
    for level, expected in {
        0: ["released"],
        1: times,
        2: times,
        4: times,
        8: INPUT + OUTPUT + ["released"],
        12: WHOLE,
    }.items():
        (trace,) = ours[f"plain:{level}"]
        assert trace["activities"] == expected, level
        assert (trace["model"], trace["version"], trace["request"]) == ("plain", 1, "outer")


# row: SAPI-09
def test_timestamps_increase(ours: dict[str, Traces]) -> None:
    in_time = [one["in_time"] for traces in ours.values() for one in traces]
    assert in_time and all(in_time)


def test_a_batch(ours: dict[str, Traces]) -> None:
    assert summaries(ours["batched+batched:12"]) == [("batched", None, WHOLE)] * 2


def test_a_cached_response(ours: dict[str, Traces]) -> None:
    assert summaries(ours["cached:12"]) == [("cached", None, WHOLE)]
    from_cache = START + INPUT + OUTPUT + END
    assert summaries(ours["cached:12 again"]) == [("cached", None, from_cache)]
    assert summaries(ours["chain:12"])[2] == ("kept", 0, WHOLE)
    assert summaries(ours["chain:12 again"])[2] == ("kept", 0, from_cache)


def test_an_ensemble(ours: dict[str, Traces]) -> None:
    chain, plain, _ = summaries(ours["chain:12"])
    assert chain == ("chain", None, START + INPUT + OUTPUT + END)
    assert plain == ("plain", 0, WHOLE)
    assert {one["request"] for one in ours["chain:12"]} == {"outer"}
    parents = [(model, parent) for model, parent, _ in summaries(ours["outer:4"])]
    within = [("chain", 0), ("plain", 1), ("kept", 1), ("nested", 0), ("plain", 4)]
    assert parents == [("outer", None), *within]


def test_a_decoupled_model(ours: dict[str, Traces]) -> None:
    expected = START + INPUT + OUTPUT + OUTPUT + COMPUTE + END
    assert summaries(ours["decoupled:12"]) == [("decoupled", None, expected)]


def test_failures_end_traces(ours: dict[str, Traces]) -> None:
    assert summaries(ours["failing:12"]) == [("failing", None, START + INPUT + COMPUTE + END)]
    assert summaries(ours["unanswering:12"]) == [("unanswering", None, START + INPUT + END)]
    broken = summaries(ours["broken:12"])
    assert [(model, parent) for model, parent, _ in broken] == [
        ("broken", None),
        ("plain", 0),
        ("failing", 0),
    ]
    assert broken[0][2] == START + INPUT + END


def test_a_backend_that_uses_the_cache(ours: dict[str, Traces]) -> None:
    outer, inner = summaries(ours["nested:12"])
    own = ["CUSTOM_ACTIVITY 1 ask", "CUSTOM_ACTIVITY 2 answer"]
    assert outer == ("nested", None, START + INPUT + own + OUTPUT + COMPUTE + END)
    assert inner == ("plain", 0, WHOLE)
    assert ours["nested:12"][1]["request"] == "inner"


@pytest.mark.skipif(not PACKAGES, reason="needs Triton's packages in GALATEA_TRITON_PACKAGES")
def test_triton_reports_the_same_activities(
    ours: dict[str, Traces], arguments: tuple[pathlib.Path, pathlib.Path]
) -> None:
    packages = pathlib.Path(PACKAGES or "")
    (library,) = packages.glob("nvidia_pytriton.libs/libtritonserver*")
    caches = packages / "pytriton/tritonserver/caches"
    theirs = named(run(library, arguments, caches))
    for traces in theirs.values():
        for one in traces:
            if one["model"] in ("cached", "kept"):
                # Triton reports an output again after inserting it into the cache.
                one["activities"] = [line for line, _ in itertools.groupby(one["activities"])]
    assert theirs == ours
