"""Statistics after requests of every kind. Counts are compared, and times are masked."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

from cases import Case, json_infer
from configuration_cases import identity

#: Flags of the response cache.
FLAGS = ("--cache-config=local,size=1000000",)

#: Why a response from the cache differs.
KEPT = "a cached response keeps its parameters"

CACHED = "response_cache { enable: true }"
MODELS = {
    "plain": identity(),
    "first": identity(),
    "second": identity(more="dynamic_batching { }"),
    "cached": identity(more=CACHED),
    "cached_step": identity(more=CACHED),
    "warmed_up": identity(
        more='model_warmup [ { name: "w" batch_size: 2 count: 3 inputs { key: "INPUT0" value { '
        "data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]\n"
        "instance_group [ { kind: KIND_CPU count: 2 } ]"
    ),
    "sequence": identity(more="sequence_batching { }"),
    "unused": identity(),
}
ENSEMBLES = {
    "chain": ("first", "second", ""),
    "cached_chain": ("first", "cached_step", CACHED),
    "half_cached_chain": ("second", "cached_step", ""),
}
#: A model that executes only full batches.
BATCHED = {"batched": identity(more="dynamic_batching { }\ninstance_group [ { kind: KIND_CPU } ]")}


def ensemble(first: str, second: str, more: str) -> str:
    """Two models in sequence."""
    step = (
        'step [ {{ model_name: "{}" model_version: -1 input_map {{ key: "INPUT0" value: "{}" }} '
        'output_map {{ key: "OUTPUT0" value: "{}" }} }} ]'
    )
    return (
        'platform: "ensemble" max_batch_size: 8\n'
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        f"ensemble_scheduling {{ {step.format(first, 'INPUT0', 'between')} "
        f"{step.format(second, 'between', 'OUTPUT0')} }}\n{more}\n"
    )


def write_texts(root: pathlib.Path, texts: dict[str, str]) -> None:
    """Writes models that need no files."""
    for name, text in texts.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)


def write_models(root: pathlib.Path) -> None:
    """Writes all models except the batched one."""
    write_texts(root, MODELS)
    write_texts(root, {name: ensemble(*parts) for name, parts in ENSEMBLES.items()})


def tensor(value: float, rows: int = 1) -> dict[str, Any]:
    """A tensor with this number of rows of four elements."""
    return {
        "name": "INPUT0", "datatype": "FP32", "shape": [rows, 4], "data": [value] * (4 * rows)
    }


def statistics(model: str) -> Iterator[Case]:
    """The cases for a model's statistics over both protocols."""
    yield Case(f"{model}: statistics", path=f"/v2/models/{model}/stats")
    yield Case(f"{model}: grpc statistics", rpc="ModelStatistics", message={"name": model})


def infer(model: str, number: int, inputs: Any, ours: str = "", **fields: Any) -> Case:
    """One request."""
    more = {"ours": ours, "ours_status": 200} if ours else {}
    return json_infer(f"{model}: request {number}", model, {"inputs": inputs} | fields, **more)


def statistics_cases() -> list[Case]:
    """Requests, and then the statistics of every model."""
    cases: list[Case] = []
    for number, rows in enumerate((1, 3, 3, 8)):
        cases.append(infer("plain", number, [tensor(1, rows)]))
    cases.append(infer("plain", 4, [tensor(1, 9)]))
    cases.append(infer("plain", 5, []))
    for model in ("cached", *ENSEMBLES):
        for number, value in enumerate((1, 1, 2, 1)):
            is_kept = model == "cached_chain" and number in (1, 3)
            cases.append(infer(model, number, [tensor(value)], KEPT if is_kept else ""))
    flags = ({"sequence_start": True}, {}, {"sequence_end": True})
    for number, flag in enumerate(flags):
        cases.append(
            infer("sequence", number, [tensor(1)], parameters={"sequence_id": 7, **flag})
        )
    for model in (*MODELS, *ENSEMBLES):
        cases.extend(statistics(model))
    return cases


def batched_cases() -> list[Case]:
    """Four requests that form one batch."""
    messages = tuple(
        {
            "model_name": "batched",
            "id": str(number),
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": [rows, 1],
                 "contents": {"fp32_contents": [1.0] * rows}}
            ],
        }
        for number, rows in enumerate((1, 2, 1, 3))
    )
    stream = Case("batched: requests", rpc="ModelStreamInfer", messages=messages)
    return [stream, *statistics("batched")]
