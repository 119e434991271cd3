"""Tests of decoupled models that the tests of Triton's clients use: repeat_int32 and
square_int32."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy
import pytest
from tritonclient.utils import InferenceServerException

from compiling import build_examples
from conftest import ROOT, StartServer
from server import Server
from test_plugin_backends import stream_all
from transports import GrpcStream

EXAMPLES = ROOT / "examples" / "backends"
REPEAT = """
backend: "example_repeat"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }
]
output [
  { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }
]
instance_group { kind: KIND_CPU count: 1 }
"""
SQUARE = """
backend: "example_square"
max_batch_size: %d
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
MODELS = {
    "repeat_int32": REPEAT,
    "square_int32": SQUARE % 0,
    "square_int32_batched": SQUARE % 8 + "dynamic_batching { }",
}


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with the models for the example backends."""
    backends = tmp_path_factory.mktemp("backends")
    build_examples(EXAMPLES, backends)
    repository = tmp_path_factory.mktemp("decoupled_models")
    for name, config in MODELS.items():
        write(repository, name, config)
    with start_server(repository, f"--backend-directory={backends}") as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def write(repository: pathlib.Path, name: str, config: str) -> None:
    """A model that consists of only a configuration."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)


def repeat(values: list[int], delays: list[int], wait: int) -> dict[str, numpy.ndarray]:
    """The inputs of repeat_int32."""
    return {
        "IN": numpy.array(values, numpy.int32),
        "DELAY": numpy.array(delays, numpy.uint32),
        "WAIT": numpy.array([wait], numpy.uint32),
    }


@pytest.mark.parametrize("values", [[], [7], [4, -2, 0, 1]])
@pytest.mark.parametrize(("delay", "wait"), [(0, 0), (5, 0), (0, 40)])
# row: CFG-19 DEC-06
def test_repeat(server: Server, values: list[int], delay: int, wait: int) -> None:
    """Each element has a response with its index, before or after the request's release."""
    responses = stream_all(server, "repeat_int32", repeat(values, [delay] * len(values), wait))
    assert [int(response["OUT"][0]) for response in responses] == values
    assert [int(response["IDX"][0]) for response in responses] == list(range(len(values)))
    assert all(response["IDX"].dtype == numpy.uint32 for response in responses)


# row: DEC-01
def test_responses_of_several_requests_interleave(server: Server) -> None:
    """One instance executes both, and the later one overtakes the earlier one."""
    stream = GrpcStream(server)
    stream.send("repeat_int32", repeat([1, 2], [0, 600_000], 0), request_id="slow")
    assert stream.receive()[0] == "slow"
    stream.send("repeat_int32", repeat([3], [0], 0), request_id="quick")
    name, response = stream.receive()
    assert (name, int(response["OUT"][0])) == ("quick", 3)
    # The other response would take another ten minutes.
    stream.close(cancel=True)


def test_shapes_that_do_not_fit_are_refused(server: Server) -> None:
    """There must be as many delays as elements."""
    with pytest.raises(InferenceServerException, match="as many elements"):
        stream_all(server, "repeat_int32", repeat([1, 2], [0], 0))


@pytest.mark.parametrize(
    ("model", "shape"), [("square_int32", [1]), ("square_int32_batched", [1, 1])]
)
@pytest.mark.parametrize("number", [-3, 0, 1, 50])
# row: DEC-06
def test_square(server: Server, model: str, shape: list[int], number: int) -> None:
    """The number is both the count and the value of the responses."""
    responses = stream_all(server, model, {"IN": numpy.full(shape, number, numpy.int32)})
    assert [response["OUT"].tolist() for response in responses] == [
        numpy.full(shape, number).tolist()
    ] * max(number, 0)


def test_square_takes_one_number(server: Server) -> None:
    """A request must be a batch of one."""
    with pytest.raises(InferenceServerException, match="one element"):
        stream_all(server, "square_int32_batched", {"IN": numpy.ones([2, 1], numpy.int32)})
