"""Ensembles: requests to which both servers must respond in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cases import EXECUTION, Case, json_infer

#: Ensembles and their composing models.
MODELS = [
    "double",
    "square",
    "sum",
    "double_without_batches",
    "optional_pair",
    "eightfold",
    "fan",
    "nested",
    "two_ends",
    "with_optional",
    "in_and_out_of_batches",
    "sum_direct",
    "sum_oldest",
    "two_sums",
    "convolutions_1",
    "convolutions_2",
    "convolutions_3",
    "pipeline_in_a_row",
    "pipeline_parallel",
]
ENSEMBLES = [
    "eightfold",
    "fan",
    "nested",
    "two_ends",
    "with_optional",
    "in_and_out_of_batches",
    "two_sums",
    "pipeline_in_a_row",
    "pipeline_parallel",
]

#: The reason of every configuration.
NEWER = "max_inflight_requests came after the version that was recorded"
#: The reason where steps are left out.
PRUNED = "Triton leaves out a step whose output another step needs: a deadlock"


def tensor(values: Sequence[Any], name: str = "IN", shape: Any = None) -> dict[str, Any]:
    """A batch of one."""
    shape = [1, len(values)] if shape is None else shape
    return {"name": name, "datatype": "INT32", "shape": shape, "data": list(values)}


def over_http(name: str, model: str, inputs: Any, **fields: Any) -> Case:
    """An inference over HTTP; the other fields are the request's."""
    own = ("ours", "ours_status", "ours_headers", "any_order")
    ours = {key: fields.pop(key) for key in own if key in fields}
    return json_infer(name, model, {"inputs": inputs} | fields, **ours)


def grpc_message(model: str, values: Sequence[int], **parameters: Any) -> dict[str, Any]:
    """A `ModelInferRequest` in protobuf's JSON."""
    given = tensor(values)
    given["contents"] = {"int_contents": given.pop("data")}
    fields = {bool: "bool_param", int: "int64_param", str: "string_param"}
    typed = {name: {fields[type(value)]: value} for name, value in parameters.items()}
    return {"model_name": model, "inputs": [given], "parameters": typed}


def documents() -> Iterator[Case]:
    """Metadata and configurations."""
    for model in ENSEMBLES:
        yield Case(f"metadata {model}", path=f"/v2/models/{model}")
        yield Case(f"config {model}", path=f"/v2/models/{model}/config",
                   ours=NEWER, ours_status=200)
        yield Case(f"ready {model}", path=f"/v2/models/{model}/ready")
        yield Case(f"grpc metadata {model}", rpc="ModelMetadata", message={"name": model})


def successes() -> Iterator[Case]:
    """Successful requests, over each protocol."""
    for model in ("eightfold", "fan", "in_and_out_of_batches"):
        yield over_http(f"infer {model}", model, [tensor([1, 2, 3])])
        yield over_http(f"infer {model} with id", model, [tensor([1, 2, 3])], id="an id")
        message = grpc_message(model, [4, 5])
        yield Case(f"grpc infer {model}", rpc="ModelInfer", message=message)
        messages = ({"id": "a"} | message, {"id": "b"} | grpc_message(model, [6]))
        yield Case(f"stream {model}", rpc="ModelStreamInfer", messages=messages)
    batch = tensor(range(8), shape=[4, 2])
    yield over_http("a batch", "fan", [batch])
    yield over_http("several outputs", "nested", [tensor([3])], any_order=True)
    yield over_http("one output of two", "two_ends", [tensor([3])], outputs=[{"name": "DOUBLED"}],
                    ours=PRUNED, ours_status=200)
    yield over_http("the other output", "two_ends", [tensor([3])], outputs=[{"name": "SQUARED"}],
                    ours=PRUNED, ours_status=200)
    more = [tensor([3]), tensor([7], "MORE")]
    yield over_http("optional left out", "with_optional", [tensor([3])], any_order=True)
    yield over_http("optional given", "with_optional", more, any_order=True)
    yield over_http("parameters", "fan", [tensor([1])],
                    parameters={"priority": 5, "timeout": 1_000_000, "own": "text"})


def sequences() -> Iterator[Case]:
    """One sequence through two stateful models; its parameters are returned."""
    steps = [{"sequence_start": True}, {}, {"sequence_end": True}]
    for number, flags in enumerate(steps):
        for identity in (40, 2**64 - 1, "a text"):
            yield over_http(
                f"sequence {identity} {number}", "two_sums", [tensor([number + 1])],
                parameters={"sequence_id": identity, **flags}, any_order=True,
            )
            if identity != 2**64 - 1:
                message = grpc_message("two_sums", [number + 1], sequence_id=identity, **flags)
                yield Case(f"grpc sequence {identity} {number}", rpc="ModelInfer",
                           message=message, any_order=True)


def refusals() -> Iterator[Case]:
    """Requests that the ensemble refuses, and requests that its steps refuse."""
    yield over_http("too large a batch", "fan", [tensor(range(9), shape=[9, 1])])
    yield over_http("no batch", "fan", [tensor([1], shape=[1])])
    yield over_http("unknown input", "fan", [tensor([1], "X")])
    yield over_http("missing input", "nested", [])
    yield over_http("two inputs", "fan", [tensor([1]), tensor([1], "X")])
    yield over_http("unknown output", "fan", [tensor([1])], outputs=[{"name": "doubled"}])
    yield over_http("wrong type", "fan", [tensor([1]) | {"datatype": "FP32"}])
    yield over_http("step refuses", "in_and_out_of_batches", [tensor([1, 2], shape=[2, 1])],
                    ours_headers=EXECUTION)
    yield over_http("no sequence", "two_sums", [tensor([1])], ours_headers=EXECUTION)
    yield over_http("no start", "two_sums", [tensor([1])], parameters={"sequence_id": 5},
                    ours_headers=EXECUTION)
    yield Case("unknown version", "POST", "/v2/models/fan/versions/2/infer", (), b'{"inputs":[]}')
    yield Case("grpc step refuses", rpc="ModelInfer",
               message=grpc_message("two_sums", [1]))


def ensemble_cases() -> list[Case]:
    """All cases of the suite, in order."""
    return [*documents(), *successes(), *sequences(), *refusals()]
