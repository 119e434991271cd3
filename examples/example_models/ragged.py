"""Models with ragged inputs and tensors that the server generates from their shapes."""

from __future__ import annotations

import functools

import numpy
from onnx import TensorProto

from .graph import GraphBuilder
from .repository import Example, ExampleMaker

# The kind in config.pbtxt, and the shape of the tensor in ONNX.
BATCH_INPUTS = {
    "BATCH_ELEMENT_COUNT": ["requests"],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": ["requests"],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": ["requests_and_one"],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": ["most"],
    "BATCH_ITEM_SHAPE": ["rows", "rank"],
    "BATCH_ITEM_SHAPE_FLATTEN": ["rows_times_rank"],
}

# This is as long as the tests' timeouts, so that only a full batch executes.
DELAY = "dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 60000000 }"


def ragged_shapes(data_type: str, element_type: int) -> Example:
    """Returns the batch's elements and every batch input, flattened, to each client.

    For BATCH_MAX_ELEMENT_COUNT_AS_SHAPE, the shape is returned, because it has no contents.
    """
    graph = GraphBuilder("ragged_shapes")
    values = graph.input("INPUT", TensorProto.FLOAT, ["elements"])
    row = graph.input("ROW", TensorProto.INT32, ["batch", 1])
    rows = graph.node("Shape", row, start=0, end=1)
    column = graph.node("Concat", rows, graph.weight(numpy.array([1])), axis=0)
    flat = graph.weight(numpy.array([1, -1]))

    def to_all(value: str, output: str) -> str:
        return graph.node("Expand", graph.node("Reshape", value, flat), column, output=output)

    to_all(values, "ELEMENTS")
    graph.output("ELEMENTS", TensorProto.FLOAT, ["batch", "elements"])
    graph.node("Identity", row, output="ROW_BACK")
    graph.output("ROW_BACK", TensorProto.INT32, ["batch", 1])
    config = f"""\
backend: "onnxruntime"
max_batch_size: 4
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }} ]
input [ {{ name: "ROW" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "ELEMENTS" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "ROW_BACK" data_type: TYPE_INT32 dims: [ 1 ] }} ]
{DELAY}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    for kind, shape in BATCH_INPUTS.items():
        given = graph.input(kind, element_type, shape)
        shown, shown_type, shown_config = given, element_type, data_type
        if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
            shown, shown_type, shown_config = graph.node("Shape", given), TensorProto.INT64, "TYPE_INT64"
        to_all(shown, f"{kind}_BACK")
        graph.output(f"{kind}_BACK", shown_type, ["batch", None])
        config += (
            f'batch_input [ {{ kind: {kind} target_name: "{kind}" '
            f'data_type: {data_type} source_input: "INPUT" }} ]\n'
            f'output [ {{ name: "{kind}_BACK" data_type: {shown_config} dims: [ -1 ] }} ]\n'
        )
    return Example(config, {1: graph.bytes()})


def ragged_scatter() -> Example:
    """Doubles ragged elements. The flat output is split into the shapes of the inputs."""
    graph = GraphBuilder("ragged_scatter")
    values = graph.input("INPUT", TensorProto.FLOAT, ["elements"])
    graph.node("Add", values, values, output="OUTPUT")
    graph.output("OUTPUT", TensorProto.FLOAT, ["elements"])
    config = f"""\
backend: "onnxruntime"
max_batch_size: 4
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
batch_output [ {{
  kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "OUTPUT" source_input: "INPUT"
}} ]
{DELAY}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {1: graph.bytes()})


MODELS: dict[str, ExampleMaker] = {
    "ragged_int32": functools.partial(ragged_shapes, "TYPE_INT32", TensorProto.INT32),
    "ragged_fp32": functools.partial(ragged_shapes, "TYPE_FP32", TensorProto.FLOAT),
    "ragged_scatter": ragged_scatter,
}
