"""Tests of the inference stream protocol: order, last responses, failures and ends."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import make_models
import numpy
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from conftest import StartServer
from server import Server, wait_until

pytestmark = pytest.mark.galatea_only  # The backend of slow and decoupled models is our own.

RESPONSE_SECONDS_MAX = 60.0
#: More tokens than any test reads.
ENDLESS = 1_000_000
ERRORS_AS_STATUS = (("triton_grpc_error", "true"),)


def write_token_counter(repository: pathlib.Path, name: str, decoupled: bool) -> None:
    """A model that takes two milliseconds per token."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f"""
        backend: "token_counter" max_batch_size: 4
        model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}
        sequence_batching {{ iterative_sequence: true oldest {{ max_candidate_sequences: 4 }} }}
        input [ {{ name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        output [ {{ name: "TOKEN" data_type: TYPE_INT32 dims: [ -1 ] }} ]
        parameters {{ key: "DELAY_MICROSECONDS" value: {{ string_value: "2000" }} }}
        """
    )


@pytest.fixture(scope="module")
def streaming(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with fast, slow and decoupled models."""
    repository = tmp_path_factory.mktemp("streaming")
    make_models.write_models(repository, make_models.EXAMPLES, ["simple"])
    write_token_counter(repository, "tokens", decoupled=True)
    write_token_counter(repository, "tokens_together", decoupled=False)
    with start_server(repository) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


@pytest.fixture
def stub(streaming: Server) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    """The generated service."""
    with grpc.insecure_channel(streaming.grpc_url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tokens(
    count: int, name: str = "t", model: str = "tokens", ends: bool = False
) -> service_pb2.ModelInferRequest:
    """A request for tokens; `ends` requests an empty final response."""
    request = service_pb2.ModelInferRequest(model_name=model, id=name)
    request.inputs.add(name="COUNT", datatype="INT32", shape=[1, 1])
    request.raw_input_contents.append(numpy.array([count], numpy.int32).tobytes())
    if ends:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def simple(name: str, model: str = "simple") -> service_pb2.ModelInferRequest:
    """A request that gets its response immediately."""
    request = service_pb2.ModelInferRequest(model_name=model, id=name)
    for tensor in ("INPUT0", "INPUT1"):
        request.inputs.add(name=tensor, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(numpy.arange(16, dtype=numpy.int32).tobytes())
    return request


def shown(response: service_pb2.ModelStreamInferResponse) -> tuple[str, str, bool]:
    """The ID, the kind of response, and whether it is the last one."""
    infer = response.infer_response
    kind = "error" if response.error_message else "outputs" if infer.outputs else "empty"
    return infer.id, kind, infer.parameters["triton_final_response"].bool_param


class Requests:
    """The requests of a stream, which are sent when the test says so."""

    def __init__(self, requests: Iterable[service_pb2.ModelInferRequest] = ()) -> None:
        """Starts with `requests`; the stream stays open."""
        self._queue: queue.SimpleQueue[service_pb2.ModelInferRequest | None] = queue.SimpleQueue()
        for request in requests:
            self.send(request)

    def send(self, request: service_pb2.ModelInferRequest) -> None:
        """Sends one more request."""
        self._queue.put(request)

    def end(self) -> None:
        """Sends no more requests."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[service_pb2.ModelInferRequest]:
        """Sends each request in turn."""
        return iter(self._queue.get, None)


Stub = service_pb2_grpc.GRPCInferenceServiceStub


# row: GRPC-12
def test_responses_keep_the_order_of_requests(stub: Stub) -> None:
    """A fast model waits for a slow one before it."""
    requests = [tokens(20, "slow", "tokens_together"), simple("a"), simple("b")]
    responses = list(stub.ModelStreamInfer(iter(requests)))
    expected = [("slow", "outputs", True), ("a", "outputs", True), ("b", "outputs", True)]
    assert [shown(response) for response in responses] == expected


# row: GRPC-12
def test_decoupled_responses_do_not_wait(stub: Stub) -> None:
    """They overtake responses that wait for their predecessors, and don't delay any."""
    requests = Requests([tokens(ENDLESS, "slow", "tokens_together"), tokens(3, "quick")])
    call = stub.ModelStreamInfer(iter(requests))
    received = [shown(response) for response in itertools.islice(call, 3)]
    assert received == [("quick", "outputs", number == 2) for number in range(3)]
    call.cancel()
    requests.end()
    requests = Requests([tokens(ENDLESS, "endless"), simple("a")])
    call = stub.ModelStreamInfer(iter(requests))
    assert any(shown(response)[0] == "a" for response in itertools.islice(call, 30_000))
    call.cancel()
    requests.end()


# row: GRPC-13 DEC-02
def test_final_responses_are_marked(stub: Stub) -> None:
    """It comes with a token, or without one if the client asks for it."""
    assert [shown(r) for r in stub.ModelStreamInfer(iter([tokens(2)]))] == [
        ("t", "outputs", False),
        ("t", "outputs", True),
    ]
    assert list(stub.ModelStreamInfer(iter([tokens(0)]))) == []
    (end,) = stub.ModelStreamInfer(iter([tokens(0, ends=True)]))
    assert shown(end) == ("t", "empty", True)
    assert end.infer_response.model_name == "tokens"
    # It has no effect if a response is final anyway.
    responses = stub.ModelStreamInfer(iter([tokens(2, ends=True)]))
    assert [shown(r)[2] for r in responses] == [False, True]


# row: GRPC-11
def test_an_ended_stream_waits_for_its_responses(stub: Stub) -> None:
    """The client immediately closes its sending half."""
    requests = [tokens(25, "a"), tokens(20, "b", "tokens_together"), tokens(15, "c")]
    call = stub.ModelStreamInfer(iter(requests))
    names = [shown(response)[0] for response in call]
    assert {name: names.count(name) for name in "abc"} == {"a": 25, "b": 1, "c": 15}
    assert call.code() == grpc.StatusCode.OK


# row: GRPC-11
def test_an_empty_stream_ends_with_ok(stub: Stub) -> None:
    """No request, no response."""
    assert list(stub.ModelStreamInfer(iter([]))) == []


# row: GRPC-14
def test_failures_are_messages(stub: Stub) -> None:
    """They name their request and keep the order, and the stream continues."""
    bad_version, bad_input = simple("version"), simple("input")
    bad_version.model_version = "x"
    bad_input.inputs[0].name = "X"
    bad_count = tokens(-1, "count")
    requests = [
        tokens(5, "slow", "tokens_together"), simple("absent", "absent"), bad_version, bad_input,
        simple("good"), bad_count,
    ]
    call = stub.ModelStreamInfer(iter(requests))
    responses = list(call)
    assert call.code() == grpc.StatusCode.OK
    fields = {
        r.infer_response.id: [field.name for field, _ in r.infer_response.ListFields()]
        for r in responses
    }
    in_turn = [shown(r) for r in responses if r.infer_response.id != "count"]
    assert in_turn == [
        ("slow", "outputs", True), ("absent", "error", False), ("version", "error", False),
        ("input", "error", False), ("good", "outputs", True),
    ]
    errors = {r.infer_response.id: r for r in responses if r.error_message}
    assert "unknown model" in errors["absent"].error_message
    assert "'X'" in errors["input"].error_message
    # A model's error has more fields than the error of a request that doesn't reach a model.
    assert errors["count"].infer_response.model_name == "tokens"
    assert errors["count"].infer_response.parameters["triton_final_response"].bool_param
    assert {name: fields[name] for name in ("absent", "version", "input")} == {
        name: ["id"] for name in ("absent", "version", "input")
    }


# row: GRPC-14
def test_failures_as_status(stub: Stub) -> None:
    """The client requested that a model's first failure ends the stream."""
    requests = Requests([simple("absent", "absent"), simple("good")])
    call = stub.ModelStreamInfer(iter(requests), metadata=ERRORS_AS_STATUS)
    assert shown(next(call)) == ("absent", "error", False)
    assert shown(next(call)) == ("good", "outputs", True)
    # The request before it is cancelled.
    requests.send(tokens(ENDLESS, "endless"))
    assert shown(next(call)) == ("endless", "outputs", False)
    requests.send(tokens(-1))
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    requests.end()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "COUNT" in caught.value.details()


@pytest.mark.parametrize("name", ["sequence_id", "triton_enable_empty_final_response", "triton_x"])
def test_parameters_of_a_wrong_type(stub: Stub, name: str) -> None:
    """The error affects only its request."""
    request = simple("bad")
    request.parameters[name].double_param = 1.5
    bad, good = stub.ModelStreamInfer(iter([request, simple("good")]))
    assert shown(bad) == ("bad", "error", False)
    assert shown(good) == ("good", "outputs", True)


# row: GRPC-10 CFG-19
def test_single_calls_to_decoupled_models(stub: Stub) -> None:
    """One call has one response."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(tokens(1))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "decoupled" in caught.value.details()


def finished(server: Server, model: str) -> int:
    """The number of finished requests of a model, successful or not."""
    statistics = server.statistics(model)["inference_stats"]
    return statistics["success"]["count"] + statistics["fail"]["count"]


def is_idle(server: Server, model: str) -> bool:
    """Returns true if the model has no requests at all."""
    sequences = server.scheduler(model)["sequences"]
    return sequences["taken_slots"] == sequences["backlog_length"] == 0


@pytest.mark.parametrize("model", ["tokens", "tokens_together"])
@pytest.mark.parametrize("how", ["cancelled", "disconnected"])
# row: GRPC-15 CAN-02
def test_a_broken_stream_cancels_its_requests(streaming: Server, model: str, how: str) -> None:
    """Endless requests end with their stream."""
    # Requests of earlier tests are counted when they end.
    wait_until(lambda: is_idle(streaming, model), RESPONSE_SECONDS_MAX, "nothing is left")
    before = finished(streaming, model)
    requests = Requests([tokens(ENDLESS, str(number), model) for number in range(3)])
    # The response to this one shows that the earlier ones have started.
    requests.send(tokens(1, "probe"))
    with grpc.insecure_channel(streaming.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(iter(requests))
        assert any(shown(response)[0] == "probe" for response in call)
        if how == "cancelled":
            call.cancel()
    requests.end()
    expected = before + 3 + (model == "tokens")
    wait_until(lambda: finished(streaming, model) == expected, RESPONSE_SECONDS_MAX, "all are over")


@pytest.mark.parametrize("model", ["tokens", "tokens_together"])
def test_a_stream_past_its_deadline_cancels_its_requests(streaming: Server, model: str) -> None:
    """A deadline has the same effect as a broken connection."""
    # If the machine pauses, a short deadline may pass without a single response.
    for seconds in (1, 5, 30):
        wait_until(lambda: is_idle(streaming, model), RESPONSE_SECONDS_MAX, "nothing is left")
        before = finished(streaming, model)
        requests = Requests([tokens(ENDLESS, str(number), model) for number in range(3)])
        requests.send(tokens(1, "probe"))
        responded = []
        with grpc.insecure_channel(streaming.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            call = stub.ModelStreamInfer(iter(requests), timeout=seconds)
            with pytest.raises(grpc.RpcError) as caught:
                responded.extend(shown(response)[0] for response in call)
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        requests.end()
        if "probe" in responded:
            break
    assert "probe" in responded
    expected = before + 3 + (model == "tokens")
    wait_until(lambda: finished(streaming, model) == expected, RESPONSE_SECONDS_MAX, "all are over")


def test_more_requests_than_a_stream_takes_at_once(stub: Stub) -> None:
    """The client sends all of them before it reads one response."""
    count = 10_000
    sent = threading.Event()

    def requests() -> Iterator[service_pb2.ModelInferRequest]:
        yield from (simple(str(number)) for number in range(count))
        sent.set()

    call = stub.ModelStreamInfer(requests())
    first = next(call)
    names = [first.infer_response.id] + [response.infer_response.id for response in call]
    assert names == [str(number) for number in range(count)]
    assert sent.is_set()


def library_inputs(library: Any, count: int) -> list[Any]:
    """The request for tokens in the form that the client library expects."""
    tensor = library.InferInput("COUNT", [1, 1], "INT32")
    tensor.set_data_from_numpy(numpy.array([[count]], numpy.int32))
    return [tensor]


class Callback:
    """The responses of a client library's stream."""

    def __init__(self, client: tritonclient.grpc.InferenceServerClient, **options: Any) -> None:
        """Starts the stream."""
        self.received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.start_stream(lambda result, error: self.received.put((result, error)), **options)

    def get(self) -> tuple[Any, Any]:
        """The next response or error."""
        return self.received.get(timeout=RESPONSE_SECONDS_MAX)


def test_the_client_library(streaming: Server) -> None:
    """The library's stream with a callback, with last responses and with an error between them."""
    with tritonclient.grpc.InferenceServerClient(streaming.grpc_url) as client:
        stream = Callback(client)
        client.async_stream_infer(
            "tokens", library_inputs(tritonclient.grpc, 3), request_id="a",
            enable_empty_final_response=True,
        )
        for number in range(3):
            result, error = stream.get()
            assert error is None
            assert result.as_numpy("TOKEN").tolist() == [[number]]
            final = result.get_response().parameters["triton_final_response"].bool_param
            assert final == (number == 2)
        client.async_stream_infer("absent", library_inputs(tritonclient.grpc, 3))
        result, error = stream.get()
        assert result is None and "unknown model" in error.message()
        client.async_stream_infer("tokens_together", library_inputs(tritonclient.grpc, 3))
        result, error = stream.get()
        assert error is None and result.as_numpy("TOKEN").tolist() == [[0, 1, 2]]
        client.stop_stream()


def test_the_client_library_with_status(streaming: Server) -> None:
    """In this case, the error has a status, and the stream ends."""
    with tritonclient.grpc.InferenceServerClient(streaming.grpc_url) as client:
        stream = Callback(client, headers=dict(ERRORS_AS_STATUS))
        client.async_stream_infer("tokens", library_inputs(tritonclient.grpc, -1))
        result, error = stream.get()
        assert result is None and error.status() == "StatusCode.INVALID_ARGUMENT"
        client.stop_stream()


async def read_all(url: str) -> dict[str, list[int]]:
    """The tokens of each request, over a stream of the asynchronous library."""

    async def requests() -> Any:
        for name, count in (("a", 4), ("b", 2), ("c", 3)):
            inputs = library_inputs(tritonclient.grpc.aio, count)
            yield {"model_name": "tokens", "inputs": inputs, "request_id": name}

    received: dict[str, list[int]] = {}
    async with tritonclient.grpc.aio.InferenceServerClient(url) as client:
        async for result, error in client.stream_infer(requests()):
            assert error is None
            received.setdefault(result.get_response().id, []).append(
                int(result.as_numpy("TOKEN")[0, 0])
            )
    return received


def test_the_asynchronous_library(streaming: Server) -> None:
    """Each request gets its tokens in order."""
    received = asyncio.run(read_all(streaming.grpc_url))
    assert received == {"a": [0, 1, 2, 3], "b": [0, 1], "c": [0, 1, 2]}


async def cancel_one_of_two(url: str) -> list[int]:
    """Cancels one stream, and reads another to its end."""

    async def endless() -> Any:
        inputs = library_inputs(tritonclient.grpc.aio, ENDLESS)
        yield {"model_name": "tokens", "inputs": inputs}

    async def short() -> Any:
        yield {"model_name": "tokens", "inputs": library_inputs(tritonclient.grpc.aio, 5)}

    async with tritonclient.grpc.aio.InferenceServerClient(url) as client:
        broken = client.stream_infer(endless())
        async for _ in broken:
            assert broken.cancel()
            break
        return [
            int(result.as_numpy("TOKEN")[0, 0]) async for result, _ in client.stream_infer(short())
        ]


def test_the_asynchronous_library_cancels(streaming: Server) -> None:
    """A connection's streams end one by one."""
    assert asyncio.run(cancel_one_of_two(streaming.grpc_url)) == list(range(5))


@pytest.mark.parametrize("is_idle", [True, False])
# row: GRPC-17
def test_a_stopping_server_ends_streams(
    start_server: StartServer, tmp_path: pathlib.Path, is_idle: bool
) -> None:
    """Started requests get their responses; an open stream does not delay the shutdown."""
    write_token_counter(tmp_path, "tokens", decoupled=True)
    with start_server(tmp_path, "--exit-timeout-secs=40") as server:
        server.wait_until_ready()
        requests = Requests([tokens(1 if is_idle else 300, "a")])
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            call = stub.ModelStreamInfer(iter(requests))
            received = [next(call)]
            server.terminate()
            with pytest.raises(grpc.RpcError) as caught:
                received.extend(call)
        requests.end()
        assert [shown(r)[2] for r in received] == [False] * (len(received) - 1) + [True]
        assert len(received) == (1 if is_idle else 300)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in caught.value.details()
        assert server.wait_for_exit() == 0

