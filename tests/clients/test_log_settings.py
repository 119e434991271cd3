"""Tests of clients that read and change the log settings while the server runs.

The responses themselves are compared with Triton's in tests/differential.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http

from conftest import StartServer
from server import Server

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
#: Beginnings of the lines of the verbose log, which has one for each request over HTTP.
REQUEST = {
    "default": re.compile(r"^I\d{4} [\d:.]+ \d+ \S+\] .*GET /v2/probe", re.MULTILINE),
    "ISO8601": re.compile(r"^[\d-]+T[\d:]+Z I \d+ \S+\] .*GET /v2/probe", re.MULTILINE),
}

@pytest.fixture
def server(start_server: StartServer, tmp_path: pathlib.Path) -> Iterator[Server]:
    """A server for this test only, because its log is changed."""
    with start_server(tmp_path) as running:
        yield running.wait_until_ready()


Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(params=["http", "grpc"])
def change(
    request: pytest.FixtureRequest,
    http_client: tritonclient.http.InferenceServerClient,
    grpc_client: tritonclient.grpc.InferenceServerClient,
) -> Change:
    """Changes settings through a client, and returns all of them."""
    if request.param == "http":
        return http_client.update_log_settings

    def by_grpc(settings: dict[str, Any]) -> dict[str, Any]:
        reply = grpc_client.update_log_settings(settings, as_json=True)
        values = {}
        for name, value in reply["settings"].items():
            (choice,) = value.values()
            values[name] = choice
        return values

    return by_grpc


def probes(server: Server, form: str) -> int:
    """Sends a request, and counts the lines about such requests."""
    server.get("/v2/probe")
    return len(REQUEST[form].findall(server.log()))


# row: PLOG-03 LOGF-04
def test_changes_hold_at_once_and_for_all_protocols(
    server: Server,
    change: Change,
    http_client: tritonclient.http.InferenceServerClient,
    grpc_client: tritonclient.grpc.InferenceServerClient,
) -> None:
    """A setting from one client determines what is logged, and every other client
    sees it."""
    assert http_client.get_log_settings() == DEFAULTS
    assert probes(server, "default") == 0
    changed = change({"log_verbose_level": 1, "log_warning": False})
    assert changed == {**DEFAULTS, "log_verbose_level": 1, "log_warning": False}
    assert http_client.get_log_settings() == changed
    over_grpc = grpc_client.get_log_settings(as_json=True)["settings"]
    assert over_grpc["log_verbose_level"] == {"uint32_param": 1}
    assert over_grpc["log_warning"] == {"bool_param": False}
    assert probes(server, "default") == 1
    change({"log_format": "ISO8601"})
    assert probes(server, "ISO8601") == 1
    change({"log_verbose_level": 0})
    assert probes(server, "ISO8601") == 1
    assert probes(server, "default") == 1


# row: PLOG-02
def test_a_mistake_keeps_the_changes_in_front_of_it(server: Server) -> None:
    """As in Triton, settings are changed in a fixed order until the first invalid
    one."""
    body = json.dumps({"log_format": "x", "log_info": False}).encode()
    assert server.request("POST", "/v2/logging", body).status == 503
    assert server.get("/v2/logging").json() == {**DEFAULTS, "log_info": False}
