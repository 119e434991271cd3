"""Tests of PyTorch tensors in models: DLPack in both directions.

Skipped unless GALATEA_TORCH_PYTHON names an interpreter with PyTorch and numpy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy
import pytest
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from python_backend import tensor, write_model
from server import HEADER_LENGTH, Server
from test_python_models import DATATYPES, texts
from transports import Http

TORCH = os.environ.get("GALATEA_TORCH_PYTHON", "")

pytestmark = pytest.mark.skipif(
    not TORCH, reason="needs a Python with PyTorch in GALATEA_TORCH_PYTHON"
)
CONFIG = tensor("input", "WAY", "STRING", "1") + "".join(
    tensor("input", f"IN_{name}", name, "-1, -1", True)
    + tensor("output", f"OUT_{name}", name, "-1, -1")
    for name in [*DATATYPES, "BF16"]
)
#: Shapes of tensors that travel with the request, in shared memory, and without elements.
SHAPES = [(2, 3), (300, 200), (0, 4)]
#: PyTorch imports slowly.
LOAD_SECONDS_MAX = 300


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("torch")
    write_model(repository, "m", CONFIG, "torch_tensors")
    with start_server(repository, f"--backend-config=python,interpreter={TORCH}") as running:
        yield running.wait_until_ready(LOAD_SECONDS_MAX)
    assert running.process.returncode == 0


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Http]:
    one = Http(server)
    yield one
    one.close()


def infer(client: Http, way: str, values: numpy.ndarray, datatype: str = "FP32") -> numpy.ndarray:
    """The output for an input."""
    outputs = client.infer("m", {"WAY": texts(way), f"IN_{datatype}": values})
    return outputs[f"OUT_{datatype}"]


def sample(datatype: str, shape: tuple[int, ...]) -> numpy.ndarray:
    """Values of a data type."""
    return (numpy.arange(numpy.prod(shape)) % 100).reshape(shape).astype(DATATYPES[datatype])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["by_protocol", "by_capsule", "from_numpy"])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_both_ways(client: Http, datatype: str, way: str, shape: tuple[int, ...]) -> None:
    values = sample(datatype, shape)
    output = infer(client, way, values, datatype)
    assert (output.dtype, output.shape) == (values.dtype, values.shape)
    assert (output == values).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_results(client: Http, shape: tuple[int, ...]) -> None:
    values = sample("FP16", shape)
    assert (infer(client, "computed", values, "FP16") == values * 2).all()


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_inputs_are_not_copied(client: Http, shape: tuple[int, ...]) -> None:
    values = sample("FP32", shape)
    assert (infer(client, "in_place", values) == values + 1).all()


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_inputs_that_outlive_their_request(client: Http, shape: tuple[int, ...]) -> None:
    values = sample("FP32", shape)
    assert (infer(client, "keep", values) == values).all()
    for number in range(20):
        infer(client, "computed", numpy.full(shape, number, numpy.float32))
    assert (infer(client, "show", numpy.zeros((1, 1), numpy.float32)) == values).all()


def send_bf16(server: Server, way: str, content: bytes, datatype: str = "BF16") -> bytes:
    """Sends two elements, and returns the output's bytes, which have the type BF16."""
    data = {"name": f"IN_{datatype}", "datatype": datatype, "shape": [1, 2]}
    document = {
        "inputs": [
            {"name": "WAY", "datatype": "BYTES", "shape": [1], "data": [way]},
            {**data, "parameters": {"binary_data_size": len(content)}},
        ],
        "parameters": {"binary_data_output": True},
    }
    reply = server.infer("m", document, content)
    head, body = reply.tensors()
    assert reply.headers[HEADER_LENGTH] is not None
    (output,) = head["outputs"]
    assert (output["name"], output["datatype"]) == ("OUT_BF16", "BF16")
    return body


def test_bf16(server: Server) -> None:
    two, minus_one = b"\x00\x40", b"\x80\xbf"
    assert send_bf16(server, "by_protocol", two + minus_one) == two + minus_one
    assert send_bf16(server, "by_capsule", two + minus_one) == two + minus_one
    assert send_bf16(server, "computed", minus_one + two) == b"\x00\xc0\x80\x40"
    singles = numpy.array([2, -1], numpy.float32).tobytes()
    assert send_bf16(server, "bfloat16", singles, "FP32") == two + minus_one


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("strided", "DLPack tensor is not contiguous."),
        ("with_gradient", "BufferError: Can't export tensors that require gradient"),
    ],
)
def test_refused(client: Http, way: str, text: str) -> None:
    with pytest.raises(InferenceServerException, match=text):
        infer(client, way, sample("FP32", (2, 4)))
