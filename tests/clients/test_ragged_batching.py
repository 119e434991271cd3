"""Tests of ragged inputs, and of the tensors that the server derives from a batch's shapes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import make_models
import numpy
import pytest

from conftest import StartServer
from server import Server
from transports import TRANSPORTS, GrpcStream

DATATYPES = {"int32": numpy.int32, "fp32": numpy.float32}


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The ragged models execute once three rows are waiting, but not before."""
    repository = tmp_path_factory.mktemp("ragged")
    make_models.write_models(repository, make_models.RAGGED_MODELS)
    with start_server(repository) as running:
        yield running.wait_until_ready()


def elements(shape: Sequence[int], first: int) -> numpy.ndarray:
    """Numbers that identify their request."""
    count = int(numpy.prod(shape))
    return numpy.arange(first, first + count, dtype=numpy.float32).reshape(shape)


def one_batch(
    server: Server, model: str, shapes: Sequence[Sequence[int]], with_rows: bool
) -> list[dict[str, numpy.ndarray]]:
    """Sends requests that fill exactly one batch, in order, and returns the outputs of each."""
    before = server.statistics(model)["execution_count"]
    with GrpcStream(server) as stream:
        for index, shape in enumerate(shapes):
            tensors = {"INPUT": elements(shape, 100 * index)}
            if with_rows:
                tensors["ROW"] = numpy.full((shape[0], 1), index, numpy.int32)
            stream.send(model, tensors, request_id=str(index))
        responses = stream.receive_all(len(shapes))
    if not server.is_triton:  # Triton responds before it counts.
        assert server.statistics(model)["execution_count"] - before == 1
    return [responses[str(index)] for index in range(len(shapes))]


@pytest.mark.parametrize("datatype", list(DATATYPES))
@pytest.mark.parametrize(
    "shapes", [[(1, 3), (1, 1), (1, 2)], [(1, 1), (1, 1), (1, 1)], [(2, 3), (1, 4)], [(3, 2)]]
)
# row: CFG-11 RAG-01 RAG-02
def test_every_batch_input(server: Server, datatype: str, shapes: list[tuple[int, int]]) -> None:
    """All elements are concatenated, and each kind of batch input describes them."""
    all_elements = numpy.concatenate(
        [elements(shape, 100 * index).reshape(-1) for index, shape in enumerate(shapes)]
    )
    counts = [rows * length for rows, length in shapes]
    sums = numpy.cumsum(counts).tolist()
    lengths = [length for rows, length in shapes for _ in range(rows)]
    expected: dict[str, Any] = {
        "ELEMENTS": all_elements.tolist(),
        "BATCH_ELEMENT_COUNT_BACK": counts,
        "BATCH_ACCUMULATED_ELEMENT_COUNT_BACK": sums,
        "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO_BACK": [0, *sums],
        "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE_BACK": [max(counts)],
        "BATCH_ITEM_SHAPE_BACK": lengths,
        "BATCH_ITEM_SHAPE_FLATTEN_BACK": lengths,
    }
    responses = one_batch(server, f"ragged_{datatype}", shapes, with_rows=True)
    for index, (outputs, (rows, _)) in enumerate(zip(responses, shapes, strict=True)):
        assert outputs.pop("ROW_BACK").tolist() == [[index]] * rows
        assert outputs["BATCH_ELEMENT_COUNT_BACK"].dtype == DATATYPES[datatype]
        shown = {name: array.tolist() for name, array in outputs.items()}
        assert shown == {name: [values] * rows for name, values in expected.items()}


@pytest.mark.parametrize("shapes", [[(1, 3), (1, 1), (1, 2)], [(2, 3), (1, 4)], [(3, 2)]])
# row: RAG-03
def test_scattered_output(server: Server, shapes: list[tuple[int, int]]) -> None:
    """Each request gets an output with its input's shape."""
    responses = one_batch(server, "ragged_scatter", shapes, with_rows=False)
    for index, (outputs, shape) in enumerate(zip(responses, shapes, strict=True)):
        assert outputs["OUTPUT"].tolist() == (2 * elements(shape, 100 * index)).tolist()


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_batch_of_one_request(server: Server, kind: str) -> None:
    """A batch of one request has the same form."""
    with contextlib.closing(TRANSPORTS[kind](server)) as transport:
        outputs = transport.infer("ragged_scatter", {"INPUT": elements((3, 5), 0)})
    assert outputs["OUTPUT"].tolist() == (2 * elements((3, 5), 0)).tolist()


# row: RAG-04
def test_batch_inputs_are_not_in_the_metadata(server: Server) -> None:
    """Clients send only the inputs in the configuration."""
    metadata = server.get("/v2/models/ragged_int32").json()
    assert sorted(one["name"] for one in metadata["inputs"]) == ["INPUT", "ROW"]
    tensor = {"name": "BATCH_ELEMENT_COUNT", "datatype": "INT32", "shape": [1], "data": [1]}
    row = {"name": "ROW", "datatype": "INT32", "shape": [3, 1], "data": [0, 0, 0]}
    given = {"name": "INPUT", "datatype": "FP32", "shape": [3, 1], "data": [0, 0, 0]}
    reply = server.infer("ragged_int32", {"inputs": [given, row, tensor]})
    assert reply.status == 400
    assert "BATCH_ELEMENT_COUNT" in reply.error()
