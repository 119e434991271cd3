"""Log settings: reading them, changing them, and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cases import Case

#: Bodies over HTTP. The settings are read after each.
GOOD: list[Any] = [
    {},
    {"log_info": False},
    {"log_info": True, "log_warning": False, "log_error": False},
    {"log_warning": True, "log_error": True},
    {"log_verbose_level": 3},
    {"log_verbose_level": 0, "log_format": "ISO8601"},
    {"log_format": "default"},
    {"log_info": None, "log_file": None, "log_format": None, "log_verbose_level": None},
    {"unknown": 1, "log_infos": True},
    {"log_verbose_level": 2**31},
    {"log_verbose_level": 2**32 + 1},
    {"log_verbose_level": 2**64 - 1},
    {"log_verbose_level": 0},
]
BAD: list[Any] = [
    {"log_file": "/tmp/x"},
    {"log_file": 1},
    {"log_file": "", "log_info": False},
    {"log_info": 1},
    {"log_info": "false"},
    {"log_warning": {}},
    {"log_error": []},
    {"log_verbose_level": -1},
    {"log_verbose_level": "1"},
    {"log_verbose_level": 1.0},
    {"log_verbose_level": True},
    {"log_verbose_level": 2**64},
    {"log_format": "bad"},
    {"log_format": ""},
    {"log_format": "iso8601"},
    {"log_format": 1},
    {"log_format": "bad", "log_info": False, "log_verbose_level": 2},
    {"log_warning": 1, "log_info": True, "log_error": False},
]
TEXTS = [
    "",
    " ",
    "{",
    "[]",
    "[1]",
    "null",
    "1",
    '"log_info"',
    '{"log_info":false,"log_info":true}',
    '{"log_info":true,"log_info":1}',
    '{"log_info":true} x',
    "{log_info:true}",
    "{'log_info':true}",
    '{"log_info":tru}',
    '{"log_info":fals',
    '{"log_info":nul1}',
    '{"log_info":Nan}',
    '{"log_info":Infinit}',
    '{"log_info":-Inf}',
]


def http_cases() -> Iterator[Case]:
    """A request over HTTP."""
    yield Case("the settings", "GET", "/v2/logging")
    yield Case("the settings, with a body", "GET", "/v2/logging", body=b'{"log_info":false}')
    bodies = [*map(json.dumps, [*GOOD, *BAD]), *TEXTS]
    for body in bodies:
        yield Case(f"POST {body}", "POST", "/v2/logging", body=body.encode())
        yield Case(f"the settings after {body}", "GET", "/v2/logging")
    for method in ["PUT", "DELETE", "PATCH"]:
        yield Case(f"{method} of the settings", method, "/v2/logging")
    yield Case("a path below", "GET", "/v2/logging/x")
    yield Case("a slash behind", "GET", "/v2/logging/")


def setting(choice: str, value: Any) -> dict[str, Any]:
    """A value of a setting over gRPC."""
    return {choice: value}


def grpc_cases() -> Iterator[Case]:
    """A request over gRPC."""
    yes, no = setting("bool_param", True), setting("bool_param", False)
    settings: list[dict[str, Any]] = [
        {},
        {"log_info": no},
        {"log_info": yes, "log_warning": no, "log_error": no},
        {"log_warning": yes, "log_error": yes},
        {"log_verbose_level": setting("uint32_param", 2)},
        {"log_verbose_level": setting("uint32_param", 2**32 - 1)},
        {"log_verbose_level": setting("uint32_param", 0)},
        {"log_format": setting("string_param", "ISO8601")},
        {"log_format": setting("string_param", "default")},
        {"unknown": yes, "": no},
        {"log_file": setting("string_param", "/tmp/x")},
        {"log_file": setting("string_param", ""), "log_info": no},
        {"log_file": {}},
        {"log_info": {}},
        {"log_info": setting("uint32_param", 1)},
        {"log_warning": setting("string_param", "true")},
        {"log_error": {}},
        {"log_verbose_level": yes},
        {"log_verbose_level": setting("string_param", "1")},
        {"log_format": yes},
        {"log_format": {}},
        {"log_format": setting("string_param", "bad")},
        {"log_format": setting("string_param", "")},
        {"log_info": no, "log_error": setting("uint32_param", 1)},
        {"log_format": setting("string_param", "bad"), "log_info": yes},
    ]
    for number, choices in enumerate(settings):
        message = {"settings": choices}
        name = f"{number}: {json.dumps(choices)}"
        yield Case(f"change {name}", rpc="LogSettings", message=message)
        yield Case(f"settings after {name}", rpc="LogSettings", message={})


def log_cases() -> list[Case]:
    """All cases."""
    return [*http_cases(), *grpc_cases()]
