"""The requests to which both servers must respond in the same way."""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

import numpy as np


#: The reason where Triton sends the error of an execution as plain text.
EXECUTION = "errors of executions are JSON, as other errors are"


@dataclasses.dataclass(frozen=True)
class Case:
    """One request over HTTP (`path`) or gRPC (`rpc`), or a stream of them.

    A stream's requests are `messages`, sent after `metadata`. `ours` is the reason why our response
    differs on purpose; in this case, only the status class or `ours_status` is compared.
    """

    name: str
    method: str = "GET"
    path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    rpc: str = ""
    message: dict[str, Any] | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    ours: str = ""
    ours_status: int | str | None = None
    #: Why the text of an error differs on purpose; the status does not.
    ours_text: str = ""
    #: Why the headers of an error differ on purpose.
    ours_headers: str = ""
    #: Whether outputs may come in any order, as those of Triton's ensembles do.
    any_order: bool = False
    #: Whether the body is compared as text: to the byte, with the order of members.
    as_text: bool = False
    #: The endpoint that gets a request over HTTP, if it is a cloud's.
    door: str = ""


#: The reason of cases that end Triton's process.
CRASH = "Triton crashes"
#: The reason of a case whose response is another in each run, and which may close a file of Triton.
STALE = "Triton takes the number of a closed descriptor, and whatever has it then, for the object"
#: The reasons of cases that are not sent to Triton.
UNSENT = (CRASH, STALE)

DTYPES: dict[str, Any] = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp64": np.float64,
}


def infer_path(model: str) -> str:
    """The HTTP path of a model's infer endpoint."""
    return f"/v2/models/{model}/infer"


def json_infer(name: str, model: str, request: Any, **extra: Any) -> Case:
    """An infer request whose body consists of JSON only."""
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return Case(name, "POST", infer_path(model), (), body, **extra)


def binary_infer(name: str, model: str, header: Any, data: bytes, **extra: Any) -> Case:
    """An infer request whose tensors follow the JSON."""
    text = json.dumps(header).encode()
    headers = (("Inference-Header-Content-Length", str(len(text))),)
    return Case(name, "POST", infer_path(model), headers, text + data, **extra)


def fp32(data: Any, shape: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A request to the FP32 identity model."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": shape or [1, len(data)], "data": data}
    return {"inputs": [tensor | fields]}


def sample(dtype: str) -> np.ndarray:
    """Typical values of a data type, including its limits."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return np.array([[True, False, True]])
    if dtype.startswith("fp"):
        return np.array([[0, -1.5, 3.25, 1e-3]], dtype=kind)
    limits = np.iinfo(kind)
    return np.array([[limits.min, 0, 7, limits.max]], dtype=kind)


def server_cases() -> list[Case]:
    """Health, metadata, configuration, no shared memory, and paths that don't exist."""
    get = [
        "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/identity_fp32",
        "/v2/models/identity_fp32/versions/1", "/v2/models/identity_fp32/ready",
        "/v2/models/identity_fp32/versions/1/ready", "/v2/models/identity_fp32/config",
        "/v2/models/identity_bytes/config", "/v2/models/simple", "/v2/models/simple/config",
        "/v2/models/mlp/config", "/v2/models/autocomplete", "/v2/models/autocomplete/config",
        "/v2/models/simple_string", "/v2/models/nope", "/v2/models/nope/config",
        "/v2/models/nope/stats", "/v2/models/identity_fp32/versions/9",
        "/v2/models/identity_fp32/versions/9/stats", "/v2/models/identity_fp32/versions/0",
        "/v2/models/identity_fp32/versions/x", "/v2/", "/", "/v2/nope", "/v2/models",
        "/v2/models/identity_fp32/", "/v2/models/identity_fp32/infer", "/v2/health",
        "/v2/repository/index", "/v3", "/v2/models/identity_fp16/stats",
        "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/r/status",
        "/v2/cudasharedmemory/status", "/v2/cudasharedmemory/region/r/status",
    ]
    cases = [Case(f"GET {path}", path=path) for path in get]
    for path in ["/v2", "/v2/health/live", "/v2/models/identity_fp32", "/v2/models/simple/config",
                 "/v2/models/simple/stats", "/v2/models/identity_fp32/ready"]:
        cases.append(Case(f"POST {path}", "POST", path))
    cases.append(Case("DELETE infer", "DELETE", infer_path("identity_fp32")))
    for body in [b"", b'{"ready":true}', b"[]"]:
        cases.append(Case(f"index {body!r}", "POST", "/v2/repository/index", (), body))
    wrong = b'{"ready":1}'
    cases.append(Case(f"index {wrong!r}", "POST", "/v2/repository/index", (), wrong,
                      ours="as in later releases", ours_status=400))
    cases.append(Case(f"index {b'x'!r}", "POST", "/v2/repository/index", (), b"x"))
    for verb in ["load", "unload"]:
        path = f"/v2/repository/models/identity_fp32/{verb}"
        cases.append(Case(f"{verb} in mode none", "POST", path))
    return cases


def datatype_cases() -> list[Case]:
    """Every data type, as JSON and binary, in both directions."""
    cases = []
    for dtype in DTYPES:
        values = sample(dtype)
        model = f"identity_{dtype}"
        tensor = {"name": "INPUT0", "datatype": dtype.upper(), "shape": list(values.shape)}
        cases.append(json_infer(f"{dtype} json to json", model,
                                {"inputs": [tensor | {"data": values.tolist()}]}))
        cases.append(json_infer(
            f"{dtype} json to binary", model,
            {"inputs": [tensor | {"data": values.flatten().tolist()}],
             "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}))
        raw = values.tobytes()
        header = {"id": "b1", "inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}]}
        cases.append(binary_infer(f"{dtype} binary to json", model, header, raw))
        cases.append(binary_infer(f"{dtype} binary to binary", model,
                                  header | {"parameters": {"binary_data_output": True}}, raw))
    strings = [b"abc", b"", b"a\0b", "ü".encode()]
    raw = b"".join(struct.pack("<I", len(s)) + s for s in strings)
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, 4]}
    texts = [s.decode() for s in strings]
    cases.append(json_infer("bytes json", "identity_bytes", {"inputs": [tensor | {"data": texts}]}))
    header = {"inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}]}
    cases.append(binary_infer("bytes binary to json", "identity_bytes", header, raw))
    cases.append(binary_infer("bytes binary to binary", "identity_bytes",
                              header | {"parameters": {"binary_data_output": True}}, raw))
    bf16 = {"name": "INPUT0", "datatype": "BF16", "shape": [1, 2], "parameters": {"binary_data_size": 4}}
    cases.append(binary_infer("bf16 binary to binary", "identity_bf16",
                              {"inputs": [bf16], "parameters": {"binary_data_output": True}},
                              b"\x80\x3f\x00\x40"))
    cases.append(binary_infer("bf16 binary to json", "identity_bf16", {"inputs": [bf16]},
                              b"\x80\x3f\x00\x40"))
    return cases


def number_cases() -> list[Case]:
    """The format of floats."""
    values = {
        "small": [1e-7, 1e-5, 0.1, 0.30000001192092896],
        "large": [1e20, 1e21, 1e22, 16777216, 3.4028235e38],
        "whole": [0, -0.0, 1, 100000, 123456789],
    }
    cases = [json_infer(f"fp32 {name}", "identity_fp32", fp32(v)) for name, v in values.items()]
    for name, numbers in values.items():
        tensor = {"name": "INPUT0", "datatype": "FP64", "shape": [1, len(numbers)], "data": numbers}
        cases.append(json_infer(f"fp64 {name}", "identity_fp64", {"inputs": [tensor]}))
    for dtype, bits in {"fp32": "<4f", "fp64": "<4d"}.items():
        raw = struct.pack(bits, float("nan"), float("inf"), float("-inf"), 1.0)
        tensor = {"name": "INPUT0", "datatype": dtype.upper(), "shape": [1, 4],
                  "parameters": {"binary_data_size": len(raw)}}
        cases.append(binary_infer(f"{dtype} not finite to json", f"identity_{dtype}",
                                  {"inputs": [tensor]}, raw))
    out_of_range = {"name": "INPUT0", "datatype": "UINT8", "shape": [1, 3], "data": [300, -1, 1]}
    cases.append(json_infer("uint8 out of range", "identity_uint8", {"inputs": [out_of_range]}))
    return cases


def bad_input_cases() -> list[Case]:
    """Requests that the server must refuse, and their errors."""
    good = fp32([1, 2])
    cases = []

    def bad(name: str, request: Any, model: str = "identity_fp32", **extra: Any) -> None:
        cases.append(json_infer(f"bad: {name}", model, request, **extra))

    bad("empty body", b"")
    bad("not json", b"{")
    bad("array", b"[]")
    bad("no inputs", {})
    bad("inputs not a list", {"inputs": 1})
    bad("empty inputs", {"inputs": []})
    bad("unknown model", good, model="nope")
    bad("unknown input", fp32([1], name="X"))
    bad("duplicate input", {"inputs": good["inputs"] * 2})
    bad("unknown output", good | {"outputs": [{"name": "Z"}]})
    bad("output without name", good | {"outputs": [{}]})
    bad("duplicate output", good | {"outputs": [{"name": "OUTPUT0"}] * 2},
        ours="an output named twice is refused", ours_status=400)
    bad("datatype differs", fp32([1], datatype="INT32"))
    bad("datatype unknown", fp32([1], datatype="FP31"))
    bad("datatype missing", {"inputs": [{"name": "INPUT0", "shape": [1, 1], "data": [1]}]})
    bad("shape missing", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "data": [1]}]})
    bad("name missing", {"inputs": [{"shape": [1, 1], "datatype": "FP32", "data": [1]}]})
    bad("data missing", {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32"}]})
    bad("shape too short", fp32([1, 2], [2]))
    bad("shape too long", fp32([1, 2], [1, 2, 1]))
    bad("shape empty", fp32([1], []) | {"inputs": [fp32([1])["inputs"][0] | {"shape": []}]})
    bad("shape of strings", fp32([1], ["1", "1"]))
    bad("shape of floats", fp32([1], [1.5, 1]))
    bad("shape negative", fp32([1], [1, -1]))
    bad("shape huge", fp32([1], [1, 1 << 62]), ours=CRASH, ours_status=400)
    bad("shape overflows", fp32([1], [4, 1 << 62]), ours=CRASH, ours_status=400)
    bad("batch too large", fp32([0] * 9, [9, 1]))
    bad("batch zero", fp32([], [0, 3]))
    bad("too few elements", fp32([1], [1, 2]), ours_text="as in later releases")
    bad("too many elements", fp32([1, 2, 3], [1, 2]))
    bad("string for number", fp32(["a"]))
    bad("bool for number", fp32([True]))
    bad("number for bool", {"inputs": [{"name": "INPUT0", "datatype": "BOOL", "shape": [1, 1], "data": [2]}]},
        model="identity_bool")
    bad("number for string", {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "data": [2]}]},
        model="identity_bytes")
    bad("nan in json", b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[NaN]}]}')
    bad("infinity in json", b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[Infinity]}]}')
    bad("data and binary size", fp32([1], parameters={"binary_data_size": 4}))
    bad("binary size without bytes", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1],
                                                 "parameters": {"binary_data_size": 4}}]})
    bad("priority not a number", good | {"parameters": {"priority": "x"}})
    bad("sequence_start not a bool", good | {"parameters": {"sequence_start": 1}})
    bad("parameter of a wrong type", good | {"parameters": {"x": [1]}})
    bad("reserved parameter", good | {"parameters": {"triton_x": 1}})
    bad("id not a string", good | {"id": 1})
    return cases


def binary_framing_cases() -> list[Case]:
    """The lengths in the framing of binary tensors."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2]}
    header = {"inputs": [tensor | {"parameters": {"binary_data_size": 8}}]}
    text = json.dumps(header).encode()
    raw = struct.pack("<2f", 1, 2)
    path = infer_path("identity_fp32")

    def framed(
        name: str, length: str, body: bytes, model: str = "identity_fp32", **extra: Any
    ) -> Case:
        headers = (("Inference-Header-Content-Length", length),)
        return Case(f"framing: {name}", "POST", infer_path(model), headers, body, **extra)

    return [
        framed("good", str(len(text)), text + raw),
        framed("short by one", str(len(text)), text + raw[:-1]),
        framed("long by one", str(len(text)), text + raw + b"x"),
        framed("length past the end", str(len(text) + 100), text + raw),
        framed("length negative", "-1", text + raw),
        framed("length not a number", "abc", text + raw,
               ours="as in later releases", ours_status=400),
        Case("framing: no length header", "POST", path, (), text + raw),
        framed("raw request", "0", raw),
        framed("raw request of no element", "0", b""),
        framed("raw request of half an element", "0", raw[:6]),
        framed("raw request to strings", "0", b"abc", "identity_bytes"),
        framed("raw request to two inputs", "0", raw, "simple"),
    ]


def parameter_cases() -> list[Case]:
    """IDs, parameters and the selection of outputs."""
    good = fp32([1, 2])
    both = {"id": "x y", "parameters": {"a": 1, "b": 1.5, "c": "s", "d": True}}
    return [
        json_infer("id is echoed", "identity_fp32", good | both),
        json_infer("empty id is left out", "identity_fp32", good | {"id": ""}),
        json_infer("sequence and priority on a plain model", "identity_fp32",
                   good | {"parameters": {"sequence_id": 7, "sequence_start": True, "priority": 3,
                                          "timeout": 10}}),
        json_infer("string sequence id", "identity_fp32", good | {"parameters": {"sequence_id": "s"}},
                   ours_headers=EXECUTION),
        json_infer("listed output ignores the default", "identity_fp32",
                   good | {"parameters": {"binary_data_output": True}, "outputs": [{"name": "OUTPUT0"}]}),
        json_infer("unlisted output follows the default", "identity_fp32",
                   good | {"parameters": {"binary_data_output": True}}),
        json_infer("empty output list", "identity_fp32", good | {"outputs": []}),
        json_infer("zero elements", "identity_fp32", fp32([], [1, 0])),
        json_infer("version in the path", "identity_fp32", good),
    ]


def onnx_cases() -> list[Case]:
    """Real models."""
    ints = list(range(16))
    pair = [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": ints} for i in (0, 1)]
    words = [{"name": f"INPUT{i}", "datatype": "BYTES", "shape": [1, 16], "data": [str(n) for n in ints]}
             for i in (0, 1)]
    return [
        json_infer("simple", "simple", {"inputs": pair}),
        json_infer("simple, inputs turned round", "simple", {"inputs": pair[::-1]}),
        json_infer("simple, one output", "simple", {"inputs": pair, "outputs": [{"name": "OUTPUT1"}]}),
        json_infer("simple, outputs turned round", "simple",
                   {"inputs": pair, "outputs": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]}),
        json_infer("simple, one input", "simple", {"inputs": pair[:1]}),
        json_infer("simple, batches differ", "simple", {
            "inputs": [pair[0], pair[1] | {"shape": [2, 16], "data": ints * 2}]}),
        json_infer("simple_string", "simple_string", {"inputs": words}),
        json_infer("simple_string, not a number", "simple_string", {
            "inputs": [words[0] | {"data": ["x"] * 16}, words[1]]},
            ours="the library's own text", ours_status=500),
    ]


def grpc_cases() -> list[Case]:
    """The same over gRPC, with messages in protobuf's JSON form."""
    def call(name: str, rpc: str, message: dict[str, Any] | None = None, **extra: Any) -> Case:
        return Case(f"grpc {name}", rpc=rpc, message=message or {}, **extra)

    def tensor(data: dict[str, Any] | None, shape: list[int], dtype: str = "FP32") -> dict[str, Any]:
        fields: dict[str, Any] = {"name": "INPUT0", "datatype": dtype, "shape": shape}
        return fields | ({"contents": data} if data is not None else {})

    def infer(name: str, message: dict[str, Any], model: str = "identity_fp32", **extra: Any) -> Case:
        return call(name, "ModelInfer", {"model_name": model} | message, **extra)

    raw = {"raw_input_contents": [struct.pack("<2f", 1, 2)]}
    good = {"inputs": [tensor(None, [1, 2])]} | raw
    cases = [
        call("live", "ServerLive"), call("ready", "ServerReady"),
        call("model ready", "ModelReady", {"name": "simple"}),
        call("model ready, unknown", "ModelReady", {"name": "nope"}),
        call("model ready, bad version", "ModelReady", {"name": "simple", "version": "x"}),
        call("metadata", "ServerMetadata"),
        call("model metadata", "ModelMetadata", {"name": "simple"}),
        call("model metadata, unknown", "ModelMetadata", {"name": "nope"}),
        call("model metadata, version 9", "ModelMetadata", {"name": "simple", "version": "9"}),
        call("config", "ModelConfig", {"name": "simple"}),
        call("config, auto-completed", "ModelConfig", {"name": "autocomplete"}),
        call("config, unknown", "ModelConfig", {"name": "nope"}),
        call("statistics, unknown", "ModelStatistics", {"name": "nope"}),
        call("statistics of an idle model", "ModelStatistics", {"name": "identity_fp16"}),
        call("index", "RepositoryIndex"), call("index, ready", "RepositoryIndex", {"ready": True}),
        call("load in mode none", "RepositoryModelLoad", {"model_name": "simple"}),
        call("unload in mode none", "RepositoryModelUnload", {"model_name": "simple"}),
        infer("raw", good), infer("id", good | {"id": "g"}),
        infer("typed", {"inputs": [tensor({"fp32_contents": [1, 2]}, [1, 2])]}),
        infer("typed and raw", {"inputs": [tensor({"fp32_contents": [1, 2]}, [1, 2])]} | raw),
        infer("no data", {"inputs": [tensor(None, [1, 2])]}),
        infer("typed too few", {"inputs": [tensor({"fp32_contents": [1]}, [1, 2])]}),
        infer("typed wrong field", {"inputs": [tensor({"int_contents": [1, 2]}, [1, 2])]}),
        infer("raw too short", good | {"raw_input_contents": [b"abc"]}),
        infer("raw too many", good | {"raw_input_contents": raw["raw_input_contents"] * 2},
              ours="surplus contents are refused", ours_status="INVALID_ARGUMENT"),
        infer("unknown model", good, model="nope"),
        infer("unknown input", {"inputs": [tensor(None, [1, 2]) | {"name": "X"}]} | raw),
        infer("unknown output", good | {"outputs": [{"name": "Z"}]}),
        infer("bad version", good | {"model_version": "x"}),
        infer("wrong datatype", {"inputs": [tensor(None, [1, 2], "INT32")]} | raw),
        infer("unknown datatype", {"inputs": [tensor(None, [1, 2], "FP31")]} | raw),
        infer("wrong shape", {"inputs": [tensor(None, [2])]} | raw),
        infer("negative shape", {"inputs": [tensor(None, [1, -2])]} | raw,
              ours_text="as in later releases"),
        infer("parameters", good | {"parameters": {"a": {"int64_param": 1}, "b": {"string_param": "s"}}}),
        infer("priority of a wrong type", good | {"parameters": {"priority": {"string_param": "s"}}}),
        infer("sequence id of a wrong type", good | {"parameters": {"sequence_id": {"bool_param": True}}}),
    ]
    typed = {
        "bool": ("bool_contents", [True, False]), "uint8": ("uint_contents", [0, 255]),
        "uint16": ("uint_contents", [0, 65535]), "uint32": ("uint_contents", [0, 4294967295]),
        "uint64": ("uint64_contents", [0, 18446744073709551615]), "int8": ("int_contents", [-128, 127]),
        "int16": ("int_contents", [-32768, 32767]), "int32": ("int_contents", [-5, 5]),
        "int64": ("int64_contents", [-5, 5]), "fp64": ("fp64_contents", [0.5, -0.5]),
    }
    for dtype, (field, values) in typed.items():
        cases.append(infer(f"typed {dtype}", {"inputs": [tensor({field: values}, [1, 2], dtype.upper())]},
                           model=f"identity_{dtype}"))
    cases.append(infer("typed bytes", {"inputs": [tensor({"bytes_contents": [b"a", b""]}, [1, 2], "BYTES")]},
                       model="identity_bytes"))
    return cases


#: Ends a stream with the status of its first failure.
ERRORS_AS_STATUS = (("triton_grpc_error", "true"),)


def stream_cases() -> list[Case]:
    """Inference streams: order, last responses and failures."""
    def tensor(name: str, dtype: str, shape: list[int]) -> dict[str, Any]:
        return {"name": name, "datatype": dtype, "shape": shape}

    def identity(id: str, **fields: Any) -> dict[str, Any]:
        return {
            "model_name": "identity_fp32", "id": id, "inputs": [tensor("INPUT0", "FP32", [1, 2])],
            "raw_input_contents": [struct.pack("<2f", 1, 2)],
        } | fields

    def simple(id: str, **fields: Any) -> dict[str, Any]:
        raw = np.arange(16, dtype=np.int32).tobytes()
        return {
            "model_name": "simple", "id": id, "raw_input_contents": [raw, raw],
            "inputs": [tensor(f"INPUT{i}", "INT32", [1, 16]) for i in (0, 1)],
        } | fields

    def words(id: str, word: bytes, **fields: Any) -> dict[str, Any]:
        raw = (struct.pack("<I", len(word)) + word) * 16
        return {
            "model_name": "simple_string", "id": id, "raw_input_contents": [raw, raw],
            "inputs": [tensor(f"INPUT{i}", "BYTES", [1, 16]) for i in (0, 1)],
        } | fields

    def stream(name: str, *messages: dict[str, Any], **extra: Any) -> Case:
        return Case(f"stream {name}", rpc="ModelStreamInfer", messages=messages, **extra)

    def parameter(name: str, **choice: Any) -> dict[str, Any]:
        return {"parameters": {name: choice}}

    ends = "triton_enable_empty_final_response"
    bad = {
        "unknown model": identity("bad", model_name="nope"),
        "version that is no number": identity("bad", model_version="x"),
        "unknown version": identity("bad", model_version="9"),
        "no data": identity("bad", raw_input_contents=[]),
        "unknown input": identity("bad", inputs=[tensor("X", "FP32", [1, 2])]),
        "unknown output": identity("bad", outputs=[{"name": "X"}]),
        "wrong datatype": identity("bad", inputs=[tensor("INPUT0", "INT32", [1, 2])]),
        "wrong shape": identity("bad", inputs=[tensor("INPUT0", "FP32", [2])]),
        "data too short": identity("bad", raw_input_contents=[b"abc"]),
        "sequence id of a wrong type": identity("bad", **parameter("sequence_id", bool_param=True)),
        "unsigned sequence id": identity("bad", **parameter("sequence_id", uint64_param=1)),
        "sequence start of a wrong type": identity("bad", **parameter("sequence_start", int64_param=1)),
        "sequence end of a wrong type": identity("bad", **parameter("sequence_end", string_param="x")),
        "reserved parameter": identity("bad", **parameter("triton_x", bool_param=True)),
        "empty ends of a wrong type": identity("bad", **parameter(ends, int64_param=1)),
    }
    cases = [
        stream("without requests"),
        stream("without an id", identity("")),
        stream("of many models", simple("1"), identity("2"), words("3", b"7"), identity("4"),
               simple("5", model_version="1"), identity("6")),
        stream("of one model", *(identity(str(n), raw_input_contents=[struct.pack("<2f", n, -n)])
                                 for n in range(30))),
        stream("with the same id", identity("a"), identity("a")),
        stream("that asks for empty ends", identity("a", **parameter(ends, bool_param=True))),
        stream("that asks for one output", simple("a", outputs=[{"name": "OUTPUT1"}])),
        stream("with parameters", identity("a", **parameter("priority", uint64_param=1)),
               identity("b", **parameter("sequence_id", int64_param=5)),
               identity("c", **parameter("own", double_param=0.5))),
        stream("of failures at the model", words("bad", b"x"), words("bad", b"x", model_version="1"),
               identity("good")),
        stream("of failures only", bad["unknown model"], words("bad", b"x"), bad["no data"]),
        stream("that ends with a failure's status", identity("good"), words("bad", b"x"),
               metadata=ERRORS_AS_STATUS),
        stream("that goes on after a request without a model", bad["unknown model"],
               identity("good"), metadata=ERRORS_AS_STATUS),
        stream("with another value of triton_grpc_error", words("bad", b"x"), identity("good"),
               metadata=(("triton_grpc_error", "1"),)),
        stream("without failures, with triton_grpc_error", identity("a"), simple("b"),
               metadata=ERRORS_AS_STATUS),
    ]
    for name, message in bad.items():
        cases.append(stream(f"with {name}", identity("before"), message, simple("after")))
    return cases


def shared_memory_cases() -> list[Case]:
    """The status of shared memory over gRPC, where there is none."""
    cases = []
    for kind in ("System", "Cuda"):
        rpc = f"{kind}SharedMemoryStatus"
        cases += [Case(f"grpc {rpc}", rpc=rpc, message={}),
                  Case(f"grpc {rpc} of a region", rpc=rpc, message={"name": "r"})]
    return cases


def all_cases() -> list[Case]:
    """Every case, with unique names."""
    cases = (server_cases() + datatype_cases() + number_cases() + bad_input_cases()
             + binary_framing_cases() + parameter_cases() + onnx_cases() + grpc_cases()
             + stream_cases() + shared_memory_cases())
    names = [case.name for case in cases]
    assert len(names) == len(set(names)), "case names must be unique"
    return cases
