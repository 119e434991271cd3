"""Outputs as classes: requests to which both servers must respond in the same way."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from cases import CRASH, DTYPES, Case, binary_infer, infer_path, json_infer, sample

#: Six labels, one of them empty, and one with the ends of lines of other systems.
LABELS = b"cat\n\ndog\r\nb:ird\n  spaces  \ng\xc3\xb6ose\n"

#: The reason where an output is named twice.
NAMED_TWICE = "an output that is named twice is refused, as in later releases"


def identity(
    kind: str, max_batch_size: int, dims: str = "-1", labels: Sequence[str] = ("",)
) -> str:
    """An identity model with a label file, or none, for each output."""
    inputs, outputs = [], []
    for number, label in enumerate(labels):
        tensor = f"data_type: TYPE_{kind} dims: [ {dims} ]"
        named = f' label_filename: "{label}"' if label else ""
        inputs.append(f'{{ name: "INPUT{number}" {tensor} }}')
        outputs.append(f'{{ name: "OUTPUT{number}" {tensor}{named} }}')
    return f"""\
backend: "identity"
max_batch_size: {max_batch_size}
input [ {", ".join(inputs)} ]
output [ {", ".join(outputs)} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""


def ensemble(step: str, step_input: str, step_output: str, label: str = "") -> str:
    """An ensemble of one step, whose output may have its own labels."""
    named = f' label_filename: "{label}"' if label else ""
    return f"""\
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ]{named} }} ]
ensemble_scheduling {{
  step [ {{
    model_name: "{step}" model_version: -1
    input_map {{ key: "{step_input}" value: "IN" }}
    output_map {{ key: "{step_output}" value: "OUT" }}
  }} ]
}}
"""


#: The labelled model renames its output; the next one has no labels.
BEHIND = """\
platform: "ensemble"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [
  { name: "BETWEEN" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "labelled" model_version: -1
      input_map { key: "INPUT0" value: "IN" }
      output_map { key: "OUTPUT0" value: "BETWEEN" }
    },
    {
      model_name: "batched" model_version: -1
      input_map { key: "INPUT0" value: "BETWEEN" }
      output_map { key: "OUTPUT0" value: "OUT" }
    }
  ]
}
"""


def write_repository(root: pathlib.Path) -> None:
    """Identity models for each type, with and without batches and labels, and ensembles."""
    models = {
        "batched": (identity("FP32", 8), {}),
        "matrices": (identity("INT32", 8, "-1, -1"), {}),
        "labelled": (identity("FP32", 8, labels=("labels.txt",)), {"labels.txt": LABELS}),
        "two": (
            identity("FP32", 0, labels=("sub/first.txt", "")),
            {"sub/first.txt": b"zero\none\ntwo"},
        ),
        "inner": (ensemble("labelled", "INPUT0", "OUTPUT0"), {}),
        "nested": (ensemble("inner", "IN", "OUT"), {}),
        "own": (
            ensemble("labelled", "INPUT0", "OUTPUT0", "own.txt"), {"own.txt": b"A\nB\nC\n"}
        ),
        "own_without_first": (
            ensemble("labelled", "INPUT0", "OUTPUT0", "own.txt"), {"own.txt": b"\nB\n"}
        ),
        "behind": (BEHIND, {}),
    }
    for dtype in [*DTYPES, "bf16"]:
        models[f"plain_{dtype}"] = (identity(dtype.upper(), 0), {})
    models["plain_bytes"] = (identity("STRING", 0), {})
    for name, (config, files) in models.items():
        (root / name / "1").mkdir(parents=True, exist_ok=True)
        (root / name / "config.pbtxt").write_text(config)
        for path, content in files.items():
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).write_bytes(content)


def tensor(values: Sequence[Any], shape: Sequence[int], dtype: str = "FP32",
           name: str = "INPUT0") -> dict[str, Any]:
    """An input in JSON."""
    return {"name": name, "datatype": dtype, "shape": list(shape), "data": list(values)}


def output(count: Any, name: str = "OUTPUT0", **parameters: Any) -> dict[str, Any]:
    """A requested output."""
    return {"name": name, "parameters": {"classification": count} | parameters}


def over_http(name: str, model: str, inputs: Any, outputs: Any, **extra: Any) -> Case:
    """An inference in JSON."""
    request = {"inputs": inputs, "outputs": outputs}
    return json_infer(f"http {name}", model, request, **extra)


def from_binary(name: str, dtype: str, values: np.ndarray, count: int, **extra: Any) -> Case:
    """An inference of a model without batches whose input and classes are binary."""
    data = values.tobytes()
    given = {
        "name": "INPUT0", "datatype": dtype.upper(), "shape": [values.size],
        "parameters": {"binary_data_size": len(data)},
    }
    header = {"inputs": [given], "outputs": [output(count, binary_data=True)]}
    return binary_infer(f"binary {name}", f"plain_{dtype}", header, data, **extra)


def grpc_message(model: str, inputs: Any, outputs: Any) -> dict[str, Any]:
    """A `ModelInferRequest` in protobuf's JSON form; outputs are names with the choices of
    their parameters."""
    given = []
    for one in inputs:
        fields = dict(one)
        fields["contents"] = {"fp32_contents": fields.pop("data")}
        given.append(fields)
    wanted = [
        {"name": name, "parameters": {"classification": choice} if choice else {}}
        for name, choice in outputs
    ]
    return {"model_name": model, "inputs": given, "outputs": wanted}


FOUR = tensor([1, 5, 10, 4], [4])
BATCH = tensor([3, 1, 2, 0.5, 0.25, 7], [2, 3])
SIX = tensor([6, 5, 4, 3, 2, 1], [1, 6])


def counts() -> Iterator[Case]:
    """Valid and invalid class counts."""
    model = "plain_fp32"
    for count in [1, 2, 4, 5, 2**32 - 1]:
        yield over_http(f"count {count}", model, [FOUR], [output(count)])
        yield over_http(f"binary count {count}", model, [FOUR], [output(count, binary_data=True)])
    yield over_http("count 0", model, [FOUR], [output(0)])
    for count in [2**32, 2**32 + 1, 2**64 - 1]:
        yield over_http(f"count {count}", model, [FOUR], [output(count)])
    for count in [-1, 1.5, 1.0, "1", True, None, [1], 2**64]:
        yield over_http(f"count {count!r}", model, [FOUR], [output(count)])
    twice = b'{"name":"OUTPUT0","parameters":{"classification":1,"classification":2}}'
    body = b'{"inputs":[' + json.dumps(FOUR).encode() + b'],"outputs":[' + twice + b"]}"
    yield Case("http count twice", "POST", infer_path(model), (), body)
    yield over_http("output twice", model, [FOUR], [output(1), output(2)],
                    ours=NAMED_TWICE, ours_status=400)
    yield over_http("in shared memory", model, [FOUR], [output(1, shared_memory_region="r")])
    yield over_http("of no output", model, [FOUR], [output(1, "NONE")])
    request = {"inputs": [FOUR], "parameters": {"classification": 1}}
    yield json_infer("http of the request", model, request)


def shapes() -> Iterator[Case]:
    """Batches, dimensions and empty tensors."""
    yield over_http("batch", "batched", [BATCH], [output(2)])
    yield over_http("batch binary", "batched", [BATCH], [output(2, binary_data=True)])
    yield over_http("batch of more", "batched", [BATCH], [output(9)])
    yield over_http("batch of nothing", "batched", [tensor([], [2, 0])], [output(2)],
                    ours=CRASH, ours_status=200)
    yield over_http("nothing", "plain_fp32", [tensor([], [0])], [output(2)],
                    ours=CRASH, ours_status=200)
    matrix = tensor([5, 1, 9, 7, 0, 3, 8, 2], [2, 2, 2], "INT32")
    yield over_http("matrices", "matrices", [matrix], [output(3)])
    inputs = [tensor([1, 3, 2], [3]), tensor([6, 4, 5], [3], name="INPUT1")]
    yield over_http("both", "two", inputs, [output(2), output(1, "OUTPUT1")])
    yield over_http("one of two", "two", inputs, [output(2), {"name": "OUTPUT1"}])
    yield over_http("one of two, mixed forms", "two", inputs,
                    [output(2, binary_data=True), {"name": "OUTPUT1"}])
    yield over_http("the other of two", "two", inputs, [{"name": "OUTPUT0"}, output(9, "OUTPUT1")])


def values() -> Iterator[Case]:
    """The order and the text form of values, for each type."""
    for dtype in DTYPES:
        if dtype == "fp16":
            yield from_binary("fp16", dtype, sample(dtype), 3)
            continue
        yield from_binary(dtype, dtype, sample(dtype), 3)
    yield from_binary("bf16", "bf16", np.zeros(4, np.uint16), 1)
    yield over_http("bytes", "plain_bytes", [tensor(["a", "b"], [2], "BYTES")], [output(1)],
                    ours=CRASH, ours_status=400)
    for dtype in ["fp32", "fp64"]:
        kind = DTYPES[dtype]
        infinite = np.array([0.0, np.inf, -np.inf, 1.0], kind)
        yield from_binary(f"{dtype} infinite", dtype, infinite, 4)
        zeros = np.array([-0.0, 0.0, -0.0], kind)
        yield from_binary(f"{dtype} zeros", dtype, zeros, 3)
        limits = np.finfo(kind)
        extremes = np.array([limits.max, limits.min, limits.tiny, limits.eps], kind)
        yield from_binary(f"{dtype} limits", dtype, extremes, 4)
        halves = np.array([1 / 128, 3 / 128, -1 / 128, 0.1, 1e-7, 123456.789, 5e-7], kind)
        yield from_binary(f"{dtype} digits", dtype, halves, 7)
        yield from_binary(f"{dtype} not a number", dtype, np.array([np.nan], kind), 1)
        yield from_binary(f"{dtype} negative not a number", dtype, -np.array([np.nan], kind), 1)
        several = np.array([np.nan, 1, 2, np.nan, 3], kind)
        yield from_binary(f"{dtype} not numbers", dtype, several, 5)
    few = np.array([3, 1, 3, 2, 1, 3, 2, 2, 1, 3, 3, 1, 2, 1, 3, 2], np.uint8)
    yield from_binary("ties of 16", "uint8", few, 16)
    yield from_binary("ties of 40", "uint8", np.tile(few, 3)[:40], 40)
    random = np.random.default_rng(5).permutation(300).astype(np.int16) - 150
    yield from_binary("no ties of 300", "int16", random, 300)
    yield from_binary("some of 300", "int16", random, 7)


def labels() -> Iterator[Case]:
    """Labels, including those of ensembles."""
    yield over_http("labels", "labelled", [SIX], [output(6)])
    yield over_http("labels binary", "labelled", [SIX], [output(6, binary_data=True)])
    more = tensor(range(8), [1, 8])
    yield over_http("labels of some", "labelled", [more], [output(8)])
    batch = tensor([1, 2, 3, 6, 5, 4], [2, 3])
    yield over_http("labels of a batch", "labelled", [batch], [output(2)])
    yield over_http("labels without the last end", "two",
                    [tensor([1, 2, 3, 4], [4]), tensor([1], [1], name="INPUT1")], [output(4)])
    inner = SIX | {"name": "IN"}
    for model in ["inner", "nested", "own", "own_without_first"]:
        yield over_http(f"ensemble {model}", model, [inner], [output(6, "OUT")])
        message = grpc_message(model, [inner], [("OUT", {"int64_param": 6})])
        yield Case(f"grpc ensemble {model}", rpc="ModelInfer", message=message)
    wanted = [output(6, "BETWEEN"), output(6, "OUT")]
    yield over_http("ensemble behind", "behind", [inner], wanted, any_order=True)


def over_grpc() -> Iterator[Case]:
    """The same over the other protocol."""
    def case(name: str, model: str, inputs: Any, outputs: Any, **extra: Any) -> Case:
        message = grpc_message(model, inputs, outputs)
        return Case(f"grpc {name}", rpc="ModelInfer", message=message, **extra)

    for count in [1, 4, 5, 2**31, 0, -1, -(2**63)]:
        yield case(f"count {count}", "plain_fp32", [FOUR], [("OUTPUT0", {"int64_param": count})])
    for count in [2**32, 2**63 - 1]:
        yield case(f"count {count}", "plain_fp32", [FOUR], [("OUTPUT0", {"int64_param": count})])
    for choice in [{"string_param": "1"}, {"bool_param": True}, {"double_param": 1.0}]:
        yield case(f"count {choice}", "plain_fp32", [FOUR], [("OUTPUT0", choice)])
    two = {"int64_param": 2}
    yield case("batch", "batched", [BATCH], [("OUTPUT0", two)])
    yield case("labels", "labelled", [SIX], [("OUTPUT0", {"int64_param": 6})])
    inputs = [tensor([1, 3, 2], [3]), tensor([6, 4, 5], [3], name="INPUT1")]
    yield case("one of two", "two", inputs, [("OUTPUT0", two), ("OUTPUT1", None)])
    yield case("both", "two", inputs, [("OUTPUT0", two), ("OUTPUT1", {"int64_param": 1})])
    yield case("output twice", "plain_fp32", [FOUR],
               [("OUTPUT0", {"int64_param": 1}), ("OUTPUT0", two)],
               ours=NAMED_TWICE, ours_status="INVALID_ARGUMENT")
    message = grpc_message("plain_fp32", [FOUR], [("OUTPUT0", two)])
    shared = {"shared_memory_region": {"string_param": "r"},
              "shared_memory_byte_size": {"int64_param": 16}}
    message["outputs"][0]["parameters"] |= shared
    yield Case("grpc in shared memory", rpc="ModelInfer", message=message)
    fp16 = {
        "model_name": "plain_fp16",
        "inputs": [{"name": "INPUT0", "datatype": "FP16", "shape": [2]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": two}}],
        "raw_input_contents": [b"\x00\x3c\x00\x40"],
    }
    yield Case("grpc fp16", rpc="ModelInfer", message=fp16)
    first = grpc_message("labelled", [SIX], [("OUTPUT0", two)])
    plain = grpc_message("labelled", [SIX], [("OUTPUT0", None)])
    messages = ({"id": "a"} | first, {"id": "b"} | plain, {"id": "c"} | fp16, {"id": "d"} | first)
    yield Case("stream", rpc="ModelStreamInfer", messages=messages)


def classification_cases() -> list[Case]:
    """All cases of the suite, in order."""
    return [*counts(), *shapes(), *values(), *labels(), *over_grpc()]
