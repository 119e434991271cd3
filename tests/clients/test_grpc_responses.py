"""Tests of how many responses a model sends, how many of them wait, and how long they are
delayed."""

from __future__ import annotations

import json
import pathlib
import queue
import time
from collections.abc import Iterator

import make_models
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from compiling import ROOT, compile_library
from conftest import StartServer
from latch import Latch
from raw_http2 import DATA, SETTINGS, Http2Connection, frame, is_end_of
from server import Server, wait_until

CONFIG = """\
backend: "repeater"
max_batch_size: 0
input {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }}
model_transaction_policy {{ decoupled: {decoupled} }}
"""
#: Longer than any test takes.
FOREVER_SECONDS = 100_000
POOL = 5
RESPONSES = 100
WINDOW_UPDATE, INITIAL_WINDOW_SIZE = 8, 4
RST_STREAM, CANCEL = 3, 8
END_DELAY_SECONDS = 1


def write_model(repository: pathlib.Path, name: str, decoupled: bool) -> None:
    """A model that sends one response per input element, and its final flag separately."""
    (repository / name / "1").mkdir(parents=True)
    config = CONFIG.format(decoupled="true" if decoupled else "false")
    (repository / name / "config.pbtxt").write_text(config)
    source = ROOT / "examples" / "backends" / "repeater.c"
    compile_library(source, repository / name / "libtriton_repeater.so")


@pytest.fixture(scope="module")
def single_server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with a model that isn't decoupled and sends any number of responses."""
    repository = tmp_path_factory.mktemp("grpc_responses")
    write_model(repository, "single", decoupled=False)
    with start_server(repository) as server:
        yield server.wait_until_ready()


def inputs(count: int) -> list[tritonclient.grpc.InferInput]:
    """The input that requests this many responses."""
    tensor = tritonclient.grpc.InferInput("IN", [count], "INT32")
    tensor.set_data_from_numpy(np.arange(count, dtype=np.int32) + 7)
    return [tensor]


@pytest.mark.parametrize("count", [0, 4])
# row: DEC-04
def test_a_unary_call_expects_one_response(single_server: Server, count: int) -> None:
    """Other numbers cause an error, over HTTP as well."""
    text = f"expected a single response, got {count}"
    with tritonclient.grpc.InferenceServerClient(single_server.grpc_url) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("single", inputs(count))
        assert (caught.value.status(), caught.value.message()) == ("StatusCode.INTERNAL", text)
    tensor = {"name": "IN", "shape": [count], "datatype": "INT32", "data": [7] * count}
    reply = single_server.infer("single", {"inputs": [tensor]})
    assert reply.status == 500
    # Triton sends the first response followed by several errors.
    assert reply.body.endswith(json.dumps({"error": text}, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "count", [1, 4, pytest.param(0, marks=pytest.mark.galatea_only)], ids=["one", "four", "none"]
)
# row: DEC-04
def test_a_stream_gets_the_first_response(single_server: Server, count: int) -> None:
    """Other responses are dropped. Triton 2.51 ends if there is no response."""
    done: queue.Queue = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(single_server.grpc_url) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        for number in range(2):
            client.async_stream_infer("single", inputs(count), request_id=str(number))
        for number in range(2):
            result, error = done.get(timeout=60)
            if count == 0:
                assert error.message() == "expected a single response, got 0"
                continue
            assert error is None
            response = result.get_response()
            assert response.id == str(number)
            assert result.as_numpy("OUT").tolist() == [7]
            # The final flag came later, without a response.
            assert not response.parameters["triton_final_response"].bool_param
        client.stop_stream()
    assert done.empty()


# row: GRPC-21 DEC-05
def test_a_pool_bounds_responses_that_wait(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A model waits for a client that doesn't read, but not for other clients."""
    for name in ("blocked", "other"):
        write_model(tmp_path, name, decoupled=True)

    def sent(server: Server, model: str) -> int:
        statistics = server.statistics(model).get("response_stats", {})
        return sum(int(entry["success"]["count"]) for entry in statistics.values())

    def message(model: str) -> bytes:
        request = service_pb2.ModelInferRequest(model_name=model)
        tensor = request.inputs.add(name="IN", datatype="INT32", shape=[RESPONSES])
        tensor.contents.int_contents.extend(range(RESPONSES))
        return request.SerializeToString()

    with (
        start_server(tmp_path, f"--grpc-max-response-pool-size={POOL}") as server,
        Http2Connection(server.wait_until_ready()) as connection,
    ):
        connection.send(
            frame(SETTINGS, payload=INITIAL_WINDOW_SIZE.to_bytes(2) + (0).to_bytes(4))
        )
        path = "/inference.GRPCInferenceService/ModelStreamInfer"
        stream = connection.call(path, message("blocked"))
        wait_until(lambda: sent(server, "blocked") >= POOL - 1, 60, "responses wait")
        done: queue.Queue = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.start_stream(lambda result, error: done.put((result, error)))
            client.async_stream_infer("other", inputs(RESPONSES))
            for _ in range(RESPONSES):
                assert done.get(timeout=60)[1] is None
            client.stop_stream()
        assert sent(server, "blocked") <= POOL + 1
        window = (1 << 20).to_bytes(4)
        connection.send(frame(WINDOW_UPDATE, stream=stream, payload=window))
        body = b""
        for one in connection.frames():
            body += one.payload if one.kind == DATA else b""
            if one.flags & 1 and one.stream == stream:
                break
        assert body.count(b"blocked") == RESPONSES


@pytest.fixture
def identity(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository with a fast model."""
    make_models.write_models(tmp_path, make_models.TEST_MODELS, ["identity_int32"])
    return tmp_path


def test_responses_are_delayed_for_tests(
    start_server: StartServer, identity: pathlib.Path
) -> None:
    """As Triton's tests require, only calls that aren't inferences are delayed."""
    environment = {"TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC": str(FOREVER_SECONDS)}
    tensor = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
    with start_server(identity, environment=environment) as server:
        client = tritonclient.grpc.InferenceServerClient(server.wait_until_ready().grpc_url)
        for call in (client.is_server_live, client.get_model_repository_index):
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                call(client_timeout=0.5)
        assert client.infer("identity_int32", [tensor]).as_numpy("OUTPUT0").tolist() == [[1]]
        client.close()
        if server.is_triton:
            server.process.kill()
    environment["TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC"] = "1"
    with start_server(identity, environment=environment) as server:
        client = tritonclient.grpc.InferenceServerClient(server.wait_until_ready().grpc_url)
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.is_server_live(client_timeout=0.1)
        assert client.is_server_live()
        client.close()


def test_the_start_of_inferences_is_delayed_for_tests(
    start_server: StartServer, identity: pathlib.Path
) -> None:
    """An inference that is cancelled in the meantime isn't started."""
    tensor = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
    environment = {"TRITONSERVER_DELAY_GRPC_PROCESS": str(FOREVER_SECONDS * 1000)}
    with start_server(identity, environment=environment) as server:
        server.wait_until_ready()
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                client.infer("identity_int32", [tensor], client_timeout=0.5)
            assert client.is_server_live()
        statistics = server.statistics("identity_int32")
        assert int(statistics["inference_stats"]["success"]["count"]) == 0
        if server.is_triton:
            server.process.kill()


@pytest.mark.galatea_only
def test_requests_of_streams_are_delayed_for_tests(
    start_server: StartServer, identity: pathlib.Path
) -> None:
    """They start after the delay. Later releases of Triton read the variable."""
    tensor = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
    environment = {"TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY": "1000"}
    with start_server(identity, environment=environment) as server:
        url = server.wait_until_ready().grpc_url
        for timeout in (0.2, None):
            done: queue.Queue = queue.Queue()
            with tritonclient.grpc.InferenceServerClient(url) as client:
                client.start_stream(
                    lambda result, error, done=done: done.put((result, error)),
                    stream_timeout=timeout,
                )
                client.async_stream_infer("identity_int32", [tensor])
                result, error = done.get(timeout=60)
                if timeout is None:
                    assert result.as_numpy("OUTPUT0").tolist() == [[1]]
                else:
                    assert "Deadline Exceeded" in error.message()


@pytest.mark.galatea_only
def test_ends_of_cancelled_inferences_are_delayed_for_tests(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The thread that ends a request waits, so the model's next request waits too. Later
    releases of Triton read the variable."""
    environment = {"TRITONSERVER_DELAY_GRPC_ENQUEUE": str(END_DELAY_SECONDS * 1000)}
    request = service_pb2.ModelInferRequest(model_name="slow")
    tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    tensor.contents.int_contents.append(7)
    infer = ("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString())
    with (
        Latch(tmp_path, "slow") as latch,
        start_server(tmp_path, environment=environment) as server,
        Http2Connection(server.wait_until_ready()) as connection,
    ):
        first = connection.call(*infer)
        wait_until(lambda: server.is_executing("slow"), 60, "the first is executed")
        second = connection.call(*infer)
        server.wait_for_pending("slow", 1)
        connection.send(frame(RST_STREAM, stream=first, payload=CANCEL.to_bytes(4)))
        # The server reads it after the cancellation.
        live = connection.call("/inference.GRPCInferenceService/ServerLive", b"")
        connection.read_until(is_end_of(live))
        begin = time.monotonic()
        latch.open()
        connection.read_until(lambda one: one.stream == second and one.kind == DATA)
        # A busy machine takes longer, never less.
        assert time.monotonic() - begin >= END_DELAY_SECONDS
