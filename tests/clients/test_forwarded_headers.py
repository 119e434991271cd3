"""Tests of headers that become request parameters, as a backend receives them."""

from __future__ import annotations

import json
import pathlib

import numpy
import pytest
import tritonclient.grpc

from conftest import StartServer
from events import EventModel
from raw_http import Connection
from server import Server

#: Writes the names and values of the request's parameters before the response.
SOURCE = """
#define EXECUTE describe(instance, requests, count)
static TRITONSERVER_Error*
describe(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count)
{
  uint32_t parameters = 0;
  log_error(TRITONBACKEND_RequestParameterCount(requests[0], &parameters));
  for (uint32_t index = 0; index < parameters; ++index) {
    const char* key = "";
    TRITONSERVER_ParameterType type;
    const void* value = "";
    log_error(TRITONBACKEND_RequestParameter(requests[0], index, &key, &type, &value));
    char text[200];
    const int is_text = type == TRITONSERVER_PARAMETER_STRING;
    snprintf(text, sizeof text, "%s=%s", key, is_text ? (const char*)value : "");
    step("parameter", text);
  }
  return answer(instance, requests, count);
}
"""


def forwarded(server: Server, model: EventModel, lines: list[bytes]) -> list[str]:
    """The parameters of a request with these header lines."""
    before = len(model.events("parameter"))
    body = json.dumps(model.request()).encode()
    head = [b"POST /v2/models/m/infer HTTP/1.1", b"Host: x", *lines]
    with Connection(server) as connection:
        connection.send(b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body]))
        status, text = connection.read_response() or (0, b"")
    assert status == 200, text
    return model.events("parameter")[before:]


# row: HTTP-25
def test_values_are_forwarded_as_they_were_sent(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Blanks and tabs after a value belong to it, and an empty value is a blank."""
    model = EventModel(tmp_path, "m", source=SOURCE)
    with start_server(tmp_path, "--http-header-forward-pattern=MY_.*") as server:
        server.wait_until_ready()
        for line, expected in [
            (b"MY_Header: abc ", "MY_Header=abc "),
            (b"MY_Header:abc", "MY_Header=abc"),
            (b"my_header:   a  b  ", "my_header=a  b  "),
            (b"MY_Tab: \ta\tb\t ", "MY_Tab=\ta\tb\t "),
            (b"MY_Empty:", "MY_Empty= "),
            (b"MY_Blank:   ", "MY_Blank= "),
        ]:
            assert forwarded(server, model, [line]) == [expected]
        both = forwarded(server, model, [b"MY_Two: 1", b"my_two: 2", b"other: 3"])
        assert both == ["MY_Two=1", "my_two=2"]
        # It isn't UTF-8, but is accepted; docs/differences.md says how it is passed on.
        (value,) = forwarded(server, model, [b"MY_Bytes: \xffa\xfe"])
        sent = "\udcffa\udcfe" if server.is_triton else "\ufffda\ufffd"
        assert value == f"MY_Bytes={sent}"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(?-i)MY_.*", ["MY_Header=1"]),
        ("(?-i)my_.*", ["my_header=2"]),
        ("my_.*", ["MY_Header=1", "my_header=2"]),
        (".*iority|Triton_.*", ["Priority=3", "Triton_x=4"]),
    ],
)
# row: HTTP-25
def test_patterns_see_names_as_they_were_sent(
    start_server: StartServer, tmp_path: pathlib.Path, pattern: str, expected: list[str]
) -> None:
    """Only the exact names in lower case are reserved."""
    model = EventModel(tmp_path, "m", source=SOURCE)
    lines = [b"MY_Header: 1", b"my_header: 2", b"Priority: 3", b"Triton_x: 4"]
    with start_server(tmp_path, f"--http-header-forward-pattern={pattern}") as server:
        assert forwarded(server.wait_until_ready(), model, lines) == expected


# row: PPAR-04
def test_metadata_of_grpc_is_forwarded(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Metadata names are in lower case, and names that don't match aren't passed on."""
    model = EventModel(tmp_path, "m", source=SOURCE)
    with start_server(tmp_path, "--grpc-header-forward-pattern=my_.*") as server:
        server.wait_until_ready()
        tensor = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
        tensor.set_data_from_numpy(numpy.array([5], numpy.int32))
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.infer("m", [tensor], headers={"my_name": "abc", "other": "x"})
        assert model.events("parameter") == ["my_name=abc"]


# row: GEN-07
def test_generate_forwards_no_headers(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """A member of the request is a parameter, but a header isn't."""
    model = EventModel(tmp_path, "m", source=SOURCE)
    with start_server(tmp_path, "--http-header-forward-pattern=MY_.*") as server:
        server.wait_until_ready()
        body = b'{"INPUT0": 5, "member": "x"}'
        reply = server.request("POST", "/v2/models/m/generate", body, {"MY_Header": "abc"})
        assert reply.json()["OUTPUT0"] == 5
        assert model.events("parameter") == ["member=x"]
