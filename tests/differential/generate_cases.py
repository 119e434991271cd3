"""The generate extension: the conversion of JSON to tensors and back, events, and errors before
and within them."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

from cases import Case

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = pathlib.Path(__file__).resolve().parent / "backends" / "talker.c"

#: Why some requests are refused that Triton 2.51 takes.
LATER = {"ours": "as in later releases", "ours_status": 400}

TALK = """
backend: "talker"
max_batch_size: 0
model_transaction_policy { decoupled: %s }
input [
  { name: "SCRIPT" data_type: TYPE_STRING dims: [ -1 ] }%s
]
output [
  { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "id" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "zero \\"quoted\\"" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "HALF" data_type: TYPE_FP16 dims: [ 1, 1 ] },
  { name: "a_int8" data_type: TYPE_INT8 dims: [ 1, 1 ] },
  { name: "a_uint64" data_type: TYPE_UINT64 dims: [ 1, 1 ] },
  { name: "a_int64" data_type: TYPE_INT64 dims: [ 1, 1 ] },
  { name: "a_fp32" data_type: TYPE_FP32 dims: [ 1, 1 ] },
  { name: "a_fp64" data_type: TYPE_FP64 dims: [ 1, 1 ] },
  { name: "a_bool" data_type: TYPE_BOOL dims: [ 1, 1 ] }
]
instance_group { kind: KIND_CPU count: 1 }
"""
OPTIONAL = """,
  { name: "FLAG" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "id" data_type: TYPE_STRING dims: [ 1 ] optional: true }"""
IDENTITY = """
backend: "identity"
max_batch_size: %d
input { name: "INPUT0" data_type: TYPE_%s dims: %s }
output { name: "OUTPUT0" data_type: TYPE_%s dims: %s }
instance_group { kind: KIND_CPU count: 1 }
"""
#: Identity models: their batch size, type and dimensions.
SHAPES: dict[str, tuple[int, str, str]] = {
    "int32": (8, "INT32", "[ -1 ]"),
    "pairs": (8, "INT32", "[ -1, 2 ]"),
    "fixed": (0, "INT32", "[ 2, 3 ]"),
    "free": (0, "FP32", "[ -1, -1 ]"),
    "single": (0, "FP64", "[ 1 ]"),
    "bytes": (8, "STRING", "[ -1 ]"),
    "three_strings": (0, "STRING", "[ 3 ]"),
    "bool": (0, "BOOL", "[ -1 ]"),
    "uint8": (0, "UINT8", "[ -1 ]"),
    "uint64": (0, "UINT64", "[ -1 ]"),
    "int64": (0, "INT64", "[ -1 ]"),
    "fp16": (0, "FP16", "[ -1 ]"),
}


def write_models(root: pathlib.Path) -> None:
    """The identity models, and the models of the backend that the cases control."""
    for name, (batch, kind, dims) in SHAPES.items():
        write(root, name, IDENTITY % (batch, kind, dims, kind, dims))
    for name, is_decoupled, more in [
        ("talk", "true", ""),
        ("once", "false", ""),
        ("optional", "true", OPTIONAL),
    ]:
        write(root, name, TALK % (is_decoupled, more))
        compile_backend(root / name / "libtriton_talker.so")


def write(root: pathlib.Path, name: str, config: str) -> None:
    """A model that consists of a configuration."""
    (root / name / "1").mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(config)


def compile_backend(library: pathlib.Path) -> None:
    """Compiles the backend into a model's directory, where both servers look for it."""
    includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'examples' / 'backends'}"]
    flags = ["-std=gnu11", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, *includes, str(SOURCE), "-o", str(library)], check=True)


def body_of(request: Any) -> bytes:
    """A request's body; text is sent unchanged."""
    return request if isinstance(request, bytes) else json.dumps(request).encode()


def both(name: str, model: str, request: Any, **extra: Any) -> Iterator[Case]:
    """The same request to both endpoints."""
    for endpoint in ["generate", "generate_stream"]:
        path = f"/v2/models/{model}/{endpoint}"
        headers = extra.get("headers", ())
        yield Case(f"{endpoint}: {name}", "POST", path, headers, body_of(request), as_text=True)


def one(name: str, model: str, request: Any, **extra: Any) -> Iterator[Case]:
    """A request to the endpoint for one response."""
    path = f"/v2/models/{model}/generate"
    yield Case(name, "POST", path, (), body_of(request), as_text=True, **extra)


def response_cases() -> Iterator[Case]:
    """Responses of all kinds and numbers."""
    scripts: dict[str, Any] = {
        "one response": "say hello",
        "one response with the end": "last hello",
        "several elements": "many 3",
        "no element": "none",
        "no response": "quiet",
        "two responses": ["say a", "say b"],
        "two responses with the end": ["say a", "last b"],
        "many responses": [f"say {number}" for number in range(40)],
        "an error": "error too bad",
        "an error, then a response": ["error first", "say b"],
        "a response, then an error": ["say a", "error second"],
        "two errors": ["error first", "error second"],
        "a type without JSON": "half",
        "a response, then a type without JSON": ["say a", "half"],
        "numbers": "numbers",
        "names that hide others": "hidden",
        "text to escape": 'say "\\\t\u00fc\u0001/',
        "parameters": "parameters",
    }
    for name, script in scripts.items():
        yield from both(name, "talk", {"SCRIPT": script})
    yield from both("an id", "talk", {"SCRIPT": "say a", "id": "42"})
    yield from both("an empty id", "talk", {"SCRIPT": "say a", "id": ""})
    yield from both("hidden by an id", "talk", {"SCRIPT": "hidden", "id": "42"})
    yield from both("not decoupled", "once", {"SCRIPT": "last hello"})
    yield from both("not decoupled, an error", "once", {"SCRIPT": "error too bad"})
    yield from both("a version", "talk/versions/1", {"SCRIPT": "say a"})


def parameter_cases() -> Iterator[Case]:
    """The members that become request parameters."""
    requests: dict[str, Any] = {
        "each type": {"text": "x", "int": -3, "yes": True, "no": False, "real": 1.5},
        "large numbers": b'{"a":9223372036854775807,"b":9223372036854775808,"c":-1e400e,"SCRIPT":"parameters"}',
        "numbers at the limits": b'{"a":9223372036854775807,"b":9223372036854775808,"c":1e30,"d":1.0,"SCRIPT":"parameters"}',
        "nested": {"parameters": {"a": 1, "b": "x"}},
        "nested inputs": b'{"parameters":{"SCRIPT":"parameters","x":1},"y":2}',
        "id": {"id": "7"},
        "of the protocol": {"sequence_id": 5, "priority": 3, "timeout": 100, "sequence_start": True},
        "with a name twice": b'{"SCRIPT":"parameters","a":1,"a":2}',
        "nested and not": {"a": 1, "parameters": {"a": 2}},
        "no parameters": {"parameters": {}},
        "parameters twice": b'{"SCRIPT":"parameters","parameters":{"a":1},"parameters":{"b":1}}',
        "null": {"a": None},
        "a list": {"a": [1]},
        "an object": {"a": {"b": 1}},
        "a nested list": {"parameters": {"a": [1]}},
        "a nested object": {"parameters": {"a": {}}},
        "a number of parameters": {"parameters": 1},
        "a list of parameters": {"parameters": []},
        "reserved": {"triton_x": 1},
        "reserved and nested": {"parameters": {"triton_x": "1"}},
        "empty name": {"": 1},
    }
    for name, request in requests.items():
        if not isinstance(request, bytes):
            request = {"SCRIPT": "parameters"} | request
        yield from one(f"parameters: {name}", "talk", request)


def input_cases() -> Iterator[Case]:
    """Shapes and types of inputs."""
    shapes: dict[str, list[Any]] = {
        "int32": [1, [1], [1, 2, 3], [], [[1, 2]], [[1], [2]], [[[]]], "1", [1, "2"], True, None,
                  {}, [None], 1.5, 1e30, 2147483648, -5],
        "pairs": [1, [1, 2], [1, 2, 3], [1, 2, 3, 4], [[1, 2], [3, 4]], [[1], [2]], []],
        "fixed": [1, [1, 2, 3, 4, 5, 6], [1] * 12, [[1, 2, 3], [4, 5, 6]], [[1]] * 6, []],
        "free": [1, [1, 2.5, "x"], [0.1, 2], [1e39], []],
        "single": [0.1, [1e300], [1, 2], 1e-7],
        "bytes": ["", "a", ["a", "b"], [], [[]], [["a", "b"]], [["a"], ["b"]], 1, ["a", 1], None,
                  "\u00fc\u20ac\n", "x" * 300],
        "three_strings": ["a", ["a", "b", "c"], ["a", "b"], [["a", "b", "c"]]],
        "bool": [True, [True, False], 1, "true", [[True]]],
        "uint8": [255, 256, -1, [1, 2]],
        "uint64": [18446744073709551615, -1, 1.0],
        "int64": [-9223372036854775808, 9223372036854775808],
        "fp16": [1.5, [1, 2], []],
    }
    for model, values in shapes.items():
        for value in values:
            text = json.dumps(value)
            extra: dict[str, Any] = LATER if value in ([], [[]]) else {}
            if value == [[[]]]:
                extra = {"ours_text": "as in later releases"}
            yield from one(f"{model}: {text[:40]}", model, {"INPUT0": value}, **extra)
    for name, extra in {
        "an optional input": {"FLAG": True},
        "an input with the name id": {"id": "x"},
        "an input in parameters": {"parameters": {"FLAG": False}},
        "an input there and in parameters": {"FLAG": True, "parameters": {"FLAG": False}},
    }.items():
        yield from one(name, "optional", {"SCRIPT": "parameters"} | extra)


def refusal_cases() -> Iterator[Case]:
    """Requests that no model receives."""
    bodies: dict[str, bytes] = {
        "no body": b"",
        "no object": b"{}",
        "a list": b"[]",
        "text": b'"x"',
        "null": b"null",
        "half an object": b'{"SCRIPT":',
        "not JSON": b"SCRIPT=say+a",
        "something behind": b'{"SCRIPT":"say a"} x',
        "a syntax error behind a wrong type": b'{"SCRIPT":1,}',
        "an id that is a number": b'{"id":1,"SCRIPT":"say a"}',
        "an id that is null": b'{"id":null,"SCRIPT":"say a"}',
        "the second of two ids": b'{"id":"a","id":1,"SCRIPT":"say a"}',
        "a wrong type and a wrong id": b'{"SCRIPT":1,"id":1}',
        "an input twice": b'{"SCRIPT":"say a","SCRIPT":"say b"}',
        "an input twice, with an id": b'{"id":"7","SCRIPT":"say a","SCRIPT":"say b"}',
        "an input twice, the second wrong": b'{"SCRIPT":"say a","SCRIPT":1}',
        "parameters with an input twice": b'{"parameters":{"SCRIPT":"say a"},"parameters":{}}',
        "missing input": b'{"OTHER":1}',
        "missing input with an id": b'{"OTHER":1,"id":"9"}',
    }
    for name, body in bodies.items():
        yield from both(name, "talk", body)
    good = {"SCRIPT": "say a"}
    for coding in ["gzip", "deflate", "br", "identity", "", "Identity"]:
        headers = (("Content-Encoding", coding),)
        yield from both(f"encoding {coding!r}", "talk", good, headers=headers)
    yield from both("accepts gzip", "talk", good, headers=(("Accept-Encoding", "gzip"),))
    yield from both("a content type", "talk", good, headers=(("Content-Type", "text/plain"),))
    length = (("Inference-Header-Content-Length", "3"),)
    yield from both("a header length", "talk", good, headers=length)
    yield from both("unknown model", "nope", good)
    yield from both("unknown version", "talk/versions/9", good)
    yield from both("version too large", "talk/versions/99999999999999999999", good)
    yield from both("no version", "talk/versions/x", good)
    coded = (("Content-Encoding", "gzip"),)
    yield from both("unknown model and encoding", "nope", b"x", headers=coded)
    yield from both("encoding and no JSON", "talk", b"x", headers=coded)
    for endpoint in ["generate", "generate_stream"]:
        for method in ["GET", "PUT", "DELETE"]:
            yield Case(f"{method} {endpoint}", method, f"/v2/models/talk/{endpoint}", as_text=True)
    deep = b'{"INPUT0":' + b"[" * 99 + b"1" + b"]" * 99 + b"}"
    yield from one("deep: 99 lists", "int32", deep)
    deep = b'{"INPUT0":' + b"[" * 100 + b"1" + b"]" * 100 + b"}"
    yield from one("deep: 100 lists", "int32", deep, **LATER)
    yield from one("deep: 100 lists of strings", "bytes", deep.replace(b"1", b'"1"'), **LATER)


def generate_cases() -> list[Case]:
    """All of them."""
    return [*response_cases(), *parameter_cases(), *input_cases(), *refusal_cases()]
