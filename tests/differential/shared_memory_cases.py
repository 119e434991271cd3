"""Regions of system shared memory: registering, listing, use by tensors, and errors in all of
these.

The objects' keys contain a word that stands for the run, so that parallel runs don't see each
other's objects: `RUN`, see `exchange.py`. Each region has a separate object, because the recorded
release doesn't open an object again.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

from cases import EXECUTION, STALE, Case, infer_path

FLAGS = ("--allow-client-shm=true",)

#: Stands for the run in keys.
RUN = "GALATEA_RUN"
KEY, OTHER_KEY, SECOND_KEY, BEHIND_KEY, MORE_KEY, THIRD_KEY, FREE_KEY = (
    f"/galatea_golden_{RUN}_{letter}" for letter in "abcdefg"
)
OBJECTS = pathlib.Path("/dev/shm")
PAGE = 4096
FLOATS = struct.pack("<4f", 1.5, -2.0, 3.25, 4.0)
STRINGS = b"\x03\0\0\0abc\0\0\0\0\x01\0\0\0z"
MODELS = {"fp32": "FP32", "int8": "INT8", "bool": "BOOL", "string": "STRING"}
#: Where the strings are in the first object.
STRINGS_AT = 1024
#: Where bytes are that are neither 0 nor 1.
BOOLS_AT = 2048
PREFIX = "triton_python_backend_shm_region_"


@contextlib.contextmanager
def objects(run: str) -> Iterator[None]:
    """The clients' objects, while a server receives requests."""
    first = bytearray(2 * PAGE)
    first[: len(FLOATS)] = FLOATS
    first[STRINGS_AT : STRINGS_AT + len(STRINGS)] = STRINGS
    first[BOOLS_AT : BOOLS_AT + 4] = b"\0\1\1\0"
    contents = {
        KEY: first, OTHER_KEY: bytes(PAGE), SECOND_KEY: first, BEHIND_KEY: first,
        MORE_KEY: first, THIRD_KEY: first, FREE_KEY: first,
    }
    paths = [OBJECTS / key.replace(RUN, run).lstrip("/") for key in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_bytes(content)
    try:
        yield
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def write_models(root: pathlib.Path) -> None:
    """Identity models, with and without batches."""
    for name, kind in MODELS.items():
        (root / name / "1").mkdir(parents=True)
        tensor = f"data_type: TYPE_{kind} dims: [ -1 ]"
        (root / name / "config.pbtxt").write_text(
            'backend: "identity"\nmax_batch_size: 8\ninstance_group { kind: KIND_CPU }\n'
            f'input {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} }}\n'
        )
    (root / "two" / "1").mkdir(parents=True)
    text = 'backend: "identity"\ninstance_group { kind: KIND_CPU }\n'
    for index in range(2):
        for kind in ["input", "output"]:
            name = f"{kind.upper()}{index}"
            text += f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }}\n'
    (root / "two" / "config.pbtxt").write_text(text)


def call(name: str, path: str, body: Any = b"", method: str = "POST", **extra: Any) -> Case:
    """A request about regions over HTTP."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Case(f"http {name}", method, f"/v2/{path}", (), content, **extra)


def register(name: str, region: str, body: Any, **extra: Any) -> Case:
    """Registers a region over HTTP."""
    path = f"systemsharedmemory/region/{region}/register"
    return call(f"register {name}", path, body, **extra)


def status(name: str, kind: str = "system", region: str = "") -> Case:
    """Lists regions over HTTP."""
    part = f"region/{region}/" if region else ""
    return call(f"status {name}", f"{kind}sharedmemory/{part}status", method="GET")


def unregister(name: str, kind: str = "system", region: str = "") -> Case:
    """Unregisters regions over HTTP."""
    part = f"region/{region}/" if region else ""
    return call(f"unregister {name}", f"{kind}sharedmemory/{part}unregister")


def rpc(name: str, method: str, message: dict[str, Any], **extra: Any) -> Case:
    """The same over gRPC."""
    return Case(f"grpc {name}", rpc=method, message=message, **extra)


def place(region: Any, byte_size: Any = None, offset: Any = None, **more: Any) -> dict[str, Any]:
    """The parameters of a tensor in a region."""
    parameters = {
        "shared_memory_region": region,
        "shared_memory_byte_size": byte_size,
        "shared_memory_offset": offset,
    }
    return {name: value for name, value in parameters.items() if value is not None} | more


def tensor(parameters: dict[str, Any], shape: list[int], kind: str = "FP32") -> dict[str, Any]:
    """An input with parameters."""
    return {"name": "INPUT0", "datatype": kind, "shape": shape, "parameters": parameters}


VALUES = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [5, 6, 7, 8]}


def infer(
    name: str,
    source: dict[str, Any],
    target: dict[str, Any] | None = None,
    model: str = "fp32",
    **extra: Any,
) -> Case:
    """An inference over HTTP."""
    request: dict[str, Any] = {"inputs": [source]}
    if target is not None:
        request["outputs"] = [{"name": "OUTPUT0", "parameters": target}]
    body = json.dumps(request).encode()
    return Case(f"http infer {name}", "POST", infer_path(model), (), body, **extra)


def typed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters in gRPC's form."""

    def choice(value: Any) -> dict[str, Any]:
        if isinstance(value, bool):
            return {"bool_param": value}
        if isinstance(value, int):
            return {"int64_param": value}
        return {"string_param": value}

    return {name: choice(value) for name, value in parameters.items()}


def message(
    source: dict[str, Any], target: dict[str, Any] | None = None, model: str = "fp32"
) -> dict[str, Any]:
    """The same inference over gRPC."""
    given = {name: value for name, value in source.items() if name != "data"}
    given["parameters"] = typed(source.get("parameters", {}))
    if "data" in source:
        given["contents"] = {"fp32_contents": source["data"]}
    request: dict[str, Any] = {"model_name": model, "inputs": [given]}
    if target is not None:
        request["outputs"] = [{"name": "OUTPUT0", "parameters": typed(target)}]
    return request


def registrations() -> Iterator[Case]:
    """Registering over HTTP, and the resulting list."""
    yield status("of nothing")
    yield status("of an unknown region", region="x")
    yield status("of nothing", "cuda")
    yield status("of an unknown region", "cuda", "x")
    whole = {"key": KEY, "offset": 0, "byte_size": PAGE}
    yield register("a region", "first", whole)
    yield register("a region again", "first", whole)
    yield register("another under a taken name", "first", whole | {"key": OTHER_KEY})
    yield register("without an offset", "second", {"key": SECOND_KEY, "byte_size": 16})
    yield register("with an offset", "behind", whole | {"key": BEHIND_KEY, "offset": PAGE})
    yield register("without the first slash", "other", {"key": OTHER_KEY[1:], "byte_size": PAGE})
    more = {"key": MORE_KEY, "x": [1, {}], "name": "y"}
    yield register("more members", "more", whole | more)
    yield status("of one", region="behind")
    yield status("of all")
    yield status("of the other kind", "cuda", "first")
    yield status("of all of the other kind", "cuda")
    whole = whole | {"key": FREE_KEY}
    yield register("without a key", "x", {"byte_size": 8})
    yield register("without a size", "x", {"key": FREE_KEY})
    yield register("without anything", "x", {})
    for name, changes in {
        "a key that is a number": {"key": 1},
        "a key that is null": {"key": None},
        "a size that is a text": {"byte_size": "8"},
        "a negative size": {"byte_size": -8},
        "a fractional size": {"byte_size": 8.5},
        "a negative offset": {"offset": -1},
        "an offset that is a text": {"offset": "0"},
        "an offset and a size of a wrong type": {"offset": [], "byte_size": []},
        "a size of 0": {"byte_size": 0},
        "a size beyond the object": {"byte_size": 2 * PAGE + 1},
        "an offset beyond the object": {"offset": 3 * PAGE, "byte_size": 1},
        "an offset at the end": {"offset": 2 * PAGE, "byte_size": 1},
        "an offset within a page": {"offset": 8, "byte_size": 8},
        "a size of 64 bits": {"byte_size": 2**64 - 1},
        "an unknown key": {"key": "/galatea_golden_absent"},
        "a key with a slash inside": {"key": "/a/b"},
        "a key that leads out": {"key": "/../etc/passwd"},
        "a long key": {"key": "/" + "k" * 300},
    }.items():
        yield register(f"with {name}", "x", whole | changes)
    yield register("malformed JSON", "x", b"{")
    yield call("register without a region", "systemsharedmemory/register", whole)
    yield call("register for CUDA without a region", "cudasharedmemory/register", {})
    yield call("status by POST", "systemsharedmemory/status")
    yield call("register by GET", "systemsharedmemory/region/x/register", method="GET")
    yield call("unregister by GET", "systemsharedmemory/unregister", method="GET")
    yield call("region of no kind", "sharedmemory/region/x/register", whole)
    yield call("another action", "systemsharedmemory/region/x/list", whole)
    later = "keys are checked since a later release"
    for name, key in {
        "an empty key": "",
        "a key of slashes": "///",
        "a key of worker processes": f"/{PREFIX}1",
        "a key of worker processes without a slash": f"{PREFIX}1",
        "a key of worker processes behind slashes": f"///{PREFIX}x",
    }.items():
        yield register(
            f"with {name}", "x", whole | {"key": key}, ours=later, ours_status=400
        )


def http_tensors() -> Iterator[Case]:
    """Tensors in regions over HTTP."""
    four = [1, 4]
    given = tensor(place("first", 16), four)
    yield infer("an input in a region", given)
    yield infer("an input in a region, output binary", given, {"binary_data": True})
    yield infer("an output in a region", VALUES, place("other", 16, 16))
    yield infer("what the output left", tensor(place("other", 16, 16), four))
    yield infer("both in regions", given, place("other", 16, 64))
    yield infer("what both left", tensor(place("other", 16, 64), four))
    yield infer("both in the same place", given, place("first", 16))
    yield infer("a large place for an output", VALUES, place("other", PAGE))
    yield infer("an output that is not binary", VALUES, place("other", 16, binary_data=False))
    yield infer("an output at an offset", VALUES, place("behind", 16, 32))
    yield infer("an input behind", tensor(place("behind", 16, 32), four))
    strings = tensor(place("first", len(STRINGS), STRINGS_AT), [1, 3], "BYTES")
    yield infer("strings", strings, model="string")
    yield infer("strings in regions", strings, place("other", 64, 128), "string")
    left = tensor(place("other", len(STRINGS), 128), [1, 3], "BYTES")
    yield infer("what the strings left", left, model="string")
    yield infer("booleans", tensor(place("first", 4, BOOLS_AT), [1, 4], "BOOL"), model="bool")
    yield infer("bytes", tensor(place("first", 4, BOOLS_AT), [1, 4], "INT8"), model="int8")
    yield infer("fewer strings", tensor(place("first", 4, STRINGS_AT), [1, 3], "BYTES"),
                model="string", ours_text="the string that is cut short is named")
    yield infer("a batch", tensor(place("first", 16), [4, 1]))
    underflow = "as in later releases a size of 0 is not below 0"
    empty = tensor(place("first", 0), [1, 0])
    yield infer("no elements", empty, ours=underflow, ours_status=200)
    nothing = {**VALUES, "shape": [1, 0], "data": []}
    yield infer("no elements in an output", nothing, place("other", 0), ours=underflow,
                ours_status=200)
    yield infer("an input with no size", tensor(place("first"), four), ours=underflow,
                ours_status=400)
    yield infer("an output with no size", VALUES, place("first"), ours=underflow,
                ours_status=500)
    for name, parameters in {
        "an unknown region": place("x", 16),
        "too short a place": place("first", 12),
        "too long a place": place("first", 20),
        "an offset beyond": place("first", 16, PAGE),
        "an offset far beyond": place("first", 16, 2**63),
        "an end beyond": place("first", 16, PAGE - 8),
        "a size of 64 bits": place("first", 2**64 - 1),
        "a region that is a number": place(1, 16),
        "an offset that is a text": place("first", 16, "0"),
        "a negative offset": place("first", 16, -1),
        "a size that is a text": place("first", "16"),
        "a negative size": place("first", -16),
        "a size of another type and an unknown region": place("x", "16"),
        "a binary size too": place("first", 16, binary_data_size=16),
    }.items():
        yield infer(f"an input with {name}", tensor(parameters, four))
        headers = EXECUTION if name == "too short a place" else ""
        if "binary" not in name:
            yield infer(f"an output with {name}", VALUES, parameters, ours_headers=headers)
    overflow = "the sum is checked since a later release"
    size = place("first", 2**64 - 1, 8)
    yield infer("an input whose end overflows", tensor(size, four), ours=overflow,
                ours_status=400)
    yield infer("an output with classes", VALUES, place("other", 16, classification=1))
    yield infer("an output in binary too", VALUES, place("other", 16, binary_data=True))
    yield infer("an output with a wrong flag", VALUES, place("other", 16, binary_data=1))
    yield infer("data and a region", VALUES | {"parameters": place("first", 16)})
    yield infer("an offset without a region", VALUES | {
        "parameters": {"shared_memory_offset": 3, "shared_memory_byte_size": 3}})
    yield infer("a wrong offset without a region", VALUES | {
        "parameters": {"shared_memory_offset": "3"}})
    yield two("two inputs in regions", {})
    yield two("two of each in regions", {"OUTPUT0": place("other", 16, 256),
                                         "OUTPUT1": place("other", 16, 512)})
    yield two("one output in a region", {"OUTPUT0": {}, "OUTPUT1": place("other", 16, 512)})
    yield two("one output too small", {"OUTPUT0": place("other", 16),
                                       "OUTPUT1": place("other", 8)}, ours_headers=EXECUTION)


def two(name: str, outputs: dict[str, dict[str, Any]], **extra: Any) -> Case:
    """Two inputs in regions."""
    given = [tensor(place("first", 16), [4]) | {"name": f"INPUT{index}"} for index in range(2)]
    request: dict[str, Any] = {"id": "7", "inputs": given}
    if outputs:
        request["outputs"] = [
            {"name": output, "parameters": where} for output, where in outputs.items()
        ]
    body = json.dumps(request).encode()
    return Case(f"http infer {name}", "POST", infer_path("two"), (), body, **extra)


def grpc_regions() -> Iterator[Case]:
    """Registering over gRPC, while regions registered over HTTP exist."""
    method = "SystemSharedMemory"
    yield rpc("status of all", f"{method}Status", {})
    yield rpc("status of one", f"{method}Status", {"name": "behind"})
    yield rpc("status of an unknown region", f"{method}Status", {"name": "x"})
    yield rpc("status of the other kind", "CudaSharedMemoryStatus", {"name": "first"})
    yield rpc("status of all of the other kind", "CudaSharedMemoryStatus", {})
    whole = {"name": "third", "key": THIRD_KEY, "byte_size": PAGE}
    yield rpc("register a region", f"{method}Register", whole)
    yield rpc("register a region again", f"{method}Register", whole)
    whole = whole | {"key": FREE_KEY}
    for name, changes in {
        "an unknown key": {"key": "/galatea_golden_absent"},
        "a size beyond the object": {"byte_size": 2 * PAGE + 1},
        "an offset beyond the object": {"offset": 3 * PAGE, "byte_size": 1},
        "an offset within a page": {"offset": 8, "byte_size": 8},
        "a size of 0": {"byte_size": 0},
        "no size": {"byte_size": 0, "offset": PAGE},
        "a size of 64 bits": {"byte_size": 2**64 - 1},
    }.items():
        yield rpc(f"register with {name}", f"{method}Register", whole | {"name": "x"} | changes)
    yield rpc("register with a size that overflows", f"{method}Register",
              {"name": "x", "key": FREE_KEY, "offset": PAGE, "byte_size": 2**64 - PAGE},
              ours="the sum is checked", ours_status="INVALID_ARGUMENT")
    yield rpc("register with an empty key", f"{method}Register",
              {"name": "x", "byte_size": 8},
              ours="keys are checked since a later release", ours_status="INVALID_ARGUMENT")
    yield rpc("register for CUDA", "CudaSharedMemoryRegister",
              {"name": "x", "raw_handle": b"AAAA", "byte_size": 8})
    yield rpc("unregister for CUDA", "CudaSharedMemoryUnregister", {"name": "first"})
    yield rpc("unregister all for CUDA", "CudaSharedMemoryUnregister", {})


def grpc_tensors() -> Iterator[Case]:
    """Tensors in regions over gRPC."""
    four = [1, 4]
    given = tensor(place("third", 16), four)

    def infer_rpc(
        name: str,
        source: dict[str, Any],
        target: dict[str, Any] | None = None,
        model: str = "fp32",
        **extra: Any,
    ) -> Case:
        return rpc(f"infer {name}", "ModelInfer", message(source, target, model), **extra)

    yield infer_rpc("an input in a region", given)
    yield infer_rpc("an output in a region", VALUES, place("other", 16, 16))
    yield infer_rpc("what the output left", tensor(place("other", 16, 16), four))
    yield infer_rpc("both in regions", given, place("other", 16, 64))
    yield infer_rpc("what both left", tensor(place("other", 16, 64), four))
    strings = tensor(place("third", len(STRINGS), STRINGS_AT), [1, 3], "BYTES")
    yield infer_rpc("strings in regions", strings, place("other", 64, 128), "string")
    yield infer_rpc("no elements", tensor(place("third", 0), [1, 0]), ours_status="OK",
                    ours="as in later releases a size of 0 is not below 0")
    for name, parameters in {
        "an unknown region": place("x", 16),
        "no size": place("third"),
        "too short a place": place("third", 12),
        "too long a place": place("third", 20),
        "an offset beyond": place("third", 16, PAGE),
        "a negative offset": place("third", 16, -1),
        "an end beyond": place("third", 16, PAGE - 8),
        "a negative size": place("third", -16),
        "a region that is a number": place(1, 16),
        "an offset that is a text": place("third", 16, "0"),
        "a size that is a text": place("third", "16"),
        "an offset without a region": place(None, None, 0),
        "a size without a region": place(None, 16),
    }.items():
        yield infer_rpc(f"an input with {name}", tensor(parameters, four))
        yield infer_rpc(f"an output with {name}", VALUES, parameters)
    yield infer_rpc("contents and a region", VALUES | {"parameters": place("third", 16)})
    yield infer_rpc("an output with classes", VALUES, place("other", 16, classification=1))
    pair = [given | {"name": name, "shape": [4], "parameters": typed(place("third", 16))}
            for name in ("INPUT0", "INPUT1")]
    raw = {**pair[1], "parameters": {}}
    mixed: dict[str, Any] = {"model_name": "two", "inputs": [pair[0], raw]}
    yield rpc("infer one of two inputs raw", "ModelInfer",
              mixed | {"raw_input_contents": [FLOATS]})
    yield rpc("infer one of two inputs missing", "ModelInfer", mixed)
    outputs = [{"name": "OUTPUT1", "parameters": typed(place("other", 16, 256))},
               {"name": "OUTPUT0"}]
    yield rpc("infer one of two outputs in a region", "ModelInfer",
              {"model_name": "two", "inputs": pair, "outputs": outputs})
    yield Case("stream of regions", rpc="ModelStreamInfer", messages=(
        {"id": "1"} | message(given, place("other", 16, 16)),
        {"id": "2"} | message(given, place("x", 16)),
        {"id": "3"} | message(given, place("other", 8, 16)),
        {"id": "4"} | message(given)))


def ends() -> Iterator[Case]:
    """Unregistering, over both protocols."""
    yield unregister("one", region="second")
    yield unregister("one again", region="second")
    yield unregister("an unknown region", region="x")
    yield unregister("of the other kind", "cuda", "first")
    yield unregister("all of the other kind", "cuda")
    yield status("of those that are left")
    yield infer("an input in a region that was unregistered", tensor(place("second", 16), [1, 4]))
    yield register("a region that was unregistered", "second", {"key": SECOND_KEY, "byte_size": 16})
    yield infer("an input in a region that is registered again",
                tensor(place("second", 16), [1, 4]))
    yield register("an object twice", "copy", {"key": KEY, "byte_size": 16},
                   ours=STALE, ours_status=200)
    yield unregister("the copy", region="copy")
    yield rpc("unregister one", "SystemSharedMemoryUnregister", {"name": "behind"})
    yield rpc("unregister an unknown region", "SystemSharedMemoryUnregister", {"name": "x"})
    yield rpc("status after that", "SystemSharedMemoryStatus", {})
    yield rpc("unregister all", "SystemSharedMemoryUnregister", {})
    yield rpc("status of nothing", "SystemSharedMemoryStatus", {})
    yield unregister("all of nothing")
    yield status("at the end")


def shared_memory_cases() -> list[Case]:
    """All of them, in order."""
    steps = (registrations(), http_tensors(), grpc_regions(), grpc_tensors(), ends())
    return [case for step in steps for case in step]
