"""Requests that are refused before they reach a model, and queries about models that don't exist.
Several errors in one request show which of them a server reports.

Nothing is executed, so any backend library called `identity` will do for Triton.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from cases import Case, binary_infer, infer_path

NAMES = ["INPUT0", "INPUT1"]


def write_models(root: pathlib.Path) -> None:
    """Models with two inputs, with and without batches."""
    for model, batch in [("batches", "max_batch_size: 8"), ("plain", "")]:
        (root / model / "1").mkdir(parents=True)
        text = f'backend: "identity"\n{batch}\ninstance_group {{ kind: KIND_CPU }}\n'
        for index in range(2):
            for kind in ["input", "output"]:
                name = f"{kind.upper()}{index}"
                text += f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }}\n'
        (root / model / "config.pbtxt").write_text(text)


#: Mistakes in one input: its shape, its type, its batch size, its rank.
MISTAKES: dict[str, tuple[str, list[int]]] = {
    "good": ("FP32", [1, 2]),
    "shape": ("FP32", [1, 3]),
    "type": ("INT32", [1, 2]),
    "batch": ("FP32", [2, 2]),
    "rank": ("FP32", []),
}


def tensor(name: str, mistake: str, with_batches: bool) -> dict[str, Any]:
    """An input with an error."""
    datatype, shape = MISTAKES[mistake]
    count = 1
    for size in shape:
        count *= size
    if not with_batches:
        shape = shape[1:]
        count = 1 if not shape else shape[0]
    return {"name": name, "datatype": datatype, "shape": shape, "data": [1] * count}


def infer(name: str, model: str, inputs: list[dict[str, Any]], *outputs: str) -> Case:
    """An inference request as JSON."""
    request: dict[str, Any] = {"inputs": inputs}
    if outputs:
        request["outputs"] = [{"name": output} for output in outputs]
    return Case(f"{model}: {name}", "POST", infer_path(model), (), json.dumps(request).encode())


def wrong_inputs() -> Iterator[Case]:
    """Two inputs, at least one of which is wrong, in both orders."""
    for model, (first, second), names in itertools.product(
        ["batches", "plain"],
        itertools.product(MISTAKES, repeat=2),
        [NAMES, NAMES[::-1]],
    ):
        if (first, second) == ("good", "good") or (model == "plain" and "batch" in (first, second)):
            continue
        if first == second == "batch":
            continue
        batches = model == "batches"
        inputs = [tensor(names[0], first, batches), tensor(names[1], second, batches)]
        yield infer(f"{names[0]} {first}, {names[1]} {second}", model, inputs)


def names_and_counts() -> Iterator[Case]:
    """Unknown names, and too many or too few inputs."""
    for model in ["batches", "plain"]:
        good = [tensor(name, "good", model == "batches") for name in NAMES]
        other = [tensor(name, "good", model == "batches") for name in ["X", "Y"]]
        wrong = [tensor(name, "shape", model == "batches") for name in NAMES]
        yield infer("unknown X, Y", model, other)
        yield infer("unknown Y, X", model, other[::-1])
        yield infer("unknown X behind INPUT0", model, [good[0], other[0]])
        yield infer("unknown X before INPUT0", model, [other[0], good[0]])
        yield infer("unknown X before a wrong INPUT0", model, [other[0], wrong[0]])
        yield infer("one unknown", model, other[:1])
        yield infer("three inputs", model, [*good, other[0]])
        yield infer("three inputs, one unknown first", model, [other[0], *good])
        yield infer("one input", model, good[1:])
        yield infer("no inputs", model, [])
        yield infer("twice", model, [good[0], good[0]])
        yield infer("unknown outputs", model, good, "P", "Q")
        yield infer("unknown outputs and inputs", model, other, "OUTPUT0", "Q", "P")
        yield infer("unknown output of a wrong request", model, wrong, "P")


#: Why a row of data with batch size 0 is refused, which Triton gives to the model as it is.
NO_BATCH = "a model with batches does not get inputs without that dimension"


def empty_batches() -> Iterator[Case]:
    """Batch size 0, for one input or both, with no data, one row each, or three rows each."""
    for sizes, rows, is_reversed in itertools.product(
        [(0, 0), (0, 1), (1, 0), (0, 3), (3, 0), (0, 9)], [0, 1, 3], [False, True]
    ):
        names = NAMES[::-1] if is_reversed else NAMES
        name = f"batch sizes {sizes[0]} and {sizes[1]}, {rows} rows, {names[0]} first"
        tensors = [
            {"name": name, "datatype": "FP32", "shape": [size, 2]}
            for name, size in zip(names, sizes, strict=True)
        ]
        data = bytes(8 * rows)
        # Triton executes these.
        own = {"ours": NO_BATCH, "ours_status": 400} if sizes == (0, 0) and rows == 1 else {}
        binary = [tensor | {"parameters": {"binary_data_size": len(data)}} for tensor in tensors]
        yield binary_infer(name, "batches", {"inputs": binary}, data * 2, **own)
        if own:
            continue
        message = {"model_name": "batches", "inputs": tensors, "raw_input_contents": [data] * 2}
        yield Case(f"grpc: {name}", rpc="ModelInfer", message=message)
        if rows == 0:
            # Only an input without elements has as much data as its shape specifies.
            if sizes == (0, 0):
                empty = [tensor | {"data": []} for tensor in tensors]
                yield infer(f"JSON: {name}", "batches", empty)
    for shape in ([0], [0, 0], [0, 2, 2]):
        tensors = [{"name": name, "datatype": "FP32", "shape": shape, "data": []} for name in NAMES]
        yield infer(f"shape {shape}", "batches", tensors)


def readiness() -> Iterator[Case]:
    """Readiness queries for models and versions that don't exist."""
    for path in ["nope", "nope/versions/1", "plain", "plain/versions/1", "plain/versions/9"]:
        yield Case(f"ready {path}", path=f"/v2/models/{path}/ready")
    for name, version in [("nope", ""), ("nope", "1"), ("plain", ""), ("plain", "1"), ("plain", "9")]:
        message = {"name": name, "version": version}
        yield Case(f"grpc ready {name} {version}", rpc="ModelReady", message=message)


#: The reason where half of a pair stands alone: its bytes are no UTF-8.
NOT_UTF8 = "JSON that is not UTF-8 is refused"
LONE_SURROGATE = '{"\\udc00":1}'

#: Texts that are no JSON, or not the JSON of a request.
MALFORMED = [
    "", "  ", "A", "{", "{]", "[", "]", "{}", "[1]", '{"a"}', '{"a":}', '{"a":1 "b":2}', '{"a":1,}',
    '{"a":1;', '{,"a":1}', '{"a":[1 2]}', '{"a":[1}', '{"a":[1,]}', '{"a":[,1]}', '{"a":nul}',
    '{"a":tru}', '{"a":truee}', '{"a":True}', '{"a":01}', '{"a":-}', '{"a":+1}', '{"a":.5}',
    '{"a":1.}', '{"a":1.e1}', '{"a":1e}', '{"a":1e+}', '{"a":0x1}', '{"a":1e400}', '{"a":-1e400}',
    '{"a":1e309}', '{"a":1' + "0" * 400 + "}", '{"a":Nan}', '{"a":Infinit}', '{"a":inf}', '{"a',
    '{"a\x01":1}', '{"\\x":1}', '{"\\', '{"\\u12g4":1}', '{"\\u12', '{"\\ud800":1}',
    '{"\\ud800\\u0041":1}', LONE_SURROGATE, '{"inputs":[]} x', '{"inputs":[]}{}', "{'a':1}",
    "// a\n{}", '{"a":1/*b*/}', "null", "true", '"a"', "1", "[" * 40, '{"inputs":{}}',
    '{"inputs":[1]}', '{"inputs":["x"]}', '{"inputs":[{}]}', '{"inputs":null}', '{"id":1,"inputs":[]}',
]


def malformed() -> Iterator[Case]:
    """The error names what is wrong, and where."""
    for number, text in enumerate(MALFORMED):
        why = NOT_UTF8 if text == LONE_SURROGATE else ""
        path, body = infer_path("plain"), text.encode()
        yield Case(f"malformed {number}", "POST", path, (), body, ours_text=why)
    # Requests other than inference requests.
    for text in ('{"a":[1 2]}', '{"a":1 "b":2}', "{"):
        for path in (
            "/v2/repository/index",
            "/v2/logging",
            "/v2/trace/setting",
        ):
            yield Case(f"malformed {text} for {path}", "POST", path, (), text.encode())


def refusal_cases() -> list[Case]:
    """Every case, in order."""
    return [*readiness(), *names_and_counts(), *wrong_inputs(), *empty_batches(), *malformed()]
