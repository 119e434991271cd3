"""Tests every data type, through each way in which a tensor can travel."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from server import Server

BACKENDS = ["identity", "onnx_identity"]

# Extreme values are included, because they reveal a conversion to a narrower type.
VALUES: dict[str, numpy.ndarray] = {
    "BOOL": numpy.array([True, False, True]),
    "UINT8": numpy.array([0, 1, 2**8 - 1], numpy.uint8),
    "UINT16": numpy.array([0, 1, 2**16 - 1], numpy.uint16),
    "UINT32": numpy.array([0, 1, 2**32 - 1], numpy.uint32),
    "UINT64": numpy.array([0, 2**53 + 1, 2**64 - 1], numpy.uint64),
    "INT8": numpy.array([-(2**7), 0, 2**7 - 1], numpy.int8),
    "INT16": numpy.array([-(2**15), 0, 2**15 - 1], numpy.int16),
    "INT32": numpy.array([-(2**31), 0, 2**31 - 1], numpy.int32),
    "INT64": numpy.array([-(2**63), 2**53 + 1, 2**63 - 1], numpy.int64),
    "FP16": numpy.array([-1.5, 0.0, 65504.0], numpy.float16),
    "FP32": numpy.array([-0.1, 0.0, 3.4028235e38], numpy.float32),
    "FP64": numpy.array([-0.1, 5e-324, 1.7976931348623157e308], numpy.float64),
    "BYTES": numpy.array([b"", b"a", 'grüße\n"\\'.encode()], object),
}
JSON_DATATYPES = [name for name in VALUES if name != "FP16"]

TYPED_CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def model_name(backend: str, datatype: str) -> str:
    """The identity model for a data type."""
    return f"{backend}_{datatype.lower()}"


def raw_bytes(values: numpy.ndarray) -> bytes:
    """The binary form of a tensor."""
    if values.dtype == object:
        return serialize_byte_tensor(values).item()
    return values.tobytes()


def json_values(values: numpy.ndarray) -> list[Any]:
    """The JSON form of a tensor."""
    if values.dtype == object:
        return [value.decode() for value in values]
    return values.tolist()


def json_input(datatype: str, data: Any, shape: list[int]) -> dict[str, Any]:
    """A request with one JSON tensor."""
    return {"inputs": [{"name": "INPUT0", "shape": shape, "datatype": datatype, "data": data}]}


def grpc_request(model: str, datatype: str, shape: list[int]) -> service_pb2.ModelInferRequest:
    """A request with one input and no data yet."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    return request


@pytest.fixture
def stub(
    grpc_client: tritonclient.grpc.InferenceServerClient,
) -> service_pb2_grpc.GRPCInferenceServiceStub:
    """The generated service, for requests that the client library can't form."""
    return grpc_client._client_stub


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("datatype", VALUES)
# row: CFG-06
def test_binary_over_http(
    http_client: tritonclient.http.InferenceServerClient, backend: str, datatype: str
) -> None:
    """The client library's default form."""
    values = VALUES[datatype].reshape(1, 3)
    tensor = tritonclient.http.InferInput("INPUT0", [1, 3], datatype)
    tensor.set_data_from_numpy(values)
    result = http_client.infer(model_name(backend, datatype), [tensor])
    assert result.get_output("OUTPUT0")["datatype"] == datatype
    assert result.as_numpy("OUTPUT0").tolist() == values.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("datatype", JSON_DATATYPES)
# row: HTTP-13
def test_json_over_http(server: Server, backend: str, datatype: str) -> None:
    """JSON in both directions, with every value exact."""
    data = json_values(VALUES[datatype])
    reply = server.infer(model_name(backend, datatype), json_input(datatype, data, [1, 3]))
    assert reply.status == 200, reply
    (output,) = reply.json()["outputs"]
    assert output["name"] == "OUTPUT0"
    assert output["datatype"] == datatype
    assert output["shape"] == [1, 3]
    received = output["data"]
    if datatype == "FP32":
        received = numpy.array(received, numpy.float32).tolist()
    assert received == data


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("datatype", [*VALUES, "BF16"])
# row: GRPC-08
def test_raw_over_grpc(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, backend: str, datatype: str
) -> None:
    """raw_output_contents equals the input byte for byte."""
    raw = bytes.fromhex("803f00c0ffff") if datatype == "BF16" else raw_bytes(VALUES[datatype])
    request = grpc_request(model_name(backend, datatype), datatype, [1, 3])
    request.raw_input_contents.append(raw)
    response = stub.ModelInfer(request)
    (output,) = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("OUTPUT0", datatype, [1, 3])
    assert not output.HasField("contents")
    assert list(response.raw_output_contents) == [raw]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("datatype", TYPED_CONTENTS)
# row: GRPC-07
def test_typed_contents_over_grpc(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, backend: str, datatype: str
) -> None:
    """Requests with typed contents get raw contents too."""
    request = grpc_request(model_name(backend, datatype), datatype, [1, 3])
    contents = getattr(request.inputs[0].contents, TYPED_CONTENTS[datatype])
    contents.extend(VALUES[datatype].tolist())
    response = stub.ModelInfer(request)
    assert list(response.raw_output_contents) == [raw_bytes(VALUES[datatype])]


@pytest.mark.parametrize("backend", BACKENDS)
def test_bf16_binary_over_http(server: Server, backend: str) -> None:
    """The binary form is the only form of BF16 over HTTP."""
    raw = bytes.fromhex("803f00c0")
    document = {
        "inputs": [
            {
                "name": "INPUT0",
                "shape": [1, 2],
                "datatype": "BF16",
                "parameters": {"binary_data_size": len(raw)},
            }
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
    reply = server.infer(model_name(backend, "BF16"), document, raw)
    assert reply.status == 200, reply
    assert reply.tensors()[1] == raw


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
# row: HTTP-13
def test_half_floats_are_refused_in_json_requests(
    server: Server, backend: str, datatype: str
) -> None:
    """JSON has no standard form for them."""
    reply = server.infer(model_name(backend, datatype), json_input(datatype, [1.0], [1, 1]))
    assert reply.status == 400
    assert datatype in reply.error()
    assert "binary" in reply.error()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_are_refused_in_json_responses(server: Server, datatype: str) -> None:
    """A response that would need them in JSON is an error too."""
    document = {
        "inputs": [
            {
                "name": "INPUT0",
                "shape": [1, 1],
                "datatype": datatype,
                "parameters": {"binary_data_size": 2},
            }
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": False}}],
    }
    reply = server.infer(f"identity_{datatype.lower()}", document, b"\x00\x00")
    assert reply.status == 400
    assert datatype in reply.error()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
# row: GRPC-07
def test_half_floats_have_no_typed_contents(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, datatype: str
) -> None:
    """gRPC accepts them only in raw form."""
    import grpc

    request = grpc_request(f"identity_{datatype.lower()}", datatype, [1, 1])
    request.inputs[0].contents.fp32_contents.append(1.0)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_special_floats_survive_the_binary_form(
    server: Server,
    http_client: tritonclient.http.InferenceServerClient,
    backend: str,
    value: str,
) -> None:
    """The binary form can represent values that JSON lacks."""
    values = numpy.array([[float(value)]], numpy.float32)
    tensor = tritonclient.http.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(values)
    result = http_client.infer(f"{backend}_fp32", [tensor])
    assert result.as_numpy("OUTPUT0").tobytes() == values.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BYTES"])
# row: HTTP-18
def test_tensors_without_elements(
    server: Server,
    http_client: tritonclient.http.InferenceServerClient,
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
    backend: str,
    datatype: str,
) -> None:
    """A dimension of zero is a shape like any other."""
    model = model_name(backend, datatype)
    reply = server.infer(model, json_input(datatype, [], [1, 0]))
    assert reply.status == 200, reply
    (output,) = reply.json()["outputs"]
    assert (output["shape"], output["data"]) == ([1, 0], [])

    tensor = tritonclient.http.InferInput("INPUT0", [2, 0], datatype)
    tensor.set_data_from_numpy(numpy.empty((2, 0), VALUES[datatype].dtype))
    result = http_client.infer(model, [tensor])
    assert result.as_numpy("OUTPUT0").shape == (2, 0)

    request = grpc_request(model, datatype, [2, 0])
    request.raw_input_contents.append(b"")
    response = stub.ModelInfer(request)
    assert list(response.outputs[0].shape) == [2, 0]
    assert list(response.raw_output_contents) == [b""]


# row: CFG-07
def test_scalar_output_gets_the_shape_of_its_dims(server: Server) -> None:
    """The file's output is [batch], and the configuration's is [batch, 1]."""
    reply = server.infer("onnx_scalar", json_input("FP32", [[1, 2, 3], [4, 5, 6]], [2, 3]))
    assert reply.status == 200, reply
    (output,) = reply.json()["outputs"]
    assert (output["shape"], output["data"]) == ([2, 1], [6, 15])


def test_no_batch_dimension(server: Server) -> None:
    """Without batches, the shape is the one in the configuration."""
    data = [[1, 2, 3], [4, 5, 6]]
    reply = server.infer("onnx_no_batch", json_input("FP32", data, [2, 3]))
    (output,) = reply.json()["outputs"]
    assert (output["shape"], output["data"]) == ([3, 2], [1, 4, 2, 5, 3, 6])


def test_strings_are_numbers_to_the_string_model(server: Server) -> None:
    """Strings in, arithmetic in the model, strings out."""
    numbers = [str(number) for number in range(16)]
    document = {
        "inputs": [
            {"name": "INPUT0", "shape": [1, 16], "datatype": "BYTES", "data": numbers},
            {"name": "INPUT1", "shape": [1, 16], "datatype": "BYTES", "data": ["1"] * 16},
        ]
    }
    reply = server.infer("simple_string", document)
    outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
    assert outputs["OUTPUT0"] == [str(number + 1) for number in range(16)]
    assert outputs["OUTPUT1"] == [str(number - 1) for number in range(16)]


def test_a_failing_model_returns_an_error_and_keeps_serving(server: Server) -> None:
    """A string that isn't a number fails in ONNX Runtime, and the request gets the error."""
    bad = {"shape": [1, 16], "datatype": "BYTES", "data": ["x"] * 16}
    document = {"inputs": [{"name": "INPUT0", **bad}, {"name": "INPUT1", **bad}]}
    reply = server.infer("simple_string", document)
    assert reply.status in ((400, 500) if server.is_triton else (500,))
    assert "running Cast node" in reply.error()
    assert server.is_ready()


@pytest.mark.parametrize(
    "backend", ["identity", pytest.param("onnx_identity", marks=pytest.mark.galatea_only)]
)
def test_strings_with_nul(
    server: Server, http_client: tritonclient.http.InferenceServerClient, backend: str
) -> None:
    """NUL is a byte like any other; Triton cuts strings there for ONNX models."""
    values = numpy.array([[b"\x00", b"a\x00b\x00", b""]], object)
    tensor = tritonclient.http.InferInput("INPUT0", [1, 3], "BYTES")
    tensor.set_data_from_numpy(values)
    result = http_client.infer(f"{backend}_bytes", [tensor])
    assert result.as_numpy("OUTPUT0").tolist() == values.tolist()

    data = ["\x00", "a\x00b\x00", ""]
    reply = server.infer(f"{backend}_bytes", json_input("BYTES", data, [1, 3]))
    assert reply.json()["outputs"][0]["data"] == data


def test_long_strings_and_many(server: Server) -> None:
    """Lengths that need more than one byte, and more elements than fit on a page."""
    values = ["x" * 70_000, *("y" * (number % 300) for number in range(5_000))]
    shape = [1, len(values)]
    reply = server.infer("string_identity", json_input("BYTES", values, shape))
    assert reply.status == 200
    assert reply.json()["outputs"][0]["data"] == values


# row: HTTP-14
def test_strings_need_not_be_text(http_client: tritonclient.http.InferenceServerClient) -> None:
    """In the binary form, BYTES elements are arbitrary bytes."""
    values = numpy.array([[bytes(range(256)), b"\xff\xfe"]], object)
    tensor = tritonclient.http.InferInput("INPUT0", [1, 2], "BYTES")
    tensor.set_data_from_numpy(values)
    result = http_client.infer("identity_bytes", [tensor])
    assert result.as_numpy("OUTPUT0").tolist() == values.tolist()


# row: HTTP-14
def test_json_escapes(server: Server) -> None:
    """Escapes and NUL characters in JSON strings are part of the string."""
    data = rb'["\u0000a\ud83d\ude00","\n\t\/"]'
    tensor = b'{"name":"INPUT0","shape":[1,2],"datatype":"BYTES","data":' + data + b"}"
    body = b'{"inputs":[' + tensor + b"]}"
    reply = server.infer("identity_bytes", body)
    assert reply.status == 200
    assert reply.json()["outputs"][0]["data"] == ["\x00a😀", "\n\t/"]


@pytest.mark.parametrize("library", [tritonclient.http.aio, tritonclient.grpc.aio])
def test_asyncio_clients(server: Server, library: Any) -> None:
    """The asynchronous clients of both protocols, with many requests at once."""
    protocol = tritonclient.http if library is tritonclient.http.aio else tritonclient.grpc
    url = server.http_url if protocol is tritonclient.http else server.grpc_url
    values = numpy.arange(16, dtype=numpy.int32).reshape(1, 16)

    async def one(client: Any, number: int) -> list[int]:
        inputs = [protocol.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        inputs[0].set_data_from_numpy(values)
        inputs[1].set_data_from_numpy(numpy.full_like(values, number))
        result = await client.infer("simple", inputs)
        return result.as_numpy("OUTPUT0")[0].tolist()

    async def all_at_once() -> list[list[int]]:
        async with library.InferenceServerClient(url) as client:
            return await asyncio.gather(*(one(client, number) for number in range(50)))

    sums = asyncio.run(all_at_once())
    assert sums == [(values[0] + number).tolist() for number in range(50)]


def test_datatype_names_match_the_client_library() -> None:
    """The table above covers everything that the client library supports."""
    assert {np_to_triton_dtype(values.dtype) for values in VALUES.values()} == set(VALUES)
    assert json.loads(json.dumps(json_values(VALUES["BYTES"]))) == json_values(VALUES["BYTES"])
