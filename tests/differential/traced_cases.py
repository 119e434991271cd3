"""The records that both servers make of the same requests: in trace files and as spans.

    python tests/differential/traced_cases.py --triton PROGRAM

records Triton's traces in `goldens/`; `test_traced.py` compares ours with them. Times and span IDs
differ from run to run and are left out, and so is the order in which one request's threads record.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

import generate_cases  # noqa: E402
import statistics_cases  # noqa: E402
from cases import Case  # noqa: E402
from collector import Span, collecting  # noqa: E402
from exchange import exchange  # noqa: E402
from serving import serving  # noqa: E402

GOLDEN_PATH = pathlib.Path(__file__).resolve().parent / "goldens" / "triton-2.51-traced.json"

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

#: A model that returns its input, of each type.
TYPES = ("BOOL", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64", "FP16", "FP32", "FP64")


def identity(datatype: str) -> str:
    """The configuration of such a model."""
    return f"""
    backend: "identity" max_batch_size: 4
    input {{ name: "INPUT0" data_type: TYPE_{datatype} dims: [ -1 ] }}
    output {{ name: "OUTPUT0" data_type: TYPE_{datatype} dims: [ -1 ] }}
    """


def ensemble(*steps: str) -> str:
    """The configuration of models in sequence."""
    tensors = ["INPUT0", *(f"BETWEEN{number}" for number in range(1, len(steps))), "OUTPUT0"]
    listed = ",".join(
        f"""{{
        model_name: "{step}" model_version: -1
        input_map {{ key: "INPUT0" value: "{before}" }}
        output_map {{ key: "OUTPUT0" value: "{after}" }}
        }}"""
        for step, before, after in zip(steps, tensors, tensors[1:])
    )
    return f"""
    platform: "ensemble" max_batch_size: 4
    input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }}
    output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }}
    ensemble_scheduling {{ step [ {listed} ] }}
    """


MODELS = {
    **{f"identity_{datatype.lower()}": identity(datatype) for datatype in TYPES},
    "identity_bytes": identity("STRING"),
    "row": ensemble("identity_int32", "identity_int32"),
    "nested": ensemble("identity_int32", "row"),
    "cached": identity("INT32") + "response_cache { enable: true }",
}


def over_http(name: str, model: str, data: Sequence[Any], **request: Any) -> Case:
    """A request with JSON."""
    datatype = {"row": "INT32", "nested": "INT32"}.get(model, model.split("_")[-1].upper())
    tensor = {"name": "INPUT0", "shape": [1, len(data)], "datatype": datatype, "data": data}
    headers = request.pop("headers", ())
    body = json.dumps({**request, "inputs": [tensor]}).encode()
    return Case(name, "POST", f"/v2/models/{model}/infer", headers, body)


def binary(name: str, model: str, datatype: str, count: int, data: bytes) -> Case:
    """A request with a binary tensor."""
    tensor = {
        "name": "INPUT0", "shape": [1, count], "datatype": datatype,
        "parameters": {"binary_data_size": len(data)},
    }
    body = json.dumps({"inputs": [tensor]}).encode()
    headers = (("Inference-Header-Content-Length", str(len(body))),)
    return Case(name, "POST", f"/v2/models/{model}/infer", headers, body + data)


def message(model: str, request_id: str = "", count: int = 2) -> dict[str, Any]:
    """A message with numbers starting at 1."""
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, count]}
    contents = struct.pack(f"<{count}i", *range(1, count + 1))
    return {
        "model_name": model, "id": request_id, "inputs": [tensor],
        "raw_input_contents": [contents],
    }


def over_grpc(name: str, model: str, request_id: str = "", **fields: Any) -> Case:
    """A gRPC call."""
    return Case(name, rpc="ModelInfer", message=message(model, request_id), **fields)


def plain_cases() -> Iterator[Case]:
    """Over each protocol, with and without an ID, single and nested, valid and invalid."""
    first = "identity_int32"
    yield over_http("plain", first, [1, 2])
    yield over_http("identifier", first, [1], id="r-1")
    yield Case("version", "POST", f"/v2/models/{first}/versions/1/infer",
               body=over_http("", first, [3]).body)
    yield over_grpc("call", first)
    yield over_grpc("call with identifier", first, "r-2")
    streamed = (message(first, "s-1"), message(first, "s-2", 3))
    yield Case("stream", rpc="ModelStreamInfer", messages=streamed)
    yield over_http("row", "row", [1], id="e")
    yield over_grpc("row by call", "row", "e")
    yield over_http("nested", "nested", [7, 8], id="n")
    yield Case("broken JSON", "POST", f"/v2/models/{first}/infer", body=b'{"inputs":')
    yield Case("unknown model", "POST", "/v2/models/nope/infer", body=b"{}")
    yield Case("unknown version", "POST", f"/v2/models/{first}/versions/7/infer", body=b"{}")
    yield over_http("last", first, [9])


def response_cases() -> Iterator[Case]:
    """No response, several responses, errors, and a response from the cache."""
    cached = over_http("first time", "cached", [1, 2])
    yield cached
    yield dataclasses.replace(cached, name="from the cache")
    for form in ("generate", "generate_stream"):
        for model in ("once", "talk"):
            for name, script in SCRIPTS.items():
                body = json.dumps({"SCRIPT": script}).encode()
                path = f"/v2/models/{model}/{form}"
                yield Case(f"{name} by {form} of {model}", "POST", path, (), body, as_text=True)
    for name, script in SCRIPTS.items():
        tensor = {"name": "SCRIPT", "datatype": "BYTES", "shape": [len(script)]}
        content = {"bytes_contents": [line.encode() for line in script]}
        asked = {"model_name": "talk", "id": name, "inputs": [{**tensor, "contents": content}]}
        yield Case(f"{name} by stream", rpc="ModelStreamInfer", messages=(asked,))
        yield Case(f"{name} by call", rpc="ModelInfer", message={**asked, "model_name": "once"})
        body = json.dumps({"inputs": [{**tensor, "data": script}]}).encode()
        yield Case(f"{name} over HTTP", "POST", "/v2/models/once/infer", body=body)
    for name, model, body in (("no JSON", "talk", b"{"), ("no model", "nope", b"{}")):
        yield Case(name, "POST", f"/v2/models/{model}/generate", (), body, as_text=True)


#: What the model `talk` says.
SCRIPTS = {"one": ["say a"], "two": ["say a", "say b"], "error": ["error x"], "none": ["quiet"]}


def tensor_cases() -> Iterator[Case]:
    """Contents of every type."""
    wholes = [0, 1, 2]
    yield over_http("bool", "identity_bool", [True, False])
    for kind in ("uint16", "int16", "uint32", "int32", "uint64", "int64"):
        yield over_http(kind, f"identity_{kind}", [*wholes, -3] if kind[0] == "i" else wholes)
    yield over_http("largest", "identity_uint64", [2**64 - 1])
    floats = [0, 1, -1.5, 0.1, 1e-7, 123456789.0, 1e30]
    yield over_http("fp32", "identity_fp32", floats)
    yield over_http("fp64", "identity_fp64", floats)
    yield binary("no numbers", "identity_fp32", "FP32", 3, struct.pack("<3f", *map(float, (
        "nan", "inf", "-inf"))))
    yield binary("fp16", "identity_fp16", "FP16", 2, b"\0<\0@")
    yield over_http("bytes", "identity_bytes", ["a", "", "two words"])
    yield over_http("row of tensors", "row", [4, 5])


def propagated_cases() -> Iterator[Case]:
    """Clients' trace contexts, valid and invalid."""
    first = "identity_int32"
    contexts: dict[str, tuple[tuple[str, str], ...]] = {
        "traced": (("traceparent", PARENT),),
        "with state": (("traceparent", PARENT), ("tracestate", "a=b,c=d")),
        "state with blanks": (("traceparent", PARENT), ("tracestate", " a=b , c=d")),
        "wrong state": (("traceparent", PARENT), ("tracestate", "A")),
        "not sampled": (("traceparent", PARENT[:-2] + "00"),),
        "capitals": (("traceparent", PARENT.upper()),),
        "too short": (("traceparent", PARENT[:-3]),),
        "no digits": (("traceparent", PARENT.replace("af", "xy")),),
        "no trace": (("traceparent", f"00-{'0' * 32}-b7ad6b7169203331-01"),),
        "no span": (("traceparent", f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01"),),
        "version ff": (("traceparent", "ff" + PARENT[2:]),),
        "later version": (("traceparent", "01" + PARENT[2:]),),
        "state alone": (("tracestate", "a=b"),),
        "nothing": (),
    }
    for name, headers in contexts.items():
        yield over_http(name, first, [1], id=name, headers=headers)
    yield over_http("row", "row", [1], id="row", headers=contexts["with state"])
    yield over_grpc("call", first, "call", metadata=contexts["traced"])
    streamed = (message(first, "s-1"), message(first, "s-2"))
    yield Case("stream", rpc="ModelStreamInfer", messages=streamed, metadata=contexts["traced"])


CACHE = "--cache-config=local,size=1048576"


def setting(level: str, *others: str) -> tuple[str, ...]:
    """Flags for the trace settings."""
    return tuple(f"--trace-config={each}" for each in (f"level={level}", *others))


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Requests to a server with these flags."""

    cases: tuple[Case, ...]
    flags: tuple[str, ...]
    has_collector: bool = False
    #: Whether requests are for the models of `generate_cases`.
    is_talking: bool = False


SCENARIOS = {
    "times": Scenario(tuple(plain_cases()), setting("TIMESTAMPS", "rate=1")),
    "tensors": Scenario(tuple(tensor_cases()), setting("TENSORS", "rate=1")),
    "both": Scenario(
        tuple(plain_cases())[:6], (*setting("TENSORS", "rate=1"), *setting("TIMESTAMPS"))
    ),
    "one of three": Scenario(tuple(plain_cases()), setting("TIMESTAMPS", "rate=3")),
    "four": Scenario(
        tuple(plain_cases()), setting("TIMESTAMPS", "rate=1", "count=4", "triton,log-frequency=3")
    ),
    "spans": Scenario(tuple(plain_cases()), setting("TIMESTAMPS", "rate=1"), True),
    "spans of traced clients": Scenario(
        tuple(propagated_cases()), setting("TIMESTAMPS", "rate=0"), True
    ),
    "responses": Scenario(
        tuple(response_cases()), (*setting("TIMESTAMPS", "rate=1", "triton,log-frequency=1"), CACHE),
        is_talking=True,
    ),
    "spans of responses": Scenario(
        tuple(response_cases()), (*setting("TIMESTAMPS", "rate=1"), CACHE), True, True
    ),
    "every span": Scenario(tuple(propagated_cases()), setting("TIMESTAMPS", "rate=1"), True),
}


def recorded(program: Sequence[str], scenario: Scenario, is_triton: bool = False) -> Any:
    """A server's record of the requests in a scenario."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        statistics_cases.write_texts(root / "models", MODELS)
        if scenario.is_talking:
            generate_cases.write_models(root / "models")
        if scenario.has_collector:
            with collecting() as collector:
                url = f"--trace-config=opentelemetry,url={collector.url}"
                command = [*program, *scenario.flags, "--trace-config=mode=opentelemetry", url]
                send(command, scenario, root / "models", is_triton)
                return tree(collector.spans())
        file = root / "traces"
        command = [*program, *scenario.flags, f"--trace-config=triton,file={file}"]
        send(command, scenario, root / "models", is_triton)
        files = {path.name: json.loads(path.read_text()) for path in root.glob("traces*")}
        # A trace may end after the next one begins, and its place in files depends on its end.
        return {
            "traces": shape([entry for entries in files.values() for entry in entries]),
            "files": {name: len(shape(entries)) for name, entries in files.items()},
        }


def send(
    command: Sequence[str], scenario: Scenario, models: pathlib.Path, is_triton: bool
) -> None:
    """Sends the requests of a scenario, and stops the server."""
    with serving(command, models, {}, is_triton) as addresses:
        exchange(addresses, scenario.cases)


def shape(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The traces in a file, by ID."""
    traces: dict[int, dict[str, Any]] = {}
    for entry in entries:
        trace = traces.setdefault(entry["id"], {"id": entry["id"], "times": [], "tensors": []})
        if "timestamps" in entry:
            trace["times"] += [one["name"] for one in entry["timestamps"]]
        elif "activity" in entry:
            trace["tensors"].append({"activity": entry["activity"], **entry["tensor"]})
        else:
            trace["subject"] = entry
    for trace in traces.values():
        trace["times"].sort()
    return [traces[number] for number in sorted(traces)]


def tree(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """The spans, nested in the spans that they belong to."""
    own = {span.number for span in spans}

    def node(span: Span) -> dict[str, Any]:
        # A client's IDs are kept; others are chosen by the server.
        is_joined = PARENT[3:35] == span.trace
        return {
            "name": span.name,
            "kind": span.kind,
            "attributes": span.attributes,
            "events": span.events if span.parent in own else sorted(span.events),
            "state": span.state,
            "trace": span.trace if is_joined else "new",
            "parent": span.parent if span.parent not in own else "",
            "spans": nodes(span.number),
        }

    def nodes(parent: str | None) -> list[dict[str, Any]]:
        inner = [
            span for span in spans
            if (span.parent == parent if parent else span.parent not in own)
        ]
        return [node(span) for span in sorted(inner, key=lambda span: span.start)]

    return nodes(None)


def main() -> None:
    """Records Triton's traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triton", type=pathlib.Path, required=True, help="the server")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="default: all")
    options = parser.parse_args()
    goldens = json.loads(GOLDEN_PATH.read_text()) if options.scenario else {}
    for name in options.scenario or SCENARIOS:
        goldens[name] = recorded([str(options.triton)], SCENARIOS[name], is_triton=True)
    GOLDEN_PATH.write_text(json.dumps(goldens, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
