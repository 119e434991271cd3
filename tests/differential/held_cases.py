"""Batches that are the same in every run, because of the test variables.

Nothing is executed until N requests are waiting, so the batches depend only on the
configuration. Each model has one instance, because Triton releases several one by one.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

from example_models import conformance, sequences  # noqa: E402
from example_models.repository import Example, write_example  # noqa: E402

from cases import Case  # noqa: E402

MODEL = "model"


@dataclasses.dataclass(frozen=True)
class HeldBatch:
    """A model, the requests on one gRPC stream, and the number of them that must be
    waiting."""

    name: str
    example: Callable[[], Example]
    messages: tuple[dict[str, Any], ...]
    waiting: int
    backlog: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the server."""
        variables = {"TRITONSERVER_DELAY_SCHEDULER": str(self.waiting)}
        if self.backlog:
            variables["TRITONSERVER_BACKLOG_DELAY_SCHEDULER"] = str(self.backlog)
        return variables

    def write_repository(self, root: pathlib.Path) -> None:
        """The only model."""
        write_example(root, MODEL, self.example())

    def cases(self) -> list[Case]:
        """One stream."""
        return [Case(self.name, rpc="ModelStreamInfer", messages=self.messages)]


def message(
    number: int, name: str, values: Sequence[int], **parameters: Any
) -> dict[str, Any]:
    """A `ModelInferRequest` in protobuf's JSON."""
    fields = {bool: "bool_param", int: "int64_param"}
    typed = {key: {fields[type(value)]: value} for key, value in parameters.items()}
    tensor = {"name": name, "datatype": "INT32", "shape": [1, len(values)],
              "contents": {"int_contents": list(values)}}
    return {"id": str(number), "model_name": MODEL, "inputs": [tensor], "parameters": typed}


def interleaved(lengths: Sequence[int]) -> tuple[dict[str, Any], ...]:
    """The interleaved requests of whole sequences."""
    turns = [(step, place) for step in range(max(lengths)) for place in range(len(lengths))]
    parts = [(step, place) for step, place in turns if step < lengths[place]]
    return tuple(
        message(number, "INPUT", [number], sequence_id=101 + place, sequence_start=step == 0,
                sequence_end=step == lengths[place] - 1)
        for number, (step, place) in enumerate(parts)
    )


def direct(slots: int) -> Callable[[], Example]:
    """A model with this number of slots that returns the controls of its whole batch."""
    batching = sequences.Batching("direct { }", max_batch_size=slots)
    return lambda: sequences.controls("int32", "uint64", batching)


def of_lengths(*parts: tuple[int, int, bool, bool]) -> tuple[dict[str, Any], ...]:
    """Requests of sequences whose inputs have this many elements."""
    return tuple(
        message(number, "INPUT", [number] * length, sequence_id=sequence, sequence_start=start,
                sequence_end=end)
        for number, (sequence, length, start, end) in enumerate(parts)
    )


HELD = [
    HeldBatch("direct-backlog", direct(3), interleaved([3, 1, 2, 2, 1]), waiting=6, backlog=3),
    HeldBatch("direct-padding", direct(4), interleaved([3, 1, 2]), waiting=6),
    HeldBatch("direct-one-slot", direct(1), interleaved([2, 1, 3]), waiting=2, backlog=4),
    HeldBatch(
        "direct-shapes",
        direct(3),
        of_lengths((1, 1, True, False), (2, 2, True, False), (3, 1, True, True),
                   (1, 2, False, True), (2, 2, False, True)),
        waiting=5,
    ),
    HeldBatch(
        "dynamic-priorities",
        lambda: conformance.onnx_whole_batch(
            "dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
        ),
        tuple(message(number, "INPUT0", [number], priority=priority)
              for number, priority in enumerate([3, 0, 1, 4, 2, 3, 1, 2])),
        waiting=8,
    ),
]
