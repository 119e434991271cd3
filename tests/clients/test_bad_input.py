"""Broken and hostile requests are refused, and the server keeps running."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from conftest import StartServer
from raw_http import Connection, get, post
from server import HEADER_LENGTH, Reply, Server

MEBIBYTE = 1 << 20
ROW = list(range(16))
INFER = "/v2/models/simple/infer"


def galatea_only(value: Any) -> Any:
    """Marks a case that Triton accepts, or that crashes it."""
    return pytest.param(value, marks=pytest.mark.galatea_only)


@pytest.fixture(scope="module")
def current_server(
    start_server: StartServer, models: pathlib.Path
) -> Iterator[Callable[[], Server]]:
    """The server of this file; starts a new one if a test has ended the previous one."""
    with contextlib.ExitStack() as running:
        servers: list[Server] = []

        def get_server() -> Server:
            if not servers or servers[-1].process.poll() is not None:
                server = running.enter_context(start_server(models))
                servers.append(server.wait_until_ready())
            return servers[-1]

        yield get_server


@pytest.fixture
def server(current_server: Callable[[], Server]) -> Server:
    """A running server, so that one crash fails only one test."""
    return current_server()


@pytest.fixture(autouse=True)
def server_survives(server: Server) -> Iterator[None]:
    """Checks after each test that the server still responds and the model still works."""
    yield
    assert server.process.poll() is None, "the server has ended"
    assert server.get("/v2/health/live").status == 200
    assert server.infer("simple", good_request()).status == 200


def good_request() -> dict[str, Any]:
    """A correct request to the model `simple`."""
    return {
        "inputs": [
            {"name": name, "shape": [1, 16], "datatype": "INT32", "data": ROW}
            for name in ("INPUT0", "INPUT1")
        ]
    }


def changed(**fields: Any) -> dict[str, Any]:
    """The request with fields of its first input replaced, or removed if the value is None."""
    request = good_request()
    for name, value in fields.items():
        if value is None:
            del request["inputs"][0][name]
        else:
            request["inputs"][0][name] = value
    return request


def with_inputs(*names: str) -> dict[str, Any]:
    """The request with these inputs."""
    one = good_request()["inputs"][0]
    return {"inputs": [{**one, "name": name} for name in names]}


def with_rows(*rows: int) -> dict[str, Any]:
    """The request with this number of rows in each input."""
    request = good_request()
    for tensor, count in zip(request["inputs"], rows, strict=True):
        tensor.update(shape=[count, 16], data=ROW * count)
    return request


# JSON that is malformed or has members of wrong types.
MALFORMED = 500
# Both servers return 500 for values of `data` that don't fit their tensor.
DATA = 500

# The request, the status, and a part of the message.
INVALID_REQUESTS: dict[str, tuple[Any, int, str]] = {
    "no inputs": ({"inputs": []}, 400, "expected 2 inputs but got 0 inputs"),
    "no key inputs": ({}, MALFORMED, "inputs"),
    "input missing": (with_inputs("INPUT0"), 400, "INPUT1"),
    "input too many": (
        with_inputs("INPUT0", "INPUT1", "INPUT2"),
        400,
        "expected 2 inputs but got 3 inputs",
    ),
    "unknown input": (with_inputs("INPUT0", "INPUT9"), 400, "INPUT9"),
    "duplicate input": (with_inputs("INPUT0", "INPUT0"), 400, "already exists"),
    "unknown output": ({**good_request(), "outputs": [{"name": "OUTPUT9"}]}, 400, "OUTPUT9"),
    "wrong datatype": (changed(datatype="FP32"), 400, "data-type is 'FP32'"),
    "unknown datatype": (changed(datatype="FP33"), 400, "datatype"),
    "lower-case datatype": (changed(datatype="int32"), 400, "datatype"),
    "wrong dimension": (
        changed(shape=[1, 15], data=ROW[:15]),
        400,
        "Expected [-1,16], got [1,15]",
    ),
    "too few dimensions": (changed(shape=[16]), 400, ""),
    "too many dimensions": (changed(shape=[1, 16, 1]), 400, "unexpected shape"),
    "batch too large": (with_rows(9, 9), 400, "batch-size must be <= 8 for 'simple'"),
    "different batches": (with_rows(2, 1), 400, "batch size does not match other inputs"),
    "negative dimension": (changed(shape=[1, -16]), MALFORMED, ""),
    "negative batch": (changed(shape=[-1, 16]), MALFORMED, ""),
    "shape without dimensions": (changed(shape=[], data=[1]), 400, ""),
    "shape is no list": (changed(shape=16), MALFORMED, ""),
    "shape of strings": (changed(shape=["1", "16"]), MALFORMED, ""),
    "shape of fractions": (changed(shape=[1.0, 16.5]), MALFORMED, ""),
    "shape beyond 32 bits": (changed(shape=[2**31, 1]), 400, ""),
    "shape whose product overflows": (changed(shape=[2**62, 4]), 400, ""),
    "shape beyond 64 bits": (changed(shape=[2**64, 1]), MALFORMED, ""),
    "shape that wraps to nothing": (changed(shape=[1, 2**33, 2**33]), 400, ""),
    "shape with two hundred dimensions": (changed(shape=[1] * 200), DATA, ""),
    "too few elements": (changed(data=ROW[:15]), 500, "shape"),
    "too many elements": (changed(data=[*ROW, 16]), 500, "shape"),
    "strings for numbers": (changed(data=[str(number) for number in ROW]), DATA, ""),
    "null for numbers": (changed(data=[None] * 16), DATA, ""),
    "objects for numbers": (changed(data=[{}] * 16), DATA, ""),
    "data is no list": (changed(data=1), MALFORMED, ""),
    "data is a string": (changed(data="0123456789abcdef"), MALFORMED, ""),
    "no data": (changed(data=None), 400, ""),
    "no shape": (changed(shape=None), MALFORMED, "shape"),
    "no name": (changed(name=None), MALFORMED, "name"),
    "no datatype": (changed(datatype=None), MALFORMED, "datatype"),
    "name is no string": (changed(name=7), MALFORMED, ""),
    "inputs is no list": ({"inputs": {}}, MALFORMED, ""),
    "inputs of numbers": ({"inputs": [1, 2]}, 400, ""),
    "outputs is no list": ({**good_request(), "outputs": 1}, MALFORMED, ""),
    "id is no string": ({**good_request(), "id": 7}, MALFORMED, ""),
    "parameters is no object": ({**good_request(), "parameters": []}, MALFORMED, ""),
    "reserved parameter": (
        {**good_request(), "parameters": {"triton_x": 1}},
        400,
        "triton_",
    ),
    "data and binary data": (
        changed(parameters={"binary_data_size": 64}),
        400,
        "",
    ),
    "negative binary size": (
        changed(data=None, parameters={"binary_data_size": -1}),
        MALFORMED,
        "",
    ),
    "a list": ([], MALFORMED, ""),
    "a number": (1, MALFORMED, ""),
}


@pytest.mark.parametrize("name", INVALID_REQUESTS)
# row: HTTP-03 HTTP-10 PPAR-03
def test_invalid_requests(server: Server, name: str) -> None:
    """The response has the status, an error object and a message that names the error."""
    request, status, text = INVALID_REQUESTS[name]
    reply = server.infer("simple", request)
    allowed = (400, 500) if server.is_triton else (status,)
    assert reply.status in allowed, reply
    assert text in reply.error()


@pytest.mark.galatea_only
def test_duplicate_outputs(server: Server) -> None:
    """Triton has refused them since 2026."""
    reply = server.infer("simple", {**good_request(), "outputs": [{"name": "OUTPUT0"}] * 2})
    assert reply.status == 400
    assert "OUTPUT0" in reply.error()


# row: HTTP-22 HTTP-28
def test_messages_name_the_request(server: Server) -> None:
    """Errors during admission contain the client's ID."""
    reply = server.infer("simple", {"inputs": []})
    assert reply.error().startswith("[request id: <id_unknown>] ")
    reply = server.infer("simple", {"id": "a7", "inputs": []})
    assert reply.error().startswith("[request id: a7] ")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"inputs":',
        b'{"inputs":[{"name":"INPUT0"',
        b"nonsense",
        b"\x00" * 100,
        b"\xff\xfe{}",
        b'{"inputs":[]} trailing',
        b'{"inputs":[]}{}',
        galatea_only(b'{"id":"\xff\xfe","inputs":[]}'),
        b'{"id":"\\ud800","inputs":[]}',
        b'{"inputs":[],}',
        b"{'inputs':[]}",
        b'{"inputs":[{"name":"INPUT0","shape":[1e400,16],"datatype":"INT32","data":[1]}]}',
        b'{"id":"' + b"x" * MEBIBYTE,
    ],
)
def test_bodies_that_are_not_requests(server: Server, body: bytes) -> None:
    """Broken JSON and broken UTF-8 are refused."""
    reply = server.infer("simple", body)
    if not server.is_triton:
        reply.check_refused()


def first_element_or_error(reply: Reply) -> Any:
    """The only element of the response, or the status and the text of the error."""
    if reply.status != 200:
        return reply.status, reply.error()
    (output,) = json.loads(reply.body)["outputs"]
    (element,) = output["data"]
    return element


NO_JSON = "failed to parse the request JSON buffer: "
NOT_SIGNED = (DATA, "attempt to access JSON non-signed-integer as signed-integer")
NO_VALUE = (MALFORMED, NO_JSON + "Invalid value.")
TOO_BIG = (MALFORMED, NO_JSON + "Number too big to be stored in double.")
NO_COMMA = (MALFORMED, NO_JSON + "Missing a comma or ']' after an array element.")
#: The text of a number: its value as FP32 and as INT32.
ODD_NUMBERS: dict[str, tuple[Any, Any]] = {
    "NaN": (math.nan, NOT_SIGNED),
    "Infinity": (math.inf, NOT_SIGNED),
    "-Infinity": (-math.inf, NOT_SIGNED),
    "nan": (NO_VALUE, NO_VALUE),
    "1e400": (TOO_BIG, TOO_BIG),
    "-1e400": (TOO_BIG, TOO_BIG),
    "1e-400": (0.0, NOT_SIGNED),
    "0x10": (NO_COMMA, NO_COMMA),
    "1_000": (NO_COMMA, NO_COMMA),
}


def check_element(server: Server, reply: Reply, expected: Any) -> None:
    """Checks Galatea's element or text exactly, and that Triton's is well formed."""
    found = first_element_or_error(reply)
    if isinstance(expected, tuple):
        status, text = expected
        assert found[0] in ((400, 500) if server.is_triton else (status,)), found
        assert text in found[1] or server.is_triton
    elif not server.is_triton:
        numpy.testing.assert_equal(found, expected)


@pytest.mark.parametrize("text", ODD_NUMBERS)
@pytest.mark.parametrize(
    "model, datatype", [("identity_fp32", "FP32"), ("identity_int32", "INT32")]
)
def test_number_syntax_beyond_json(server: Server, model: str, datatype: str, text: str) -> None:
    """The server accepts exactly the numbers that Triton's parser accepts."""
    body = (
        f'{{"inputs":[{{"name":"INPUT0","shape":[1,1],"datatype":"{datatype}","data":[{text}]}}]}}'
    )
    expected = ODD_NUMBERS[text][0 if datatype == "FP32" else 1]
    check_element(server, server.infer(model, body.encode()), expected)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (2**31, -(2**31)),
        (-(2**31) - 1, 2**31 - 1),
        (2**63, NOT_SIGNED),
        (2**64, NOT_SIGNED),
        (10**400, TOO_BIG),
        (1.5, NOT_SIGNED),
        (True, NOT_SIGNED),
    ],
)
# row: HTTP-13
def test_numbers_outside_of_their_datatype(server: Server, number: Any, expected: Any) -> None:
    """Numbers of up to 64 bits are truncated; larger numbers are refused."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [number]}
    check_element(server, server.infer("identity_int32", {"inputs": [tensor]}), expected)


@pytest.mark.galatea_only
@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("depth", [101, 100_000])
# row: HTTP-12
def test_deep_nesting(
    server: Server, opening: bytes, closing: bytes, is_closed: bool, depth: int
) -> None:
    """The parser's stack does not depend on the depth of a client's JSON."""
    nested = opening * depth + b"1" + (closing * depth if is_closed else b"")
    tail = b"}]}" if is_closed else b""
    head = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"INT32","data":'
    too_deep = "JSON nesting depth exceeds maximum allowed limit (100)"
    # An object with 101 levels is parsed completely before it turns out not to be a request.
    no_request = "non-existing object member 'inputs'" if is_closed else "Missing a comma or '}'"
    for body, text in (
        (nested, no_request if opening != b"[" and depth == 101 else too_deep),
        (head + nested + tail, too_deep),
        (b'{"parameters":{"a":' + nested, "parameter 'a' has invalid type"),
    ):
        reply = server.infer("identity_int32", body)
        assert text in reply.check_refused()


@pytest.mark.galatea_only
@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/v2/repository/index", 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
        ("/v2/models/simple/generate", 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
        ("/v2/logging", 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
        ("/v2/trace/setting", 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
    ],
)
def test_deep_nesting_elsewhere(server: Server, path: str, status: int, text: str) -> None:
    """Every handler that reads JSON refuses it, and so do unknown paths."""
    reply = server.request("POST", path, b"[" * 250_000)
    assert reply.status == status
    assert text in reply.error()


def binary_request(sizes: tuple[Any, Any]) -> bytes:
    """The JSON part of a request with two binary inputs."""
    request = good_request()
    for tensor, size in zip(request["inputs"], sizes, strict=True):
        del tensor["data"]
        tensor["parameters"] = {"binary_data_size": size}
    return json.dumps(request).encode()


@pytest.mark.parametrize(
    "sizes, length",
    [
        ((64, 64), 127),
        ((64, 64), 129),
        ((64, 64), 0),
        ((60, 64), 124),
        ((68, 64), 132),
        ((0, 64), 64),
        ((2**31, 64), 128),
        ((2**63 - 1, 64), 128),
        ((2**64 - 1, 65), 128),
        ((2**64, 64), 128),
        ((-64, 64), 128),
        ((64.5, 64), 128),
        (("64", 64), 128),
        ((True, 64), 128),
        (([], 64), 128),
    ],
)
def test_binary_sizes_that_do_not_fit(server: Server, sizes: Any, length: int) -> None:
    """A size is checked against the available bytes and against the shape."""
    reply = server.infer("simple", binary_request(sizes), b"\x00" * length)
    if not server.is_triton:
        reply.check_refused()


@pytest.mark.parametrize(
    "value",
    [
        "99999999999",
        "99999999999999999999999",
        "-1",
        "x",
        "",
        "1e3",
        "12 34",
        "0x10",
        "+1",
        "4294967296",
        "2147483647",
        "1000000",
    ],
)
# row: HTTP-15
def test_invalid_header_lengths(server: Server, value: str) -> None:
    """The length of the JSON part has to be a number within the body."""
    reply = server.infer("simple", good_request(), headers={HEADER_LENGTH: value})
    if not server.is_triton:
        reply.check_refused()


@pytest.mark.parametrize("offset", [-5, -1, 1, 5])
# row: HTTP-15
def test_header_lengths_that_do_not_match_the_body(server: Server, offset: int) -> None:
    """JSON and tensors may not overlap or leave a gap."""
    text = binary_request((64, 64))
    headers = {HEADER_LENGTH: str(len(text) + offset)}
    reply = server.infer("simple", text + b"\x00" * 128, headers=headers)
    if not server.is_triton:
        reply.check_refused()


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x01", b"\x05\x00\x00\x00ab", b"\xff\xff\xff\xff", b"\x01\x00\x00\x00a" * 3],
    ids=["empty", "length cut", "string cut", "length of 4 GB", "string too many"],
)
@pytest.mark.parametrize("model", ["identity_bytes", "onnx_identity_bytes"])
def test_bad_strings(server: Server, model: str, raw: bytes) -> None:
    """The lengths inside BYTES are checked before they are used."""
    tensor = {"name": "INPUT0", "shape": [1, 2], "datatype": "BYTES"}
    document = {"inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}]}
    reply = server.infer(model, document, raw)
    assert reply.status == 400
    reply.error()


@pytest.mark.galatea_only
# row: HTTP-21
def test_body_over_the_limit(server: Server) -> None:
    """64 MiB is the default; the message names the flag."""
    tensor = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"BYTES","data":["'
    reply = server.infer("identity_bytes", tensor + b"x" * (64 * MEBIBYTE + 1) + b'"]}]}')
    assert reply.status == 400
    assert "http-max-input-size" in reply.error()


@pytest.mark.galatea_only
# row: HTTP-21
def test_raw_body_over_the_limit(server: Server) -> None:
    """The limit applies to tensors too."""
    body = bytes(64 * MEBIBYTE + 4)
    reply = server.infer("identity_fp32", body, headers={HEADER_LENGTH: "0"})
    assert reply.status == 400
    assert "http-max-input-size" in reply.error()


def test_declared_length_over_the_limit(server: Server) -> None:
    """A length that does not fit into memory is refused without waiting for the body."""
    for length in (2**40, 2**63 - 1, 2**64, 10**30):
        with Connection(server) as connection:
            connection.send(
                f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
            )
            connection.send_while_accepted([b"{" * 1000])
            with contextlib.suppress(OSError):
                connection.finish_sending()
            response = connection.read_response()
            allowed = (400, 413) if server.is_triton else (400,)
            assert response is None or response[0] in allowed


@pytest.mark.galatea_only
@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_compressed_bodies_that_inflate(server: Server, compress: Any) -> None:
    """The limit applies to the inflated size."""
    coding = "gzip" if compress is gzip.compress else "deflate"
    body = compress(b" " * (256 * MEBIBYTE))
    reply = server.infer("simple", body, headers={"Content-Encoding": coding})
    assert reply.status in (400, 413)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "body", [b"", b"nonsense", gzip.compress(b"{}", mtime=0)[:-9], zlib.compress(b"{}")[:-4]]
)
def test_broken_compressed_bodies(server: Server, coding: str, body: bytes) -> None:
    """Bytes that can't be inflated are always a client error."""
    for _ in range(20):
        reply = server.infer("simple", body, headers={"Content-Encoding": coding})
        assert reply.status in (400, 500)


@pytest.mark.galatea_only
def test_a_million_tiny_chunks(server: Server) -> None:
    """Each chunk of a body has a cost, so their number is limited."""
    head = get(INFER, "Transfer-Encoding: chunked").replace(b"GET", b"POST", 1)
    block = b"1\r\nA\r\n" * 10_000
    with Connection(server) as connection:
        connection.send(head)
        connection.send_while_accepted([block] * 100)
        connection.send_while_accepted([b"0\r\n\r\n"])
        response = connection.read_response()
        assert response is None or response[0] == 400


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n" * 100,
        b"GET\r\n\r\n",
        galatea_only(b"GET /v2 HTTP/9.9\r\n\r\n"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        b"Content-Length: 5\r\n\r\nabcde",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"ffffffffffffffff\r\n",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"zz\r\n",
        galatea_only(b"GET /v2 HTTP/1.1\r\n" + b"x: y\r\n" * 10_000 + b"\r\n"),
        b"GET /v2 HTTP/1.1\r\nx: " + b"y" * MEBIBYTE + b"\r\n\r\n",
        b"GET /" + b"a" * MEBIBYTE + b" HTTP/1.1\r\n\r\n",
        b"GET /v2/models/%00/ready HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v2/models/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_requests_that_are_not_http(server: Server, request_bytes: bytes) -> None:
    """The request is refused or ignored. The connection ends, but the server doesn't."""
    with Connection(server) as connection:
        connection.send_while_accepted([request_bytes])
        try:
            connection.finish_sending()
        except OSError:
            return
        response = connection.read_response()
        assert response is None or response[0] >= 400


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "%2e%2e",
        "..%2f..%2fetc",
        "a%2fb",
        "%00",
        "%0a%5bE%5d%20forged",
        galatea_only("a" * 5000),
        "$(id)",
        ";",
    ],
)
def test_model_names_are_only_names(server: Server, name: str) -> None:
    """No name reaches a file, a shell or a line of the log."""
    for method, operation in (("GET", ""), ("GET", "/config"), ("POST", "/infer")):
        body = b"{}" if method == "POST" else None
        status = server.request(method, f"/v2/models/{name}{operation}", body).status
        assert status in ((400, 404, 414) if server.is_triton else (404,))
    assert "\n[E] forged" not in server.log()


@pytest.mark.parametrize(
    "value", [galatea_only("gzip;q=1e9999"), "gzip;q=x", ";;;,,,", "q=1", "*;q=-1", "gzip;q="]
)
def test_unusual_accept_encodings(server: Server, value: str) -> None:
    """Malformed values are ignored."""
    reply = server.infer("simple", good_request(), headers={"Accept-Encoding": value})
    assert reply.status == 200


def test_a_hundred_thousand_outputs(server: Server) -> None:
    """A request may name each output only once."""
    outputs = [{"name": f"OUTPUT{number}"} for number in range(100_000)]
    reply = server.infer("simple", {**good_request(), "outputs": outputs})
    assert reply.status == 400


#: The content of OUTPUT0: a tensor, or its elements as classes, the largest first.
SUMS = ("INT32", [2 * number for number in ROW])
ALL_CLASSES = ("BYTES", [f"{2 * number}:{number}" for number in reversed(ROW)])


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, SUMS),
        (10**7, ALL_CLASSES),
        (2**63, SUMS),
        (-1, None),
        (2**64, None),
        ("2", None),
        (1.5, None),
        ([], None),
    ],
)
def test_unusual_class_counts(
    server: Server, count: Any, expected: tuple[str, list] | None
) -> None:
    """0 requests no classes, a number that is too large requests all, and 32 bits count; other
    values are refused."""
    output = {"name": "OUTPUT0", "parameters": {"classification": count}}
    reply = server.infer("simple", {**good_request(), "outputs": [output]})
    if server.is_triton:
        assert reply.status in (200, 400, 500)
        assert json.loads(reply.body)
    elif expected is None:
        text = "Unable to set 'classification': attempt to access JSON non-unsigned-integer"
        assert text in reply.check_refused()
    else:
        (shown,) = reply.json()["outputs"]
        assert (shown["datatype"], shown["data"]) == expected


@pytest.mark.parametrize(
    "model", [galatea_only("identity_bytes"), "identity_fp16", "identity_bf16"]
)
# row: CLS-05
def test_datatypes_without_classification(server: Server, model: str) -> None:
    """Strings and half floats can't be classified."""
    datatype, size = {"bytes": ("BYTES", 5), "fp16": ("FP16", 2), "bf16": ("BF16", 2)}[
        model.removeprefix("identity_")
    ]
    raw = b"\x01\x00\x00\x00a" if datatype == "BYTES" else b"\x00\x00"
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": datatype}
    document = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": size}}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}],
    }
    reply = server.infer(model, document, raw)
    assert reply.status in (400, 500)
    assert "unsupported" in reply.error() or "class" in reply.error()


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/v2/logging", b'{"log_file":"GALATEA_TEST_FILE"}', 501),
        ("/v2/trace/setting", b'{"trace_file":["GALATEA_TEST_FILE"]}', 501),
        ("/v2/repository/models/simple/load", b'{"parameters":{"file:../../x":"AAAA"}}', 503),
        (
            "/v2/systemsharedmemory/region/a/register",
            b'{"key":"/a","offset":0,"byte_size":8}',
            501,
        ),
        ("/v2/cudasharedmemory/region/a/register", b'{"raw_handle":{"b64":"AAAA"}}', 501),
        ("/v2/repository/models/simple/unload", b"{}", 503),
    ],
)
def test_management_is_closed(
    server: Server, tmp_path: pathlib.Path, path: str, body: bytes, status: int
) -> None:
    """Destinations, the repository and shared memory are fixed at startup."""
    target = tmp_path / "written"
    body = body.replace(b"GALATEA_TEST_FILE", str(target).encode())
    reply = server.request("POST", path, body)
    assert reply.status == status or (server.is_triton and reply.status >= 400)
    assert not target.exists()


def test_unregistered_shared_memory(server: Server) -> None:
    """A region that is not registered."""
    request = changed(
        data=None, parameters={"shared_memory_region": "absent", "shared_memory_byte_size": 64}
    )
    reply = server.infer("simple", request)
    assert reply.status == 404
    assert reply.error() == "Unable to find shared memory region: 'absent'"


def test_truncated_requests(server: Server) -> None:
    """Bodies that end before their stated length, at every kind of position."""
    text = binary_request((64, 64))
    request = post(INFER, text + b"\x00" * 128, f"{HEADER_LENGTH}: {len(text)}")
    for cut in range(1, len(request), 37):
        with Connection(server) as connection:
            connection.send(request[:cut])
            connection.finish_sending()
            response = connection.read_response()
            assert response is None or response[0] >= 400


def resident_bytes(server: Server) -> int:
    """The memory that the server's process uses."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.mark.galatea_only
def test_refusals_leave_no_memory_behind(server: Server) -> None:
    """Repeating the same bad requests doesn't increase memory."""
    bodies = [
        b"{",
        b"[" * 100_000,
        json.dumps(changed(shape=[2**62, 4])).encode(),
        b'{"id":"' + b"x" * MEBIBYTE,
        b'{"inputs":[' + b'{"name":"INPUT0"},' * 50_000 + b"1]}",
    ]

    def send_all() -> None:
        for body in bodies:
            server.infer("simple", body).check_refused()
        with Connection(server) as connection:
            connection.send(post(INFER, bytes(MEBIBYTE))[: MEBIBYTE // 2])

    # The first rounds fill the caches of the allocator and the threads.
    for _ in range(20):
        send_all()
    before = resident_bytes(server)
    for _ in range(100):
        send_all()
    assert resident_bytes(server) - before < 16 * MEBIBYTE
