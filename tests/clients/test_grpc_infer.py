"""Tests of inference over gRPC: contents, errors and streams."""

from __future__ import annotations

import concurrent.futures
import queue
from typing import Any

import grpc
import numpy
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server import Server

ROW = numpy.arange(16, dtype=numpy.int32)
ONES = numpy.ones(16, numpy.int32)


@pytest.fixture
def stub(
    grpc_client: tritonclient.grpc.InferenceServerClient,
) -> service_pb2_grpc.GRPCInferenceServiceStub:
    """The generated service."""
    return grpc_client._client_stub


def simple_request(model: str = "simple", raw: bool = True) -> service_pb2.ModelInferRequest:
    """A correct request to the model `simple`."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, values in (("INPUT0", ROW), ("INPUT1", ONES)):
        tensor = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        if raw:
            request.raw_input_contents.append(values.tobytes())
        else:
            tensor.contents.int_contents.extend(values.tolist())
    return request


def numbers(response: service_pb2.ModelInferResponse) -> dict[str, list[int]]:
    """The outputs by name."""
    assert len(response.outputs) == len(response.raw_output_contents)
    return {
        output.name: numpy.frombuffer(raw, numpy.int32).tolist()
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


SUM = (ROW + ONES).tolist()
DIFFERENCE = (ROW - ONES).tolist()


@pytest.mark.parametrize("raw", [True, False])
def test_add_sub(stub: service_pb2_grpc.GRPCInferenceServiceStub, raw: bool) -> None:
    """All outputs are returned if none is named, in the order of the configuration."""
    request = simple_request(raw=raw)
    request.id = "grüße"
    response = stub.ModelInfer(request)
    assert (response.model_name, response.model_version, response.id) == ("simple", "1", "grüße")
    assert list(numbers(response).items()) == [("OUTPUT0", SUM), ("OUTPUT1", DIFFERENCE)]


def test_chosen_outputs(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    """Only requested outputs are returned."""
    request = simple_request()
    request.outputs.add(name="OUTPUT1")
    assert numbers(stub.ModelInfer(request)) == {"OUTPUT1": DIFFERENCE}


# row: GRPC-05
def test_explicit_version(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    """The version is a string."""
    request = simple_request()
    request.model_version = "1"
    assert numbers(stub.ModelInfer(request))["OUTPUT0"] == SUM


def test_compressed_requests(server: Server) -> None:
    """Clients may compress their messages."""
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        with grpc.insecure_channel(server.grpc_url, compression=compression) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert numbers(stub.ModelInfer(simple_request()))["OUTPUT0"] == SUM


# row: GRPC-16
def test_messages_of_many_megabytes(server: Server) -> None:
    """The limits are two gigabytes, well above gRPC's usual four megabytes."""
    values = numpy.arange(5_000_000, dtype=numpy.float32)
    request = service_pb2.ModelInferRequest(model_name="identity_fp32")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, len(values)])
    request.raw_input_contents.append(values.tobytes())
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc_url, options=options) as channel:
        response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert response.raw_output_contents[0] == values.tobytes()


def test_long_messages_at_the_same_time(server: Server) -> None:
    """Responses are sent while other requests arrive, and each has its own bytes."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

    def request(number: int) -> service_pb2.ModelInferRequest:
        values = numpy.arange(number, number + 250_000 * (1 + number % 7), dtype=numpy.float32)
        request = service_pb2.ModelInferRequest(model_name="identity_fp32")
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, len(values)])
        request.raw_input_contents.append(values.tobytes())
        return request

    with grpc.insecure_channel(server.grpc_url, options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for first in range(0, 40, 8):
            requests = [request(number) for number in range(first, first + 8)]
            calls = [stub.ModelInfer.future(each) for each in requests]
            for each, call in zip(requests, calls, strict=True):
                assert call.result().raw_output_contents[0] == each.raw_input_contents[0]


def change(**fields: Any) -> Any:
    """Changes one of the request's own fields."""

    def apply(request: service_pb2.ModelInferRequest) -> None:
        for name, value in fields.items():
            setattr(request, name, value)

    return apply


def change_input(index: int = 0, **fields: Any) -> Any:
    """Changes one input."""

    def apply(request: service_pb2.ModelInferRequest) -> None:
        for name, value in fields.items():
            if name == "shape":
                request.inputs[index].shape[:] = value
            else:
                setattr(request.inputs[index], name, value)

    return apply


def raw_contents(*contents: bytes) -> Any:
    """Other raw contents."""

    def apply(request: service_pb2.ModelInferRequest) -> None:
        request.raw_input_contents[:] = contents

    return apply


def both_contents(request: service_pb2.ModelInferRequest) -> None:
    """Typed and raw contents at the same time."""
    request.inputs[0].contents.int_contents.extend(ROW.tolist())


def duplicate_input(request: service_pb2.ModelInferRequest) -> None:
    """The same input twice."""
    request.inputs[1].name = "INPUT0"


def unknown_output(request: service_pb2.ModelInferRequest) -> None:
    """An output that the model lacks."""
    request.outputs.add(name="OUTPUT9")


def third_input(request: service_pb2.ModelInferRequest) -> None:
    """One input too many."""
    request.inputs.add(name="INPUT2", datatype="INT32", shape=[1, 16])
    request.raw_input_contents.append(ROW.tobytes())


def one_input(request: service_pb2.ModelInferRequest) -> None:
    """One input too few."""
    del request.inputs[1]
    del request.raw_input_contents[1]


def different_batches(request: service_pb2.ModelInferRequest) -> None:
    """Two rows in one input, and one in the other."""
    request.inputs[0].shape[:] = [2, 16]
    request.raw_input_contents[0] = ROW.tobytes() * 2


def nine_rows(request: service_pb2.ModelInferRequest) -> None:
    """One row more than the model accepts."""
    for index in range(2):
        request.inputs[index].shape[:] = [9, 16]
        request.raw_input_contents[index] = ROW.tobytes() * 9


INVALID = grpc.StatusCode.INVALID_ARGUMENT
BAD_REQUESTS = {
    "unknown model": (change(model_name="absent"), grpc.StatusCode.NOT_FOUND, "unknown model"),
    "empty model name": (change(model_name=""), None, ""),
    "unknown version": (change(model_version="7"), grpc.StatusCode.NOT_FOUND, "unknown model"),
    "version is no number": (change(model_version="x"), INVALID, "integral value > 0"),
    "unknown input": (change_input(name="INPUT9"), INVALID, "INPUT9"),
    "unknown output": (unknown_output, INVALID, "OUTPUT9"),
    "duplicate input": (duplicate_input, INVALID, "INPUT0"),
    "input missing": (one_input, INVALID, "expected 2 inputs but got 1 inputs"),
    "input too many": (third_input, INVALID, "expected 2 inputs but got 3 inputs"),
    "wrong datatype": (change_input(datatype="FP32"), INVALID, "data-type"),
    "unknown datatype": (change_input(datatype="FP33"), INVALID, ""),
    "wrong dimension": (change_input(shape=[1, 15]), INVALID, "unexpected shape"),
    "too few dimensions": (change_input(shape=[16]), INVALID, ""),
    "too many dimensions": (change_input(shape=[1, 16, 1]), INVALID, "unexpected shape"),
    "negative dimension": (change_input(shape=[1, -16]), INVALID, ""),
    "negative batch": (change_input(shape=[-1, 16]), INVALID, ""),
    "huge dimensions": (change_input(shape=[2**62, 4]), INVALID, ""),
    "huge product": (change_input(shape=[2**31, 2**31, 4]), INVALID, ""),
    "no dimensions": (change_input(shape=[]), INVALID, ""),
    "batch too large": (nine_rows, INVALID, "batch-size must be <= 8"),
    "different batches": (different_batches, INVALID, "batch size does not match other inputs"),
    "bytes too few": (raw_contents(ROW.tobytes()[:-4], ONES.tobytes()), INVALID, ""),
    "bytes too many": (raw_contents(ROW.tobytes() + b"\x00", ONES.tobytes()), INVALID, ""),
    "raw contents missing": (raw_contents(), INVALID, "unable to find data for input"),
    "raw contents too few": (raw_contents(ROW.tobytes()), INVALID, ""),
    "raw and typed contents": (both_contents, INVALID, ""),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
# row: GRPC-03 GRPC-06
def test_bad_requests(
    server: Server, stub: service_pb2_grpc.GRPCInferenceServiceStub, name: str
) -> None:
    """Each has its own status and names the error, and the next request succeeds."""
    apply, code, text = BAD_REQUESTS[name]
    request = simple_request()
    apply(request)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert code is None or caught.value.code() == code
    assert text in caught.value.details()
    assert caught.value.details()
    assert numbers(stub.ModelInfer(simple_request()))["OUTPUT0"] == SUM


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x01", b"\x05\x00\x00\x00ab", b"\xff\xff\xff\xff", b"\x01\x00\x00\x00a" * 3],
    ids=["empty", "length cut", "string cut", "length of 4 GB", "string too many"],
)
@pytest.mark.parametrize("model", ["identity_bytes", "onnx_identity_bytes"])
def test_bad_strings(
    server: Server, stub: service_pb2_grpc.GRPCInferenceServiceStub, model: str, raw: bytes
) -> None:
    """The lengths inside BYTES are checked before they are used."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, 2])
    request.raw_input_contents.append(raw)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code() == INVALID
    assert server.is_ready()


@pytest.mark.parametrize("field", ["fp32_contents", "int64_contents", "bytes_contents"])
# row: GRPC-07
def test_contents_of_another_type(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, field: str
) -> None:
    """INT32 values belong in int_contents."""
    request = simple_request(raw=False)
    request.inputs[0].contents.Clear()
    values = [b"1"] * 16 if field == "bytes_contents" else [1] * 16
    getattr(request.inputs[0].contents, field).extend(values)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code() == INVALID


@pytest.mark.parametrize("count", [0, 15, 17])
def test_typed_contents_of_another_size(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, count: int
) -> None:
    """The number of values must match the shape."""
    request = simple_request(raw=False)
    request.inputs[0].contents.int_contents[:] = [1] * count
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code() == INVALID


def test_unknown_methods_are_unimplemented(server: Server) -> None:
    """A method that does not exist is refused, and other calls continue."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert server.is_live()


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a" * 1000])
def test_malformed_messages(server: Server, message: bytes) -> None:
    """Bytes that can't be decoded cause an error only for their own call."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError):
            call(message)
    assert server.is_live()


# row: GRPC-15
def test_cancelled_calls_leave_a_working_server(
    server: Server, stub: service_pb2_grpc.GRPCInferenceServiceStub
) -> None:
    """A cancelled call frees its resources."""
    request = service_pb2.ModelInferRequest(model_name="onnx_slow")
    request.inputs.add(name="ROUNDS", datatype="INT64", shape=[1, 1])
    request.raw_input_contents.append((500).to_bytes(8, "little"))
    calls = [stub.ModelInfer.future(request) for _ in range(10)]
    for call in calls:
        call.cancel()
    request.raw_input_contents[0] = (1).to_bytes(8, "little")
    response = stub.ModelInfer(request)
    assert response.raw_output_contents[0] == (1).to_bytes(8, "little")


def test_deadline(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    """A client's deadline ends its call, not the server."""
    request = service_pb2.ModelInferRequest(model_name="onnx_slow")
    request.inputs.add(name="ROUNDS", datatype="INT64", shape=[1, 1])
    # If a client pauses, it may find both the response and an expired deadline.
    for rounds in (5_000, 50_000):
        request.raw_input_contents[:] = [rounds.to_bytes(8, "little")]
        try:
            stub.ModelInfer(request, timeout=0.01)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            break
    else:
        pytest.fail("the deadline has no effect")
    assert numbers(stub.ModelInfer(simple_request()))["OUTPUT0"] == SUM


def test_stream(grpc_client: tritonclient.grpc.InferenceServerClient) -> None:
    """Several requests on one stream get responses in the order of the requests."""
    results: queue.Queue[Any] = queue.Queue()
    grpc_client.start_stream(lambda result, error: results.put((result, error)))
    for number in range(20):
        inputs = [tritonclient.grpc.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in range(2)]
        inputs[0].set_data_from_numpy(ROW.reshape(1, 16))
        inputs[1].set_data_from_numpy(numpy.full((1, 16), number, numpy.int32))
        grpc_client.async_stream_infer("simple", inputs, request_id=str(number))
    received = [results.get(timeout=60) for _ in range(20)]
    grpc_client.stop_stream()
    assert [error for _, error in received] == [None] * 20
    assert [result.get_response().id for result, _ in received] == [str(n) for n in range(20)]
    assert [result.as_numpy("OUTPUT0")[0, 0] for result, _ in received] == list(range(20))


def test_a_stream_survives_a_bad_request(
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
) -> None:
    """An error is a message on the stream."""
    good, bad = simple_request(), simple_request(model="absent")
    responses = list(stub.ModelStreamInfer(iter([good, bad, good])))
    assert len(responses) == 3
    failed = [response for response in responses if response.error_message]
    assert len(failed) == 1
    assert "unknown model" in failed[0].error_message
    for response in responses:
        if not response.error_message:
            assert numbers(response.infer_response)["OUTPUT0"] == SUM
            parameters = response.infer_response.parameters
            assert parameters["triton_final_response"].bool_param


def test_streams_that_end_early(server: Server) -> None:
    """Clients are opened, used and dropped in many threads."""

    def open_and_drop() -> None:
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in range(10):
                call = stub.ModelStreamInfer(iter([simple_request()] * 5))
                next(call)
                call.cancel()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for one in [threads.submit(open_and_drop) for _ in range(4)]:
            one.result()
    assert server.is_ready()
