"""Tests of dynamic batching, verified by statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import make_models
import numpy
import pytest
import tritonclient.grpc.aio as client

from conftest import StartServer
from server import Server, wait_until

REQUEST_COUNT = 32
BUSY_ROUNDS = 3000
MODELS = ["onnx_slow", "onnx_two_variables", "identity_int32", "onnx_identity_int32"]


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """This uses a separate server, because cancelled requests from other tests would be counted
    here."""
    repository = tmp_path_factory.mktemp("batching")
    make_models.write_models(repository, make_models.TEST_MODELS, MODELS)
    with start_server(repository) as running:
        yield running.wait_until_ready()


def rounds(number: int) -> list[client.InferInput]:
    """The input of the slow model."""
    tensor = client.InferInput("ROUNDS", [1, 1], "INT64")
    tensor.set_data_from_numpy(numpy.array([[number]], numpy.int64))
    return [tensor]


def vectors(lengths: tuple[int, int], number: int) -> list[client.InferInput]:
    """Two vectors filled with a number that identifies the request."""
    inputs = []
    for index, length in enumerate(lengths):
        tensor = client.InferInput(f"INPUT{index}", [1, length], "FP32")
        tensor.set_data_from_numpy(numpy.full((1, length), number, numpy.float32))
        inputs.append(tensor)
    return inputs


def at_once(server: Server, model: str, requests: list[list[client.InferInput]]) -> list[Any]:
    """Sends all requests at the same time."""

    async def send() -> list[Any]:
        async with client.InferenceServerClient(server.grpc_url) as connection:
            return await asyncio.gather(*(connection.infer(model, one) for one in requests))

    return asyncio.run(send())


def growth(after: dict[str, Any], before: dict[str, Any], name: str) -> int:
    """The increase of a counter."""
    return after[name] - before[name]


def settled_statistics(
    server: Server, model: str, before: dict[str, Any], count: int
) -> dict[str, Any]:
    """The statistics once they count all requests: Triton responds before it counts."""

    def all_are_counted() -> bool:
        return growth(server.statistics(model), before, "inference_count") >= count

    wait_until(all_are_counted, 60, "all requests are counted")
    return server.statistics(model)


def batch_counts(statistics: dict[str, Any]) -> dict[int, int]:
    """The number of executions for each batch size."""
    return {
        entry["batch_size"]: entry["compute_infer"]["count"] for entry in statistics["batch_stats"]
    }


# row: DYN-02
def test_requests_that_wait_share_batches(server: Server) -> None:
    """Requests accumulate in the queue while the only instance is busy."""
    before = server.statistics("onnx_slow")
    # Each takes longer than the client needs to send another.
    numbers = [BUSY_ROUNDS, *range(50, 50 + REQUEST_COUNT)]
    results = at_once(server, "onnx_slow", [rounds(number) for number in numbers])
    assert [int(result.as_numpy("DONE")[0, 0]) for result in results] == numbers

    after = settled_statistics(server, "onnx_slow", before, REQUEST_COUNT + 1)
    inferences = growth(after, before, "inference_count")
    executions = growth(after, before, "execution_count")
    assert inferences == REQUEST_COUNT + 1
    assert executions < inferences
    sizes = batch_counts(after)
    assert max(sizes) <= 8
    grown = {size: count - batch_counts(before).get(size, 0) for size, count in sizes.items()}
    assert sum(size * count for size, count in grown.items()) == inferences
    assert sum(grown.values()) == executions


# row: BEK-01 DYN-03
def test_each_client_gets_its_own_rows(server: Server) -> None:
    """Each client gets the response to its own request."""
    requests = [vectors((2, 3), number) for number in range(REQUEST_COUNT)]
    results = at_once(server, "onnx_two_variables", requests)
    for number, result in enumerate(results):
        assert result.as_numpy("OUTPUT0").tolist() == [[number] * 5]


# row: DYN-15
def test_only_equal_shapes_share_a_batch(server: Server) -> None:
    """Both variable inputs have to agree."""
    shapes = [(1, 2), (2, 1), (2, 2)]
    before = server.statistics("onnx_two_variables")
    requests = [vectors(shapes[number % 3], number) for number in range(REQUEST_COUNT)]
    results = at_once(server, "onnx_two_variables", requests)
    for number, result in enumerate(results):
        length = sum(shapes[number % 3])
        assert result.as_numpy("OUTPUT0").tolist() == [[number] * length]
    after = settled_statistics(server, "onnx_two_variables", before, REQUEST_COUNT)
    assert growth(after, before, "inference_count") == REQUEST_COUNT
    assert growth(after, before, "execution_count") >= len(shapes)


# row: CFG-05 DYN-03
def test_requests_that_are_batches_themselves(server: Server) -> None:
    """The server's batches consist of complete requests, and stay within the limit."""
    requests = []
    for number in range(12):
        rows = number % 5 + 1
        tensor = client.InferInput("ROUNDS", [rows, 1], "INT64")
        tensor.set_data_from_numpy(numpy.full((rows, 1), number, numpy.int64))
        requests.append([tensor])
    results = at_once(server, "onnx_slow", [rounds(BUSY_ROUNDS), *requests])
    for number, result in enumerate(results[1:]):
        assert result.as_numpy("DONE").tolist() == [[number]] * (number % 5 + 1)
    assert max(batch_counts(server.statistics("onnx_slow"))) <= 8


@pytest.mark.parametrize("model", ["identity_int32", "onnx_identity_int32"])
# row: DYN-01
def test_without_a_batcher_nothing_is_merged(server: Server, model: str) -> None:
    """A model without dynamic_batching executes each request alone."""
    before = server.statistics(model)
    requests = []
    for number in range(REQUEST_COUNT):
        tensor = client.InferInput("INPUT0", [1, 4], "INT32")
        tensor.set_data_from_numpy(numpy.full((1, 4), number, numpy.int32))
        requests.append([tensor])
    results = at_once(server, model, requests)
    values = [result.as_numpy("OUTPUT0").tolist() for result in results]
    assert values == [[[number] * 4] for number in range(REQUEST_COUNT)]
    after = settled_statistics(server, model, before, REQUEST_COUNT)
    assert growth(after, before, "inference_count") == REQUEST_COUNT
    assert growth(after, before, "execution_count") == REQUEST_COUNT
