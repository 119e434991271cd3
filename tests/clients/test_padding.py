"""Tests of batches of requests with unequal lengths: padded, masked, and cut back."""

from __future__ import annotations

import concurrent.futures
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import onnx
import pytest
import tritonclient.grpc
from onnx import TensorProto, helper

from conftest import StartServer
from constant_models import replace_file
from python_backend import interpreter_flag, write_model
from server import Reply, Server

pytestmark = pytest.mark.galatea_only

#: What the ids of a shorter request are padded with.
FILL = 7
ROUNDS_MAX = 60
CLIENTS = 24
BUDGET = 64
#: With BUDGET, three of them share a batch at most.
LONG = range(20, 30)
#: The model `slow` takes this long for each element: 2 s for a long request, which is more than a
#: deadline of 1 s allows, and 50 ms for a short one.
ELEMENT_MS = 20
LONG_LENGTH, SHORT_LENGTH = 100, 2
DEADLINE = {"request-timeout": "1"}
#: This number of executions tells what a length costs.
LEARNED_AFTER = 3

TENSORS = """
max_batch_size: 8
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { }
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [
  { name: "sum" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "raw" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "states" data_type: TYPE_INT64 dims: [ -1 ] }
]
"""


def parameters(**values: str) -> str:
    """Parameters of a configuration."""
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )


PADDED = parameters(
    batch_padding=f"ids={FILL}", batch_padding_mask="mask", batch_padding_outputs="states=1"
)


def revealing_model() -> bytes:
    """`sum` is correct if the mask is; `raw` reveals the padding; `states` contains the doubled
    IDs.

    A loop makes most of the cost fixed, so batching pays off."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Add", ["value", "step"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("value", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.INT64, []),
        ],
    )
    dims, one = ["batch", "length"], ["batch", 1]
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMin", ["ids"], ["least"], keepdims=0),
            helper.make_node("Loop", ["rounds", "", "least"], ["looped"], body=body),
            helper.make_node("Mul", ["looped", "zero"], ["nothing"]),
            helper.make_node("Mul", ["ids", "mask"], ["own"]),
            helper.make_node("ReduceSum", ["own", "axis"], ["own_sum"]),
            helper.make_node("Add", ["own_sum", "nothing"], ["sum"]),
            helper.make_node("ReduceSum", ["ids", "axis"], ["raw"]),
            helper.make_node("Add", ["ids", "ids"], ["states"]),
        ],
        "revealing",
        [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name in ("ids", "mask")],
        [
            helper.make_tensor_value_info("sum", TensorProto.INT64, one),
            helper.make_tensor_value_info("raw", TensorProto.INT64, one),
            helper.make_tensor_value_info("states", TensorProto.INT64, dims),
        ],
        [
            helper.make_tensor("rounds", TensorProto.INT64, [], [3000]),
            helper.make_tensor("step", TensorProto.INT64, [], [1]),
            helper.make_tensor("zero", TensorProto.INT64, [], [0]),
            helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def write_onnx(repository: pathlib.Path, name: str, config: str) -> None:
    """Writes the revealing model with this configuration."""
    replace_file(repository / name / "1" / "model.onnx", revealing_model())
    text = f'backend: "onnxruntime"\n{config}'
    (repository / name / "config.pbtxt").write_text(text)


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Models whose requests are padded."""
    repository = tmp_path_factory.mktemp("padding")
    write_onnx(repository, "padded", TENSORS + PADDED)
    ordered = TENSORS.replace("{ }", "{ preserve_ordering: true }")
    write_onnx(repository, "ordered", ordered + PADDED)
    budget = parameters(batch_padding_budget=str(BUDGET))
    write_onnx(repository, "bounded", TENSORS + PADDED + budget)
    write_onnx(repository, "plain", TENSORS)
    objective = parameters(latency_objective_us="3600000000")
    write_onnx(repository, "due", TENSORS + PADDED + objective)
    write_onnx(repository, "due_bounded", TENSORS + PADDED + objective + budget)
    write_model(repository, "python", TENSORS + PADDED, "padded")
    slow = parameters(latency_objective_us="3600000000", element_ms=str(ELEMENT_MS))
    write_model(repository, "slow", TENSORS + PADDED + slow, "padded")
    with start_server(repository, interpreter_flag()) as running:
        yield running.wait_until_ready()


#: A request's outputs by name.
Outputs = dict[str, numpy.ndarray]
Call = Callable[[Server, str, numpy.ndarray, "numpy.ndarray | None"], Outputs]


def send_http(
    server: Server,
    model: str,
    ids: numpy.ndarray,
    mask: numpy.ndarray | None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """Sends a request over HTTP."""

    def tensor(name: str, values: numpy.ndarray) -> dict[str, Any]:
        shape, data = list(values.shape), values.ravel().tolist()
        return {"name": name, "shape": shape, "datatype": "INT64", "data": data}

    inputs = [tensor("ids", ids)] + ([] if mask is None else [tensor("mask", mask)])
    return server.infer(model, {"inputs": inputs}, headers=headers)


def outputs_of(reply: Reply) -> Outputs:
    """The outputs in a response over HTTP."""
    assert reply.status == 200, reply
    outputs = reply.json()["outputs"]
    return {one["name"]: numpy.array(one["data"]).reshape(one["shape"]) for one in outputs}


def call_http(
    server: Server, model: str, ids: numpy.ndarray, mask: numpy.ndarray | None
) -> Outputs:
    """Sends a request over HTTP and returns its outputs."""
    return outputs_of(send_http(server, model, ids, mask))


def call_grpc(
    server: Server, model: str, ids: numpy.ndarray, mask: numpy.ndarray | None
) -> Outputs:
    """Sends a request over gRPC."""
    inputs = []
    for name, values in (("ids", ids), ("mask", mask)):
        if values is not None:
            tensor = tritonclient.grpc.InferInput(name, list(values.shape), "INT64")
            tensor.set_data_from_numpy(values)
            inputs.append(tensor)
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        result = client.infer(model, inputs)
    return {name: result.as_numpy(name) for name in ("sum", "raw", "states")}


CALLS = {"http": call_http, "grpc": call_grpc}


def check(ids: numpy.ndarray, outputs: Outputs, mask: numpy.ndarray | None = None) -> bool:
    """Checks a response; returns true if its request was padded."""
    assert outputs["states"].tolist() == (2 * ids).tolist()
    own = ids if mask is None else ids * mask
    assert outputs["sum"].tolist() == own.sum(axis=1, keepdims=True).tolist()
    padding = outputs["raw"] - ids.sum(axis=1, keepdims=True)
    assert (padding >= 0).all() and (padding % FILL == 0).all()
    assert len(set(padding.ravel().tolist())) == 1
    return bool(padding[0, 0])


def send_until_padded(
    server: Server, model: str, call: Call, lengths: range, mask_share: float = 0.5
) -> None:
    """Sends requests with many lengths at once, until enough have been padded. A busy machine
    sends only a few of them at once."""
    source, padded = random.Random(17), 0

    def send(number: int) -> bool:
        rows = 2 if number % 8 == 0 else 1
        shape = (rows, source.choice(lengths))
        ids = numpy.array(
            [source.randint(100, 999) for _ in range(shape[0] * shape[1])], numpy.int64
        ).reshape(shape)
        mask = None
        if source.random() < mask_share:
            mask = numpy.array([source.randint(0, 1) for _ in range(ids.size)], numpy.int64)
            mask = mask.reshape(shape)
        return check(ids, call(server, model, ids, mask), mask)

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(ROUNDS_MAX):
            padded += sum(pool.map(send, range(2 * CLIENTS)))
            if padded >= CLIENTS // 2:
                return
    raise AssertionError(f"only {padded} requests were padded")


def largest_batch(server: Server, model: str) -> int:
    """The maximum number of rows in an executed batch."""
    return max(entry["batch_size"] for entry in server.statistics(model)["batch_stats"])


@pytest.mark.parametrize("protocol", CALLS)
@pytest.mark.parametrize("model", ["padded", "ordered", "python", "due"])
def test_requests_of_unequal_lengths_share_batches(
    server: Server, model: str, protocol: str
) -> None:
    """Each client gets the response to its own request, with its own length."""
    send_until_padded(server, model, CALLS[protocol], range(1, 40))
    assert 1 < largest_batch(server, model) <= 8


@pytest.mark.parametrize("model", ["bounded", "due_bounded"])
def test_batches_stay_within_the_budget(server: Server, model: str) -> None:
    """The product of rows and length never exceeds it."""
    send_until_padded(server, model, call_http, LONG)
    assert 1 < largest_batch(server, model) <= BUDGET // min(LONG)


def test_what_is_too_long_for_its_deadline_is_refused(server: Server) -> None:
    """A shorter request with the same deadline is executed."""
    long, short = (numpy.full((1, length), 100) for length in (LONG_LENGTH, SHORT_LENGTH))
    for ids in LEARNED_AFTER * [long, short]:
        check(ids, call_http(server, "slow", ids, None))
    reply = send_http(server, "slow", long, None, DEADLINE)
    assert reply.status == 503, reply
    assert "the request to model 'slow' would be answered too late" in reply.error()
    assert int(reply.headers["retry-after-ms"]) >= (LONG_LENGTH * ELEMENT_MS - 1000) * 0.9
    check(short, outputs_of(send_http(server, "slow", short, None, DEADLINE)))


def test_a_mask_is_made_only_for_padded_models(server: Server) -> None:
    """Without padding, a request without the mask is refused, as in Triton."""
    ids = numpy.array([[5, 6]], numpy.int64)
    check(ids, call_http(server, "padded", ids, None))
    inputs = [{"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [5, 6]}]
    reply = server.infer("plain", {"inputs": inputs})
    assert reply.status == 400 and "expected 2 inputs but got 1 inputs" in reply.error()


def test_lengths_that_differ_within_a_request_are_not_padded(server: Server) -> None:
    """Such a request is up to the model, and this model can't multiply them."""
    inputs = [
        {"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [5, 6]},
        {"name": "mask", "shape": [1, 3], "datatype": "INT64", "data": [1, 1, 1]},
    ]
    padded, plain = (server.infer(model, {"inputs": inputs}) for model in ("padded", "plain"))
    assert padded.status == plain.status >= 400
    assert "broadcast" in padded.error()


def test_metrics_tell_why_batches_are_closed(server: Server) -> None:
    """They include the reasons for padding."""
    send_until_padded(server, "bounded", call_http, LONG)
    status = server.scheduler("bounded")
    assert status["instances"], status
    reasons = [line for line in server.metrics().splitlines() if 'model="bounded"' in line]
    assert any('reason="cost"' in line or 'reason="budget"' in line for line in reasons), reasons


REFUSED = {
    "no_input": (parameters(batch_padding="idz=0"), "the model has no input 'idz'"),
    "wrong_value": (
        parameters(batch_padding="ids=0.5", batch_padding_outputs="states=1"),
        "'0.5' is not a value of input 'ids', whose data_type is TYPE_INT64",
    ),
    "no_outputs": (
        parameters(batch_padding="ids=0"),
        "output 'states' has a variable dimension; 'batch_padding_outputs' must say which",
    ),
    "wrong_axis": (
        parameters(batch_padding="ids=0", batch_padding_outputs="states=2"),
        "'2' is not a dimension of output 'states'",
    ),
    "no_budget": (PADDED + parameters(batch_padding_budget="-1"), "must be a positive integer"),
    "misspelled": (PADDED + parameters(batch_padding_bugdet="64"), "no such parameter"),
    "alone": (parameters(batch_padding_mask="mask"), "has no effect without 'batch_padding'"),
}


def test_wrong_configurations_are_refused(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The error names the parameter, its value, and what is wrong with it."""
    for name, (config, _) in REFUSED.items():
        write_onnx(tmp_path, name, TENSORS + config)
    sequences = TENSORS.replace("dynamic_batching", "sequence_batching")
    write_onnx(tmp_path, "sequences", sequences + PADDED)
    default = TENSORS.replace("dynamic_batching { }", "")
    write_onnx(tmp_path, "default", default + PADDED)
    expected = {name: text for name, (_, text) in REFUSED.items()}
    expected |= {
        "sequences": "padding is not possible with sequence_batching",
        "default": "padding needs dynamic_batching",
    }
    with start_server(tmp_path, "--exit-on-error=false") as running:
        running.wait_until_live()
        index = running.request("POST", "/v2/repository/index", b"{}").json()
        reasons = {entry["name"]: entry.get("reason", "") for entry in index}
        for name, text in expected.items():
            assert text in reasons[name], (name, reasons[name])
            assert f"of {name} is '" in reasons[name]
