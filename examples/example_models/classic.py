"""Small models that show one feature each: addition, strings, auto-completion, steps."""

from __future__ import annotations

import numpy
from onnx import TensorProto

from .graph import GraphBuilder
from .repository import Example

ELEMENT_COUNT = 16
# The duration of a token counter's step, which is long enough to watch the steps.
STEP_MICROSECONDS = 20_000


def _pair_config(name: str, data_type: str, batching: str = "") -> str:
    tensors = "\n".join(
        f"""\
{kind} [
  {{ name: "{stem}0" data_type: {data_type} dims: [ {ELEMENT_COUNT} ] }},
  {{ name: "{stem}1" data_type: {data_type} dims: [ {ELEMENT_COUNT} ] }}
]"""
        for kind, stem in (("input", "INPUT"), ("output", "OUTPUT"))
    )
    return f"""\
name: "{name}"
backend: "onnxruntime"
max_batch_size: 8
{tensors}
{batching}"""


def simple() -> Example:
    """OUTPUT0 is the sum and OUTPUT1 the difference of two INT32 vectors."""
    graph = GraphBuilder("simple")
    shape = ["batch", ELEMENT_COUNT]
    left = graph.input("INPUT0", TensorProto.INT32, shape)
    right = graph.input("INPUT1", TensorProto.INT32, shape)
    graph.node("Add", left, right, output="OUTPUT0")
    graph.node("Sub", left, right, output="OUTPUT1")
    graph.output("OUTPUT0", TensorProto.INT32, shape)
    graph.output("OUTPUT1", TensorProto.INT32, shape)
    config = _pair_config("simple", "TYPE_INT32", "dynamic_batching { }\n")
    return Example(config, {1: graph.bytes()})


def simple_string() -> Example:
    """The same with decimal integers in strings, for inputs and outputs."""
    graph = GraphBuilder("simple_string")
    shape = ["batch", ELEMENT_COUNT]
    numbers = []
    for name in ("INPUT0", "INPUT1"):
        text = graph.input(name, TensorProto.STRING, shape)
        numbers.append(graph.node("Cast", text, to=TensorProto.INT32))
    for name, operator in (("OUTPUT0", "Add"), ("OUTPUT1", "Sub")):
        result = graph.node(operator, *numbers)
        graph.node("Cast", result, output=name, to=TensorProto.STRING)
        graph.output(name, TensorProto.STRING, shape)
    return Example(_pair_config("simple_string", "TYPE_STRING"), {1: graph.bytes()})


def string_identity() -> Example:
    """Returns its strings, which may contain any bytes."""
    graph = GraphBuilder("string_identity")
    text = graph.input("INPUT0", TensorProto.STRING, ["batch", "length"])
    graph.node("Identity", text, output="OUTPUT0")
    graph.output("OUTPUT0", TensorProto.STRING, ["batch", "length"])
    config = """\
name: "string_identity"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
    return Example(config, {1: graph.bytes()})


def autocomplete() -> Example:
    """Has no config.pbtxt: the server reads the inputs and outputs from the model."""
    graph = GraphBuilder("autocomplete")
    values = graph.input("values", TensorProto.FLOAT, ["batch", 4])
    graph.node("Mul", values, graph.weight(numpy.array(2.0, numpy.float32)), output="doubled")
    graph.node("ReduceSum", values, graph.weight(numpy.array([1])), output="total", keepdims=1)
    graph.output("doubled", TensorProto.FLOAT, ["batch", 4])
    graph.output("total", TensorProto.FLOAT, ["batch", 1])
    return Example(None, {1: graph.bytes()})


def token_counter() -> Example:
    """Sends COUNT tokens, one in each execution of its batch, without a model file."""
    config = f"""\
name: "token_counter"
backend: "token_counter"
max_batch_size: 4
input [ {{ name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [
  {{ name: "TOKEN" data_type: TYPE_INT32 dims: [ -1 ] }},
  {{ name: "LIVE" data_type: TYPE_INT32 dims: [ 1 ] }}
]
model_transaction_policy {{ decoupled: true }}
sequence_batching {{
  iterative_sequence: true
  oldest {{ max_candidate_sequences: 4 }}
  state [ {{
    input_name: "STEPS" output_name: "STEPS_NEXT" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state {{ name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }}
  }} ]
}}
parameters {{
  key: "DELAY_MICROSECONDS" value {{ string_value: "{STEP_MICROSECONDS}" }}
}}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {})


MODELS = {
    "simple": simple,
    "simple_string": simple_string,
    "string_identity": string_identity,
    "autocomplete": autocomplete,
    "token_counter": token_counter,
}
