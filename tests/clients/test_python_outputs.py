"""Tests of Python models' outputs that differ from the configuration, compared with
Triton's responses."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from python_backend import (
    PythonServer,
    start_python,  # noqa: F401
    tensors,
    write_model,
)
from server import Server

TENSORS = tensors("IN:STRING:1", "OUT:FP32:2 MORE:INT32:1")
ONE = "instance_group { kind: KIND_CPU count: 1 }"
#: Data type and shape of the first output, and the number of outputs, without batches.
ANSWERS = {
    "good": ("FP32", [2], 2),
    "type": ("INT64", [2], 2),
    "text": ("BYTES", [2], 2),
    "shape": ("FP32", [3], 2),
    "rank": ("FP32", [2, 3, 4], 2),
    "scalar": ("FP32", [], 2),
    "rows": ("FP32", [3, 2], 2),
    "name": ("FP32", [2], 2),
    "missing": ("FP32", [2], 1),
    "twice": ("FP32", [2], 3),
}


@pytest.fixture(scope="module")
def server(
    start_python: PythonServer,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("outputs")
    write_model(folder, "plain", TENSORS + ONE, "shapes")
    write_model(folder, "batched", f"max_batch_size: 4 {TENSORS}{ONE}", "shapes")
    with start_python(folder) as running:
        yield running.wait_until_ready()


@pytest.mark.parametrize("model", ["plain", "batched"])
@pytest.mark.parametrize("way", ANSWERS)
def test_outputs_are_as_the_model_gave_them(server: Server, model: str, way: str) -> None:
    lead = [2] if model == "batched" else []
    count = 2 if lead else 1
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [*lead, 1], "data": [way] * count}
    reply = server.infer(model, {"inputs": [tensor]})
    assert reply.status == 200
    outputs = reply.json()["outputs"]
    datatype, shape, number = ANSWERS[way]
    wanted = shape if way in ("rank", "scalar", "rows") else lead + shape
    assert (outputs[0]["datatype"], outputs[0]["shape"], len(outputs)) == (
        datatype, wanted, number,
    )
