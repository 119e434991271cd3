"""Traces pipelines of convolutional networks, to find which steps ran at the same time and which
waited.

There are networks with one, two and three layers: in sequence, partly in parallel, and all in
parallel.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "examples"))

from example_models import ensembles
from example_models.repository import write_example

NETS = ["convolutions_1", "convolutions_2", "convolutions_3"]
#: The net whose output each net gets; None for the client's image.
PIPELINES: dict[str, dict[str, str | None]] = {
    "pipeline_in_a_row": {NETS[0]: None, NETS[1]: NETS[0], NETS[2]: NETS[1]},
    "pipeline_partly_parallel": {NETS[0]: None, NETS[1]: NETS[0], NETS[2]: NETS[0]},
    "pipeline_parallel": {NETS[0]: None, NETS[1]: None, NETS[2]: None},
}
#: So large that a net takes longer than the scheduling delays of a busy machine.
RUNS = 10
SIZE = 512

Times = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, library: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Times]]:
    """The times of each network and pipeline, for each request."""
    onnxruntime = request.config.getoption("--onnxruntime-library")
    if onnxruntime is None:
        pytest.fail("--onnxruntime-library is needed")
    repository = tmp_path_factory.mktemp("pipelines")
    for name in [*NETS, *PIPELINES]:
        write_example(repository, name, ensembles.EXAMPLES[name]())
    command = [sys.executable, HERE / "spans.py", library, repository, RUNS, SIZE, *PIPELINES]
    environment = {**os.environ, "GALATEA_ONNXRUNTIME_LIBRARY": str(onnxruntime)}
    ended = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def waits_for(pipeline: str, net: str) -> set[str]:
    """The networks that must complete before this one."""
    source = PIPELINES[pipeline][net]
    return set() if source is None else {source, *waits_for(pipeline, source)}


def overlap(first: dict[str, int], second: dict[str, int]) -> bool:
    """Returns true if two networks computed at the same time."""
    return max(first["COMPUTE_START"], second["COMPUTE_START"]) < min(
        first["COMPUTE_END"], second["COMPUTE_END"]
    )


def render(times: Times, pipeline: str) -> str:
    """The spans of one request as text, in microseconds from its start."""
    start = times[pipeline]["REQUEST_START"]
    spans = [f"{pipeline}: {(times[pipeline]['REQUEST_END'] - start) // 1000} µs"]
    for net in NETS:
        queued, begun, done = (
            (times[net][name] - start) // 1000
            for name in ("QUEUE_START", "COMPUTE_START", "COMPUTE_END")
        )
        spans.append(f"  {net} queued {queued}, computed {begun} to {done}")
    return "\n".join(spans)


@pytest.mark.parametrize("pipeline", list(PIPELINES))
def test_spans(runs: dict[str, list[Times]], pipeline: str) -> None:
    """A network starts after those that it needs, and in parallel with the others."""
    for times in runs[pipeline]:
        assert set(times) == {pipeline, *NETS}
        whole = times[pipeline]
        for net in NETS:
            assert whole["REQUEST_START"] <= times[net]["REQUEST_START"]
            assert times[net]["COMPUTE_END"] <= whole["REQUEST_END"]
            for earlier in waits_for(pipeline, net):
                assert times[earlier]["COMPUTE_END"] <= times[net]["QUEUE_START"]
                assert not overlap(times[earlier], times[net])
    free = {
        (first, second)
        for first, second in itertools.combinations(NETS, 2)
        if first not in waits_for(pipeline, second)
    }
    most = max(
        runs[pipeline],
        key=lambda times: sum(overlap(times[first], times[second]) for first, second in free),
    )
    print(render(most, pipeline))
    at_once = {(first, second) for first, second in free if overlap(most[first], most[second])}
    assert at_once == free
