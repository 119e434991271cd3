"""Tests of the sizes of models on demand: they are measured again while the models serve."""

from __future__ import annotations

import pathlib

import pytest

from conftest import StartServer
from demand_models import (
    BUDGET,
    MODEL_BYTES,
    PYTHON,
    SECONDS_MAX,
    infer,
    make_heavy,
    memory,
    metric,
    resident,
    serving,
    used_bytes,
    value_of,
    write_identity,
)
from server import Server, wait_until

pytestmark = pytest.mark.galatea_only

STEP_BYTES, STEPS_MAX = 16 << 20, 10
#: A model that takes more memory in each second in which it is used, up to a maximum.
GROWING = f"""
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.blocks, self.last = [], time.monotonic()

    def execute(self, requests):
        now = time.monotonic()
        if now > self.last + 1 and len(self.blocks) < {STEPS_MAX}:
            self.blocks.append(b"x" * {STEP_BYTES})
            self.last = now
        tensors = [pb_utils.get_input_tensor_by_name(one, "INPUT0") for one in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one.as_numpy())])
            for one in tensors
        ]
"""


def write_growing(repository: pathlib.Path, name: str) -> None:
    make_heavy(repository, name, size=1 << 20)
    (repository / name / "config.pbtxt").write_text(PYTHON)
    (repository / name / "1" / "model.py").write_text(GROWING)


def size_of(server: Server, model: str) -> int:
    return memory(server, model)["bytes"]


def wait_for_size(server: Server, model: str, least: int, most: int) -> None:
    """Uses a model until it counts with this number of bytes."""

    def has_size() -> bool:
        assert value_of(infer(server, model)) == 7
        return least <= size_of(server, model) <= most

    wait_until(has_size, SECONDS_MAX, f"'{model}' counts with {least} to {most} bytes")


def test_growth_counts_and_evicts(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    write_growing(tmp_path, "growing")
    write_identity(tmp_path, "net", size=BUDGET - STEP_BYTES)
    with serving(start_server, tmp_path, budget=BUDGET + MODEL_BYTES) as server:
        assert value_of(infer(server, "growing")) == 7
        at_first = size_of(server, "growing")
        assert value_of(infer(server, "net")) == 7
        assert resident(server) == {"growing", "net"}
        wait_for_size(server, "growing", at_first + 5 * STEP_BYTES, 2 * BUDGET)
        # Both no longer fit, and the idle one leaves.
        wait_until(lambda: resident(server) == {"growing"}, SECONDS_MAX, "the other model leaves")
        assert metric(server, "galatea_model_evictions_total") == 1
        # The next load expects the growth again.
        grown = size_of(server, "growing")
        assert value_of(infer(server, "net")) == 7
        assert resident(server) == {"net"}
        assert size_of(server, "growing") >= grown - STEP_BYTES


def test_models_that_take_less_than_their_files_count_with_less(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The files of these models are never read, like weights that are only mapped."""
    names = [f"m{number}" for number in range(4)]
    for name in names:
        write_identity(tmp_path, name)
    with serving(start_server, tmp_path) as server:
        assert value_of(infer(server, names[0])) == 7
        assert size_of(server, names[0]) == MODEL_BYTES
        for name in names:
            wait_for_size(server, name, 1 << 20, MODEL_BYTES // 4)
        # All four fit, which their files don't.
        assert resident(server) == set(names)
        assert metric(server, "galatea_model_evictions_total") == 0
        assert used_bytes(server) <= MODEL_BYTES
