"""Sequences, implicit state and ragged batches: requests to which both servers must respond in the
same way.

Cases run in order, so a case may continue the sequence of an earlier one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cases import EXECUTION, Case, infer_path, json_infer

STATEFUL_MODELS = [
    "accumulate_direct_int32_zero",
    "accumulate_direct_int32_file",
    "accumulate_direct_fp32_unspecified",
    "accumulate_direct_bytes_zero",
    "accumulate_oldest_int32_file",
    "accumulate_oldest_bytes_unspecified",
    "accumulate_same_buffer",
    "accumulate_without_batches",
    "controls_direct_int32_uint64",
    "controls_direct_fp32_int64",
    "controls_direct_bool_uint32",
    "controls_direct_int32_int32",
    "controls_direct_fp32_string",
    "controls_oldest_int32_uint64",
    "controls_oldest_bool_uint32",
    "controls_without_batches",
    "history",
    "history_batched",
    "two_states",
]
RAGGED_MODELS = ["ragged_int32", "ragged_fp32", "ragged_scatter"]
SUM = "accumulate_direct_int32_zero"

#: The sequence parameters of three requests of a sequence.
WHOLE = ({"sequence_start": True}, {}, {"sequence_end": True})


def datatype(model: str) -> str:
    """The data type of a model's input."""
    if not model.startswith("accumulate"):
        return "INT32"
    return {"int32": "INT32", "fp32": "FP32", "bytes": "BYTES"}.get(model.split("_")[2], "INT32")


def tensor(model: str, values: Sequence[Any]) -> dict[str, Any]:
    """A request's input in JSON."""
    batched = not (model.endswith("without_batches") or model == "history")
    shape = [1, len(values)] if batched else [len(values)]
    return {"name": "INPUT", "datatype": datatype(model), "shape": shape, "data": values}


def values_of(model: str) -> list[list[Any]]:
    """The inputs of a sequence's three requests."""
    if datatype(model) == "BYTES":
        return [["a"], [""], ["bc"]]
    if model.startswith("controls") and not model.endswith("without_batches"):
        return [[1], [2, 3], [4]]
    return [[1], [20], [300]]


def over_http(name: str, model: str, values: Sequence[Any], **parameters: Any) -> Case:
    """A request of a sequence; `outputs` and `inputs` replace the defaults."""
    request = {"inputs": parameters.pop("inputs", [tensor(model, values)])}
    outputs = parameters.pop("outputs", None)
    if outputs is not None:
        request["outputs"] = [{"name": output} for output in outputs]
    own = ("ours", "ours_status", "ours_text", "ours_headers")
    ours = {key: parameters.pop(key) for key in own if key in parameters}
    return json_infer(name, model, request | {"parameters": parameters}, **ours)


def grpc_message(model: str, values: Sequence[Any], **parameters: Any) -> dict[str, Any]:
    """A `ModelInferRequest` in protobuf's JSON."""
    given = tensor(model, values)
    data = given.pop("data")
    field = {"INT32": "int_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}
    contents = [value.encode() if isinstance(value, str) else value for value in data]
    given["contents"] = {field[given["datatype"]]: contents}
    fields = {bool: "bool_param", int: "int64_param", str: "string_param"}
    typed = {name: {fields[type(value)]: value} for name, value in parameters.items()}
    return {"model_name": model, "inputs": [given], "parameters": typed}


def stream(name: str, messages: Sequence[dict[str, Any]], **extra: Any) -> Case:
    """Requests on a gRPC stream, all sent at once."""
    return Case(name, rpc="ModelStreamInfer", messages=tuple(messages), **extra)


def whole_sequences(ids: Iterator[int]) -> Iterator[Case]:
    """Three requests to each model, over HTTP, gRPC and a stream."""
    for model in STATEFUL_MODELS:
        identity: Any = next(ids)
        if model.endswith("_string"):
            continue  # Triton passes the model two strings.
        for step, (values, flags) in enumerate(zip(values_of(model), WHOLE, strict=True)):
            yield over_http(
                f"sequence {model} {step}", model, values, sequence_id=identity, **flags
            )
        messages = []
        for step, (values, flags) in enumerate(zip(values_of(model), WHOLE, strict=True)):
            message = grpc_message(model, values, sequence_id=f"s {identity}"
                                   if model.startswith("accumulate") else identity, **flags)
            messages.append({"id": f"r{step}"} | message)
            yield Case(f"grpc sequence {model} {step}", rpc="ModelInfer", message=message)
        yield stream(f"stream sequence {model}", messages)


def restarts_and_ends(ids: Iterator[int]) -> Iterator[Case]:
    """Restarts, ends, and similar IDs."""
    for model in (SUM, "accumulate_oldest_int32_file", "accumulate_direct_fp32_unspecified"):
        steps = [(1, {"sequence_start": True}), (2, {}), (10, {"sequence_start": True}),
                 (5, {"sequence_end": True}), (5, {})]
        identity = next(ids)
        for step, (value, flags) in enumerate(steps):
            yield over_http(f"restart {model} {step}", model, [value], sequence_id=identity, **flags)
    both = {"sequence_start": True, "sequence_end": True}
    for identity in (2**64 - 1, "x" * 128, "ü"):
        yield over_http(f"ID {str(identity)[:24]}", SUM, [7], sequence_id=identity, **both)
    for given, model in ((2**32 + 9, "controls_direct_bool_uint32"),
                         (2**63 + 2**31 + 1, "controls_direct_int32_int32"),
                         (2**64 - 1, "controls_direct_fp32_int64")):
        yield over_http(f"half of an ID {given}", model, [1], sequence_id=given, **both)
    for step in range(3):
        flags = WHOLE[step]
        yield over_http(f"number 9001 {step}", SUM, [1], sequence_id=9001, **flags)
        yield over_http(f"text 9001 {step}", SUM, [10], sequence_id="9001", **flags)
    yield over_http("a timeout in a slot", SUM, [1], sequence_id=9002, timeout=1, **both)


def outputs() -> Iterator[Case]:
    """The outputs that a client gets."""
    both = {"sequence_start": True, "sequence_end": True}
    for names in (["TRACE_NEXT"], ["OUTPUT"], ["TRACE_NEXT", "OUTPUT"], ["SUM_NEXT"], ["SUM"]):
        yield over_http(f"outputs {names}", "two_states", [1], sequence_id=1, outputs=names, **both)
    yield over_http("a hidden state as output", SUM, [1], sequence_id=1, outputs=["SUM_NEXT"], **both)


def refusals() -> Iterator[Case]:
    """Requests that sequence models must refuse."""
    start = {"sequence_start": True}
    for model in (SUM, "accumulate_oldest_int32_file"):
        for name, parameters in {
            "no ID": {}, "no ID, start": start, "ID 0": {"sequence_id": 0, **start},
            "empty ID": {"sequence_id": "", **start}, "no start": {"sequence_id": 4242},
            "no start, text": {"sequence_id": "text"},
            "end of nothing": {"sequence_id": 4242, "sequence_end": True},
        }.items():
            yield over_http(f"refused: {name}, {model}", model, [1], **parameters)
            message = grpc_message(model, [1], **parameters)
            yield Case(f"grpc refused: {name}, {model}", rpc="ModelInfer", message=message)
            yield stream(f"stream refused: {name}, {model}", [{"id": "x"} | message])
    batch = tensor(SUM, [1]) | {"shape": [2, 1], "data": [1, 2]}
    yield over_http("refused: two rows", SUM, [], inputs=[batch], sequence_id=1, **start)
    yield over_http("refused: two rows, no ID", SUM, [], inputs=[batch])
    yield over_http("refused: long ID", SUM, [1], sequence_id="x" * 129, **start)
    message = grpc_message(SUM, [1], sequence_id="x" * 129, **start)
    yield Case("grpc refused: long ID", rpc="ModelInfer", message=message)
    yield stream("stream refused: long ID", [{"id": "x"} | message])
    state = tensor(SUM, [1]) | {"name": "SUM"}
    yield over_http("refused: a state as input", SUM, [], inputs=[tensor(SUM, [1]), state],
                    sequence_id=1, **start)
    control = tensor(SUM, [1]) | {"name": "START"}
    model = "controls_direct_int32_uint64"
    yield over_http("refused: a control as input", model, [],
                    inputs=[tensor(model, [1]), control], sequence_id=1, **start)
    yield over_http("refused: text for a number", model, [1], sequence_id="text", **start,
                    ours="a text is no number", ours_status=400)
    yield over_http("refused: number for a text", "controls_direct_fp32_string", [1],
                    sequence_id=5, **start, ours_text="it names the control",
                    ours_headers=EXECUTION)
    for value in (-5, 1.5, True, 2**64, None, [1]):
        yield over_http(f"refused: ID {value}", SUM, [1], sequence_id=value, **start)
    for name, value in (("sequence_start", 1), ("sequence_end", "true"), ("timeout", -1),
                        ("timeout", 2**64), ("priority", -1)):
        yield over_http(f"refused: {name} {value}", SUM, [1],
                        **{"sequence_id": 1, **start, name: value})


def mixed_streams() -> Iterator[Case]:
    """Errors and good requests of several sequences on one stream."""
    def message(identity: Any, value: int, number: int, **flags: bool) -> dict[str, Any]:
        return {"id": f"n{number}"} | grpc_message(SUM, [value], sequence_id=identity, **flags)

    yield stream("stream of two sequences", [
        message(7001, 1, 0, sequence_start=True), message("7001", 10, 1, sequence_start=True),
        message(7002, 5, 2), message(7001, 2, 3), message("7001", 20, 4, sequence_end=True),
        message(7001, 3, 5, sequence_end=True), message(7001, 4, 6),
    ])


def ragged() -> Iterator[Case]:
    """A batch of one request with ragged rows."""
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    given = {"name": "INPUT", "datatype": "FP32", "shape": [3, 2], "data": data.tolist()}
    row = {"name": "ROW", "datatype": "INT32", "shape": [3, 1], "data": [0, 1, 2]}
    for model in ("ragged_int32", "ragged_fp32"):
        yield json_infer(f"ragged {model}", model, {"inputs": [given, row]})
        yield json_infer(f"ragged {model}, batch input sent", model,
                         {"inputs": [given, row, row | {"name": "BATCH_ELEMENT_COUNT"}]})
    yield json_infer("ragged scatter", "ragged_scatter", {"inputs": [given]})


def documents() -> Iterator[Case]:
    """Configuration, metadata and statistics."""
    for model in (*STATEFUL_MODELS, *RAGGED_MODELS):
        for path in ("", "/config"):
            yield Case(f"GET {model}{path}", path=f"/v2/models/{model}{path}")
        yield Case(f"grpc config {model}", rpc="ModelConfig", message={"name": model})
    yield Case("GET infer of a sequence model", path=infer_path(SUM))


def sequence_cases() -> list[Case]:
    """All cases of the suite, in order."""
    ids = itertools.count(5000)
    return [*documents(), *whole_sequences(ids), *restarts_and_ends(ids), *outputs(), *refusals(),
            *mixed_streams(), *ragged()]
