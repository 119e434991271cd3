"""Tests of compressed gRPC messages, with the client library."""

from __future__ import annotations

import asyncio
import pathlib
import queue
from collections.abc import Iterator

import grpc
import make_models
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from conftest import StartServer
from server import Server
from wire import Tap

MODEL = "identity_int32"
#: Compresses to a small part of its bytes.
VALUES = np.arange(100_000, dtype=np.int32).reshape(1, -1) // 1000
CODINGS = ["gzip", "deflate"]


def inputs() -> list[tritonclient.grpc.InferInput]:
    """The input of a request."""
    tensor = tritonclient.grpc.InferInput("INPUT0", VALUES.shape, "INT32")
    tensor.set_data_from_numpy(VALUES)
    return [tensor]


def check(result: tritonclient.grpc.InferResult) -> None:
    """Checks the output of a response."""
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), VALUES)


@pytest.fixture(scope="module", params=["none", "low", "medium", "high"])
def level_server(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A server that compresses responses at one of the levels."""
    repository = tmp_path_factory.mktemp("grpc_compression")
    make_models.write_models(repository, make_models.TEST_MODELS, [MODEL])
    flag = f"--grpc-infer-response-compression-level={request.param}"
    with start_server(repository, flag) as server:
        yield server.wait_until_ready()


@pytest.mark.parametrize("coding", CODINGS)
# row: GRPC-18
def test_unary_calls(level_server: Server, coding: str) -> None:
    """Requests and responses, including asynchronous ones."""
    with tritonclient.grpc.InferenceServerClient(level_server.grpc_url) as client:
        check(client.infer(MODEL, inputs(), compression_algorithm=coding))
        done: queue.Queue = queue.Queue()
        client.async_infer(
            MODEL,
            inputs(),
            lambda result, error: done.put((result, error)),
            compression_algorithm=coding,
        )
        result, error = done.get(timeout=60)
        assert error is None
        check(result)


@pytest.mark.parametrize("coding", CODINGS)
def test_streams(level_server: Server, coding: str) -> None:
    """Streams with compressed requests."""
    done: queue.Queue = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(level_server.grpc_url) as client:
        client.start_stream(
            lambda result, error: done.put((result, error)), compression_algorithm=coding
        )
        for _ in range(5):
            client.async_stream_infer(MODEL, inputs())
        for _ in range(5):
            result, error = done.get(timeout=60)
            assert error is None
            check(result)
        client.stop_stream()


@pytest.mark.parametrize("coding", CODINGS)
def test_asyncio(level_server: Server, coding: str) -> None:
    """The asyncio client, with unary calls and a stream."""

    async def run() -> None:
        async with tritonclient.grpc.aio.InferenceServerClient(level_server.grpc_url) as client:
            check(await client.infer(MODEL, inputs(), compression_algorithm=coding))

            async def requests():
                yield {"model_name": MODEL, "inputs": inputs()}

            stream = client.stream_infer(requests(), compression_algorithm=coding)
            async for result, error in stream:
                assert error is None
                check(result)

    asyncio.run(run())


def test_calls_that_are_no_inference(level_server: Server) -> None:
    """Every call accepts compressed requests."""
    options = {"compression": grpc.Compression.Gzip}
    with grpc.insecure_channel(level_server.grpc_url, **options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=MODEL)).name == MODEL
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="unknown" * 100))
        assert "unknownunknown" in caught.value.details()


@pytest.mark.parametrize("level", ["none", "high"])
# row: GRPC-18
def test_compression_saves_bytes(
    start_server: StartServer, tmp_path: pathlib.Path, level: str
) -> None:
    """Responses are shorter on the wire if the flag is set."""
    make_models.write_models(tmp_path, make_models.TEST_MODELS, [MODEL])
    with start_server(tmp_path, f"--grpc-infer-response-compression-level={level}") as server:
        tap = Tap(server.wait_until_ready())
        with tritonclient.grpc.InferenceServerClient(tap.grpc_url) as client:
            check(client.infer(MODEL, inputs()))
        received = tap.response_bytes
        tap.close()
    assert received > VALUES.nbytes if level == "none" else received < VALUES.nbytes // 10
