"""Tests of the HTTP form of an inference request: fields, binary parts and requested
outputs."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import numpy
import pytest

from server import HEADER_LENGTH, Reply, Server

ROW = list(range(16))
ONES = [1] * 16


def simple_request(**fields: Any) -> dict[str, Any]:
    """A correct request to the model `simple`."""
    return {
        "inputs": [
            {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": ROW},
            {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": ONES},
        ],
        **fields,
    }


def binary_request(**fields: Any) -> tuple[dict[str, Any], bytes]:
    """The same with both inputs in binary form."""
    document = simple_request(**fields)
    for tensor in document["inputs"]:
        del tensor["data"]
        tensor["parameters"] = {"binary_data_size": 64}
    return document, numpy.array([ROW, ONES], numpy.int32).tobytes()


def outputs(reply: Reply) -> dict[str, Any]:
    """The outputs by name, with binary outputs decoded as INT32."""
    assert reply.status == 200, reply
    document, binary = reply.tensors()
    found = {}
    for output in document["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[output["name"]] = output["data"]
        else:
            found[output["name"]] = numpy.frombuffer(binary[:size], numpy.int32).tolist()
            binary = binary[size:]
    assert binary == b""
    return found


def is_binary(reply: Reply) -> dict[str, bool]:
    """The outputs that came in binary form."""
    document, _ = reply.tensors()
    return {one["name"]: "data" not in one for one in document["outputs"]}


SUM = [number + 1 for number in ROW]
DIFFERENCE = [number - 1 for number in ROW]


# row: HTTP-10 HTTP-11
def test_response_fields_and_order(server: Server) -> None:
    """The keys of a response in order; all outputs are returned if none is named."""
    reply = server.infer("simple", simple_request(id="42"))
    document = reply.json()
    assert list(document) == ["id", "model_name", "model_version", "outputs"]
    assert (document["id"], document["model_name"], document["model_version"]) == (
        "42",
        "simple",
        "1",
    )
    assert [list(output) for output in document["outputs"]] == [
        ["name", "datatype", "shape", "data"]
    ] * 2
    assert outputs(reply) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}


@pytest.mark.parametrize("fields", [{}, {"id": ""}])
# row: HTTP-11
def test_no_id_without_an_id(server: Server, fields: dict[str, Any]) -> None:
    """An empty ID counts as no ID."""
    assert "id" not in server.infer("simple", simple_request(**fields)).json()


@pytest.mark.parametrize("identifier", ["x" * 1000, "grüße ☃", 'quote " and \\ and \n'])
# row: HTTP-28
def test_id_is_echoed_unchanged(server: Server, identifier: str) -> None:
    """The ID is the client's."""
    assert server.infer("simple", simple_request(id=identifier)).json()["id"] == identifier


def test_explicit_version(server: Server) -> None:
    """The version may be part of the path."""
    body = json.dumps(simple_request()).encode()
    reply = server.request("POST", "/v2/models/simple/versions/1/infer", body)
    assert outputs(reply) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}


# row: HTTP-29
def test_outputs_in_the_order_of_the_request(server: Server) -> None:
    """Only requested outputs are returned."""
    reply = server.infer("simple", simple_request(outputs=[{"name": "OUTPUT1"}]))
    assert outputs(reply) == {"OUTPUT1": DIFFERENCE}


@pytest.mark.parametrize(
    "rows",
    [
        [ROW, ONES],
        [*ROW, *ONES],
        [[[number] for number in ROW], [[number] for number in ONES]],
    ],
    ids=["nested", "flat", "nested deeper than the shape"],
)
# row: HTTP-12
def test_nesting_of_data_is_free(server: Server, rows: list[Any]) -> None:
    """Row-major order matters and nesting doesn't; the response is flat."""
    document = simple_request()
    for tensor in document["inputs"]:
        tensor["shape"] = [2, 16]
        tensor["data"] = rows
    reply = server.infer("simple", document)
    assert outputs(reply)["OUTPUT0"] == [2 * number for number in ROW + ONES]


# row: HTTP-15
def test_binary_request_and_response(server: Server) -> None:
    """Both directions are in binary form."""
    document, binary = binary_request(parameters={"binary_data_output": True})
    reply = server.infer("simple", document, binary)
    assert outputs(reply) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert is_binary(reply) == {"OUTPUT0": True, "OUTPUT1": True}


def test_binary_input_alone_gets_json(server: Server) -> None:
    """The response's form doesn't depend on the request's."""
    document, binary = binary_request()
    reply = server.infer("simple", document, binary)
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers[HEADER_LENGTH] is None
    assert outputs(reply) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}


def test_one_binary_and_one_json_input(server: Server) -> None:
    """Only binary inputs use the bytes after the JSON."""
    document, binary = binary_request()
    document["inputs"][0] = simple_request()["inputs"][0]
    reply = server.infer("simple", document, binary[64:])
    assert outputs(reply) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}


@pytest.mark.parametrize("default", [None, False, True])
@pytest.mark.parametrize("own", [None, False, True])
# row: HTTP-16
def test_a_listed_output_decides_for_itself(
    server: Server, default: bool | None, own: bool | None
) -> None:
    """The request's default is for outputs that the request doesn't list."""
    output: dict[str, Any] = {"name": "OUTPUT0"}
    if own is not None:
        output["parameters"] = {"binary_data": own}
    fields: dict[str, Any] = {"outputs": [output]}
    if default is not None:
        fields["parameters"] = {"binary_data_output": default}
    reply = server.infer("simple", simple_request(**fields))
    assert is_binary(reply) == {"OUTPUT0": own is True}
    assert outputs(reply) == {"OUTPUT0": SUM}


# row: HTTP-16
def test_binary_and_json_outputs_together(server: Server) -> None:
    """One binary output makes the whole body binary, with the JSON first."""
    listed = [{"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": {"binary_data": True}}]
    reply = server.infer("simple", simple_request(outputs=listed))
    assert is_binary(reply) == {"OUTPUT0": False, "OUTPUT1": True}
    assert outputs(reply) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}


# row: HTTP-17
def test_raw_request(server: Server) -> None:
    """With a length of zero, the body is the tensor, and the variable dimension follows
    from its size."""
    values = numpy.array([1.5, -2.0, 3.25], numpy.float32)
    reply = server.infer("identity_fp32", values.tobytes(), headers={HEADER_LENGTH: "0"})
    assert reply.status == 200, reply
    document, binary = reply.tensors()
    (output,) = document["outputs"]
    assert output["shape"] == [1, 3]
    assert output["parameters"]["binary_data_size"] == 12
    assert binary == values.tobytes()


def test_raw_request_to_a_fixed_shape(server: Server) -> None:
    """Without a variable dimension, the body has to fit."""
    values = numpy.arange(6, dtype=numpy.float32)
    reply = server.infer("onnx_no_batch", values.tobytes(), headers={HEADER_LENGTH: "0"})
    assert reply.status == 200, reply
    _, binary = reply.tensors()
    assert binary == values.reshape(2, 3).T.tobytes()
    reply = server.infer("onnx_no_batch", values[:5].tobytes(), headers={HEADER_LENGTH: "0"})
    assert reply.status == 400


@pytest.mark.parametrize(
    "model, why",
    [
        ("simple", "must only have 1 input"),
        ("identity_matrix", "more than one variable-sized dimension"),
        ("identity_bytes", "must have input shape [1]"),
    ],
)
# row: HTTP-17
def test_incomplete_raw_request(server: Server, model: str, why: str) -> None:
    """Raw requests need one input, at most one variable dimension, and at most one string."""
    reply = server.infer(model, b"\x00" * 64, headers={HEADER_LENGTH: "0"})
    assert reply.status == 400
    assert why in reply.error()


@pytest.mark.parametrize(
    "coding, compress",
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("identity", bytes),
    ],
)
# row: HTTP-19
def test_compressed_requests(server: Server, coding: str, compress: Any) -> None:
    """The length of the JSON part is measured after decompression."""
    document, binary = binary_request()
    text = json.dumps(document).encode()
    headers = {"Content-Encoding": coding, HEADER_LENGTH: str(len(text))}
    reply = server.infer("simple", compress(text + binary), headers=headers)
    assert outputs(reply) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}


# row: HTTP-19
def test_unknown_compression_is_501(server: Server) -> None:
    """The response names the supported encodings."""
    reply = server.infer("simple", simple_request(), headers={"Content-Encoding": "br"})
    assert reply.status == 501
    assert reply.error() == "Unsupported compression type"
    assert reply.headers["Accept-Encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    "accepted, used",
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0.5, deflate;q=0.9", "deflate"),
        ("identity", None),
        ("br", None),
        ("", None),
    ],
)
# row: HTTP-20
def test_compressed_responses(server: Server, accepted: str, used: str | None) -> None:
    """The supported encoding with the highest weight is used; unknown ones are ignored."""
    inflate = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[used]
    reply = server.infer("simple", simple_request(), headers={"Accept-Encoding": accepted})
    assert reply.status == 200
    assert reply.headers["Content-Encoding"] in ([used] if used else [None, "identity"])
    names = [output["name"] for output in json.loads(inflate(reply.body))["outputs"]]
    assert names == ["OUTPUT0", "OUTPUT1"]


# row: CLS-02
def test_classification(server: Server) -> None:
    """The largest elements as value:index, largest first."""
    listed = [{"name": "OUTPUT0", "parameters": {"classification": 2}}]
    reply = server.infer("simple", simple_request(outputs=listed))
    (output,) = reply.json()["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [1, 2])
    assert output["data"] == ["16:15", "15:14"]


def test_unknown_fields_are_ignored(server: Server) -> None:
    """Clients may send fields that a server doesn't know."""
    request = simple_request(surprise={"a": [1]})
    request["inputs"][0]["surprise"] = None
    assert server.infer("simple", request).status == 200
