"""Models for the tests: every data type, unusual shapes, and a selectable duration."""

from __future__ import annotations

import functools

import numpy
from onnx import GraphProto, TensorProto

from .graph import GraphBuilder
from .repository import Example, ExampleMaker

# The name in the inference protocol, the type in config.pbtxt, and the type in ONNX.
DATATYPES = (
    ("BOOL", "TYPE_BOOL", TensorProto.BOOL),
    ("UINT8", "TYPE_UINT8", TensorProto.UINT8),
    ("UINT16", "TYPE_UINT16", TensorProto.UINT16),
    ("UINT32", "TYPE_UINT32", TensorProto.UINT32),
    ("UINT64", "TYPE_UINT64", TensorProto.UINT64),
    ("INT8", "TYPE_INT8", TensorProto.INT8),
    ("INT16", "TYPE_INT16", TensorProto.INT16),
    ("INT32", "TYPE_INT32", TensorProto.INT32),
    ("INT64", "TYPE_INT64", TensorProto.INT64),
    ("FP16", "TYPE_FP16", TensorProto.FLOAT16),
    ("FP32", "TYPE_FP32", TensorProto.FLOAT),
    ("FP64", "TYPE_FP64", TensorProto.DOUBLE),
    ("BF16", "TYPE_BF16", TensorProto.BFLOAT16),
    ("BYTES", "TYPE_STRING", TensorProto.STRING),
)

SLOW_SIZE = 256


def onnx_identity(name: str, config_type: str, element_type: int) -> Example:
    """Returns its input. Batches may contain vectors of any length, including zero."""
    graph = GraphBuilder(name)
    value = graph.input("INPUT0", element_type, ["batch", "length"])
    graph.node("Identity", value, output="OUTPUT0")
    graph.output("OUTPUT0", element_type, ["batch", "length"])
    config = f"""\
name: "{name}"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: {config_type} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: {config_type} dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {1: graph.bytes()})


def backend_identity(name: str, config_type: str) -> Example:
    """The same with the identity backend, which needs no model file."""
    config = f"""\
name: "{name}"
backend: "identity"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: {config_type} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: {config_type} dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {})


def backend_identity_matrix() -> Example:
    """Accepts matrices of any size without a batch dimension."""
    config = """\
name: "identity_matrix"
backend: "identity"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
    return Example(config, {})


def onnx_scalar() -> Example:
    """Adds up a vector. The model's own output has only a batch dimension."""
    graph = GraphBuilder("onnx_scalar")
    value = graph.input("INPUT0", TensorProto.FLOAT, ["batch", "length"])
    axes = graph.weight(numpy.array([1]))
    graph.node("ReduceSum", value, axes, output="OUTPUT0", keepdims=0)
    graph.output("OUTPUT0", TensorProto.FLOAT, ["batch"])
    config = """\
name: "onnx_scalar"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
    return Example(config, {1: graph.bytes()})


def onnx_no_batch() -> Example:
    """Transposes a 2x3 matrix and has no batch dimension."""
    graph = GraphBuilder("onnx_no_batch")
    value = graph.input("INPUT0", TensorProto.FLOAT, [2, 3])
    graph.node("Transpose", value, output="OUTPUT0", perm=[1, 0])
    graph.output("OUTPUT0", TensorProto.FLOAT, [3, 2])
    config = """\
name: "onnx_no_batch"
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2, 3 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3, 2 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
    return Example(config, {1: graph.bytes()})


def onnx_two_variables() -> Example:
    """Two vectors of independent lengths: requests share a batch only if both are equal."""
    graph = GraphBuilder("onnx_two_variables")
    inputs = [
        graph.input(name, TensorProto.FLOAT, ["batch", f"length_{name}"])
        for name in ("INPUT0", "INPUT1")
    ]
    graph.node("Concat", *inputs, output="OUTPUT0", axis=1)
    graph.output("OUTPUT0", TensorProto.FLOAT, ["batch", "length"])
    config = """\
name: "onnx_two_variables"
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 100000 }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
    return Example(config, {1: graph.bytes()})


def onnx_whole_batch(settings: str = "dynamic_batching { }") -> Example:
    """Returns the inputs of all rows of its batch, in order, to each client."""
    graph = GraphBuilder("onnx_whole_batch")
    value = graph.input("INPUT0", TensorProto.INT32, ["batch", 1])
    rows = graph.node("Shape", value, start=0, end=1)
    column = graph.node("Concat", rows, graph.weight(numpy.array([1])), axis=0)
    flat = graph.node("Reshape", value, graph.weight(numpy.array([1, -1])))
    graph.node("Expand", flat, column, output="OUTPUT0")
    graph.output("OUTPUT0", TensorProto.INT32, ["batch", "rows"])
    config = f"""\
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }} ]
{settings}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {1: graph.bytes()})


def matrix_loop_body() -> GraphProto:
    """One round of the slow model: a matrix product, kept within bounds by tanh."""
    body = GraphBuilder("round")
    body.input("round", TensorProto.INT64, [])
    condition = body.input("go_on", TensorProto.BOOL, [])
    state = body.input("state", TensorProto.FLOAT, [SLOW_SIZE, SLOW_SIZE])
    body.node("Identity", condition, output="go_on_next")
    body.node("Tanh", body.node("MatMul", state, "mixing"), output="state_next")
    body.output("go_on_next", TensorProto.BOOL, [])
    body.output("state_next", TensorProto.FLOAT, [SLOW_SIZE, SLOW_SIZE])
    return body.graph()


def onnx_slow() -> Example:
    """Multiplies matrices ROUNDS times, and returns ROUNDS.

    The largest number in a batch applies. A round takes about a tenth of a millisecond, so a test
    can choose how long a request occupies the instance.
    """
    graph = GraphBuilder("onnx_slow")
    random = numpy.random.default_rng(3)
    rounds = graph.input("ROUNDS", TensorProto.INT64, ["batch", 1])
    mixing = random.standard_normal((SLOW_SIZE, SLOW_SIZE)).astype(numpy.float32) / SLOW_SIZE**0.5
    graph.weight(mixing, name="mixing")
    start = graph.weight(random.standard_normal((SLOW_SIZE, SLOW_SIZE)).astype(numpy.float32))
    most = graph.node("ReduceMax", rounds, keepdims=0)
    go_on = graph.weight(numpy.array(True))
    state = graph.node("Loop", most, go_on, start, body=matrix_loop_body())
    # Tanh keeps the mean below one, so it has no effect on the sum, but has to be computed.
    mean = graph.node("ReduceMean", state, keepdims=0)
    rest = graph.node("Cast", graph.node("Floor", graph.node("Abs", mean)), to=TensorProto.INT64)
    graph.node("Add", rounds, rest, output="DONE")
    graph.output("DONE", TensorProto.INT64, ["batch", 1])
    config = """\
name: "onnx_slow"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "ROUNDS" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "DONE" data_type: TYPE_INT64 dims: [ 1 ] } ]
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
    return Example(config, {1: graph.bytes()})


def _identity_makers() -> dict[str, ExampleMaker]:
    makers: dict[str, ExampleMaker] = {}
    for protocol_name, config_type, element_type in DATATYPES:
        for backend in ("onnx_identity", "identity"):
            name = f"{backend}_{protocol_name.lower()}"
            if backend == "identity":
                makers[name] = functools.partial(backend_identity, name, config_type)
            else:
                makers[name] = functools.partial(onnx_identity, name, config_type, element_type)
    return makers


MODELS = {
    **_identity_makers(),
    "identity_matrix": backend_identity_matrix,
    "onnx_scalar": onnx_scalar,
    "onnx_no_batch": onnx_no_batch,
    "onnx_two_variables": onnx_two_variables,
    "onnx_slow": onnx_slow,
    "onnx_whole_batch": onnx_whole_batch,
}
