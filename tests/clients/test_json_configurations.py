"""Tests of configurations in JSON, in all the loose forms that the protocol buffers parser
accepts."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import StartServer
from server import Server

TENSOR = '[{"name":"%s","data_type":"TYPE_FP32","dims":[4]}]'
PLAIN = (
    '{"backend":"identity","max_batch_size":4,'
    f'"input":{TENSOR % "INPUT0"},"output":{TENSOR % "OUTPUT0"}%s}}'
)

#: What follows the plain configuration, and a part of the configuration that it makes.
TAKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "a key without quotes": (
        ",dynamic_batching:{max_queue_delay_microseconds:5}",
        {"dynamic_batching": {"max_queue_delay_microseconds": 5}},
    ),
    "single quotes": (",'parameters':{'k':{'string_value':'v'}}", {
        "parameters": {"k": {"string_value": "v"}}
    }),
    "commas at the end": (
        ',"dynamic_batching":{"preferred_batch_size":[1,2,],},',
        {"dynamic_batching": {"preferred_batch_size": [1, 2]}},
    ),
    "camel case": (
        ',"dynamicBatching":{"maxQueueDelayMicroseconds":"7"}',
        {"dynamic_batching": {"max_queue_delay_microseconds": 7}},
    ),
    "one value for a list": (
        ',"dynamic_batching":{"preferred_batch_size":3}',
        {"dynamic_batching": {"preferred_batch_size": [3]}},
    ),
    "lists in a list, and null": (
        ',"dynamic_batching":{"preferred_batch_size":[[2],null]}',
        {"dynamic_batching": {"preferred_batch_size": [2]}},
    ),
    "a boolean as a string": (
        ',"dynamic_batching":{"preserve_ordering":"true"}',
        {"dynamic_batching": {"preserve_ordering": True}},
    ),
    "null for a message": (',"dynamic_batching":null', {}),
    "null in a map": (',"parameters":{"k":null}', {"parameters": {"k": {"string_value": ""}}}),
    "a number of an enumeration as a string": (
        ',"instance_group":[{"kind":"2"}]',
        {"instance_group": [{"kind": "KIND_CPU"}]},
    ),
    "an unusual escape": (
        ',"parameters":{"k":{"string_value":"a\\x41\t"}}',
        {"parameters": {"k": {"string_value": "ax41\t"}}},
    ),
}

#: What no reader takes.
REFUSED = {
    "no comma": ' "dynamic_batching":{}',
    "an unknown field": ',"colour":1',
    "a number as a key": ',"parameters":{1:{"string_value":"v"}}',
    "a leading zero": ',"dynamic_batching":{"preferred_batch_size":[04]}',
    "a part of a number": ',"dynamic_batching":{"preferred_batch_size":[1.5]}',
    "two of a oneof": ',"dynamic_batching":{},"sequence_batching":{}',
    "a comment": " // no",
}


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with a model that has no configuration of its own."""
    repository: pathlib.Path = tmp_path_factory.mktemp("json")
    (repository / "m" / "1").mkdir(parents=True)
    with start_server(repository, "--model-control-mode=explicit") as running:
        yield running.wait_until_ready()


def load(server: Server, config: str) -> tuple[int, str]:
    """Loads the model with a configuration."""
    body = json.dumps({"parameters": {"config": config}}).encode()
    reply = server.request("POST", "/v2/repository/models/m/load", body)
    return reply.status, "" if reply.status == 200 else reply.error()


def has(whole: Any, part: Any) -> bool:
    """Returns true if the part occurs in the whole."""
    if isinstance(part, dict):
        return all(key in whole and has(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(has, whole, part))
    return bool(whole == part)


@pytest.mark.parametrize("name", TAKEN)
# row: CFG-01
def test_loose_json_is_taken(server: Server, name: str) -> None:
    """The model is loaded with the configuration's values."""
    text, part = TAKEN[name]
    assert load(server, PLAIN % text) == (200, "")
    assert has(server.get("/v2/models/m/config").json(), part)


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_json_is_refused(server: Server, name: str) -> None:
    """The text is Triton's, and the log says what is wrong."""
    expected = "failed to load 'm', failed to poll from model repository"
    assert load(server, PLAIN % REFUSED[name]) == (500, expected)
