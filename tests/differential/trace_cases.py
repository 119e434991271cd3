"""Trace settings over HTTP and gRPC: reading, changing, clearing, and errors.

The cases of a suite change one server in order, so each sees the results of those before it.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import statistics_cases
from cases import Case

#: Of a server that can write traces.
FLAGS = ("--trace-config=triton,file=/dev/null",)

#: Of a server that sends traces away. Nothing listens there, and nothing is traced.
COLLECTOR_FLAGS = (
    "--trace-config=mode=opentelemetry",
    "--trace-config=rate=0",
    "--trace-config=opentelemetry,url=http://127.0.0.1:1/v1/traces",
    "--trace-config=opentelemetry,resource=a=b",
    "--trace-config=opentelemetry,resource=c=d",
    "--trace-config=opentelemetry,bsp_schedule_delay=7",
)

MODELS = {
    name: f"""
    backend: "identity" max_batch_size: 4
    input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
    output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
    """
    for name in ("m", "other")
}


def write_models(root: pathlib.Path) -> None:
    """Two models."""
    statistics_cases.write_texts(root, MODELS)


GLOBAL = "/v2/trace/setting"
MODEL = "/v2/models/m/trace/setting"

#: Bodies of a change, good and bad; the settings are shown after each.
BODIES: dict[str, Any] = {
    "nothing": {},
    "a rate": {"trace_rate": "10"},
    "all": {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "2",
        "trace_count": "5",
        "log_frequency": "3",
    },
    "both levels": {"trace_level": ["TIMESTAMPS", "TENSORS"]},
    "one level twice": {"trace_level": ["TENSORS", "TENSORS"]},
    "an unknown level": {"trace_level": ["MAX"]},
    "an unknown level among others": {"trace_level": ["x", "TENSORS"]},
    "a level in lower case": {"trace_level": ["timestamps"]},
    "no level": {"trace_level": []},
    "off": {"trace_level": ["OFF"]},
    "off and on": {"trace_level": ["OFF", "TIMESTAMPS"]},
    "on and off": {"trace_level": ["TIMESTAMPS", "OFF"]},
    "off twice": {"trace_level": ["OFF", "OFF"]},
    "a level as text": {"trace_level": "OFF"},
    "a level as number": {"trace_level": [1]},
    "a level as object": {"trace_level": {"a": 1}},
    "a cleared level": {"trace_level": None},
    "a rate of nothing": {"trace_rate": "0"},
    "a negative rate": {"trace_rate": "-1"},
    "a rate far below nothing": {"trace_rate": "-5"},
    "the least rate": {"trace_rate": "-2147483648"},
    "a rate out of range below": {"trace_rate": "-2147483649"},
    "a rate with blanks": {"trace_rate": " 7x"},
    "a rate as number": {"trace_rate": 7},
    "a rate in a list": {"trace_rate": ["7"]},
    "a rate as word": {"trace_rate": "x"},
    "an empty rate": {"trace_rate": ""},
    "a rate out of range": {"trace_rate": "4294967296"},
    "the largest rate": {"trace_rate": "2147483647"},
    "one more than the largest rate": {"trace_rate": "2147483648"},
    "a cleared rate": {"trace_rate": None},
    "a count": {"trace_count": "4"},
    "any count": {"trace_count": "-1"},
    "a negative count": {"trace_count": "-2"},
    "a count out of range": {"trace_count": "-99999999999"},
    "a count as word": {"trace_count": "many"},
    "a count as number": {"trace_count": 1},
    "a cleared count": {"trace_count": None},
    "a count of nothing": {"trace_count": "0"},
    "a frequency": {"log_frequency": "9"},
    "a negative frequency": {"log_frequency": "-9"},
    "a frequency as word": {"log_frequency": "often"},
    "a frequency as number": {"log_frequency": 1.5},
    "a frequency out of range": {"log_frequency": "99999999999"},
    "a cleared frequency": {"log_frequency": None},
    "a file": {"trace_file": "/tmp/x"},
    "a cleared file": {"trace_file": None},
    "a file and a mistake": {"trace_rate": "x", "trace_file": ["/tmp/x"]},
    "two mistakes": {"log_frequency": "x", "trace_rate": "y"},
    "a mode": {"trace_mode": "opentelemetry"},
    "an unknown field": {"more": {"than": ["this"]}, "trace_rate": "11"},
}

#: Bodies that are not objects.
TEXTS = {
    "an empty body": "",
    "a list": "[]",
    "a number": "1",
    "null": "null",
    "broken JSON": '{"trace_rate":',
    "two values": "{} {}",
    "a key twice": '{"trace_rate":"21","trace_rate":"22"}',
}

#: The same for gRPC: the values of a field.
SETTINGS: dict[str, dict[str, list[str]]] = {
    "all": {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": ["2"],
        "trace_count": ["5"],
        "log_frequency": ["3"],
    },
    "off and on": {"trace_level": ["OFF", "TIMESTAMPS"]},
    "an unknown level": {"trace_level": ["MAX"]},
    "off": {"trace_level": ["OFF"]},
    "a cleared level": {"trace_level": []},
    "two rates": {"trace_rate": ["1", "2"]},
    "a rate as word": {"trace_rate": ["x"]},
    "a rate out of range": {"trace_rate": ["99999999999"]},
    "a negative rate": {"trace_rate": ["-1"]},
    "a rate far below nothing": {"trace_rate": ["-5"]},
    "a cleared rate": {"trace_rate": []},
    "a negative count": {"trace_count": ["-2"]},
    "any count": {"trace_count": ["-1"]},
    "a count as word": {"trace_count": ["x"]},
    "two counts": {"trace_count": ["1", "2"]},
    "a cleared count": {"trace_count": []},
    "two frequencies": {"log_frequency": ["1", "2"]},
    "a frequency as word": {"log_frequency": ["x"]},
    "a negative frequency": {"log_frequency": ["-9"]},
    "a cleared frequency": {"log_frequency": []},
    "a file": {"trace_file": ["/tmp/x"]},
    "a cleared file": {"trace_file": []},
    "an unknown field": {"more": ["1", "2"]},
}


def setting_message(model: str, settings: dict[str, list[str]]) -> dict[str, Any]:
    """A gRPC message."""
    values = {name: {"value": value} for name, value in settings.items()}
    return {"model_name": model, "settings": values}


def http_cases() -> Iterator[Case]:
    """Each body for all models and for one model, followed by the other model's settings."""
    for path in (GLOBAL, MODEL, "/v2/models/nope/trace/setting"):
        yield Case(f"GET {path}", "GET", path)
    bodies = {name: json.dumps(body) for name, body in BODIES.items()} | TEXTS
    for name, body in bodies.items():
        for path in (GLOBAL, MODEL):
            yield Case(f"{name} at {path}", "POST", path, body=body.encode())
        yield Case(f"{name} is seen elsewhere", "GET", "/v2/models/other/trace/setting")
    unknown = "/v2/models/nope/trace/setting"
    yield Case("a change of an unknown model", "POST", unknown, body=b'{"trace_rate":"1"}')
    yield Case("a mistake for an unknown model", "POST", unknown, body=b"{")
    yield Case("PUT", "PUT", GLOBAL)


def grpc_cases() -> Iterator[Case]:
    """The same over gRPC."""
    for model in ("", "m", "other"):
        yield Case(f"TraceSetting of '{model}'", rpc="TraceSetting", message={"model_name": model})
    for name, settings in SETTINGS.items():
        for model in ("", "m"):
            message = setting_message(model, settings)
            yield Case(f"{name} for '{model}'", rpc="TraceSetting", message=message)
    for name, settings in (("reading", {}), ("changing", SETTINGS["all"])):
        message = setting_message("nope", settings)
        yield Case(f"{name} an unknown model", rpc="TraceSetting", message=message)


def clearing_cases() -> Iterator[Case]:
    """Restores all of the initial settings."""
    for path in (MODEL, GLOBAL):
        names = ("trace_level", "trace_rate", "trace_count", "log_frequency")
        body = json.dumps(dict.fromkeys(names)).encode()
        yield Case(f"clearing all at {path}", "POST", path, body=body)


def trace_cases() -> list[Case]:
    """All cases."""
    return [*http_cases(), *clearing_cases(), *grpc_cases()]


def short_cases() -> list[Case]:
    """A few of them, for servers that are started in a different way."""
    names = ("nothing", "a rate", "all", "off", "a rate of nothing", "a cleared rate", "a file")
    chosen = [f"{name} at {path}" for name in names for path in (GLOBAL, MODEL)]
    wanted = {f"GET {GLOBAL}", *chosen, "TraceSetting of ''", "all for ''", "off for 'm'"}
    return [case for case in trace_cases() if case.name in wanted]
