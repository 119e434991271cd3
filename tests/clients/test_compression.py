"""Tests of compressed requests and responses over HTTP. The choice of an encoding and
damaged bodies are tested in tests/differential."""

from __future__ import annotations

import gzip
import json
import pathlib
import zlib

import numpy
import pytest
import tritonclient.http
from conftest import StartServer
from server import HEADER_LENGTH, Server

CODINGS = ["gzip", "deflate"]

#: A tensor that is inflated and deflated on another thread than the connection's.
LONG = 100_000


def infer_input(count: int, *, is_binary: bool) -> tritonclient.http.InferInput:
    """A row of numbers."""
    tensor = tritonclient.http.InferInput("INPUT0", [1, count], "FP32")
    values = numpy.arange(count, dtype=numpy.float32).reshape(1, count)
    tensor.set_data_from_numpy(values, binary_data=is_binary)
    return tensor


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("count", [2, LONG])
@pytest.mark.parametrize("accepted", [None, *CODINGS])
@pytest.mark.parametrize("coding", [None, *CODINGS])
def test_client_library(
    http_client: tritonclient.http.InferenceServerClient,
    coding: str | None,
    accepted: str | None,
    count: int,
    *,
    is_binary: bool,
) -> None:
    """The client library compresses requests and inflates responses."""
    result = http_client.infer(
        "identity_fp32",
        [infer_input(count, is_binary=is_binary)],
        outputs=[tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=is_binary)],
        request_compression_algorithm=coding,
        response_compression_algorithm=accepted,
    )
    values = result.as_numpy("OUTPUT0")
    assert numpy.array_equal(values, numpy.arange(count, dtype=numpy.float32).reshape(1, count))


@pytest.mark.parametrize("coding", CODINGS)
def test_headers(server: Server, coding: str) -> None:
    """A compressed response is marked as such, and the length of its JSON is that of the
    inflated body."""
    request = {
        "inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
    reply = server.infer("identity_fp32", request, headers={"Accept-Encoding": coding})
    assert reply.headers["Content-Encoding"] == coding
    assert int(reply.headers["Content-Length"]) == len(reply.body)
    body = zlib.decompress(reply.body, wbits={"gzip": 31, "deflate": 15}[coding])
    length = int(reply.headers[HEADER_LENGTH])
    assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert body[length:] == numpy.array([1, 2], dtype=numpy.float32).tobytes()


@pytest.mark.galatea_only
# row: HTTP-19
def test_limit(start_server: StartServer, models: pathlib.Path) -> None:
    """`--http-max-input-size` limits the inflated size, to the byte."""
    request = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
    with start_server(models, "--http-max-input-size=1000000") as server:
        server.wait_until_ready()
        for length, status in [(1_000_000, 200), (1_000_001, 400)]:
            body = gzip.compress(request.ljust(length))
            reply = server.infer("identity_fp32", body, headers={"Content-Encoding": "gzip"})
            assert reply.status == status
        assert reply.error() == (
            "Decompressed data size exceeds the maximum allowed value of 1000000 bytes. Use "
            "--http-max-input-size to increase the limit."
        )
