"""Stateful models for the tests: accumulators, and models that show their batch."""

from __future__ import annotations

import dataclasses
import functools
import struct

import numpy
from onnx import TensorProto

from .conformance import SLOW_SIZE, matrix_loop_body
from .graph import OPSET_WITH_STRINGS, GraphBuilder
from .repository import Example, ExampleMaker

# The initial state of an accumulator with a state file.
INITIAL_NUMBER = 1000
INITIAL_TEXT = "opening:"

# The type in config.pbtxt, the type in ONNX, and the encoding of one element.
NUMBERS = {
    "int32": ("TYPE_INT32", TensorProto.INT32, "<i"),
    "fp32": ("TYPE_FP32", TensorProto.FLOAT, "<f"),
}
STRING = ("TYPE_STRING", TensorProto.STRING)

# The pairs of values for false and true, which are deliberately different.
TRUTHS = {
    "int32": ("int32_false_true: [ -3, 7 ]", TensorProto.INT32, "TYPE_INT32"),
    "fp32": ("fp32_false_true: [ 0.5, 2.5 ]", TensorProto.FLOAT, "TYPE_FP32"),
    "bool": ("bool_false_true: [ true, false ]", TensorProto.BOOL, "TYPE_BOOL"),
}
FALSE_TRUE: dict[str, tuple[float, float]] = {
    "int32": (-3, 7),
    "fp32": (0.5, 2.5),
    "bool": (True, False),
}
CORRELATION_IDS = {
    "uint64": TensorProto.UINT64,
    "int64": TensorProto.INT64,
    "uint32": TensorProto.UINT32,
    "int32": TensorProto.INT32,
    "string": TensorProto.STRING,
}

DIRECT = "direct { }"
OLDEST = "oldest { max_candidate_sequences: 4 }"
STRATEGIES = {"direct": DIRECT, "oldest": OLDEST}
DEFAULT_IDLE_MICROSECONDS = 30_000_000


@dataclasses.dataclass(frozen=True)
class Batching:
    """The settings that all sequence models share."""

    strategy: str = DIRECT
    max_batch_size: int = 4
    instance_count: int = 1
    idle_microseconds: int = DEFAULT_IDLE_MICROSECONDS

    @property
    def leading(self) -> list[str | int]:
        """The dimensions before a tensor's own."""
        return ["batch"] if self.max_batch_size else []

    def config(self, tensors: str, sequences: str) -> str:
        """The text of config.pbtxt."""
        return f"""\
backend: "onnxruntime"
max_batch_size: {self.max_batch_size}
{tensors}
sequence_batching {{
  {self.strategy}
  max_sequence_idle_microseconds: {self.idle_microseconds}
{sequences}
}}
instance_group [ {{ count: {self.instance_count} kind: KIND_CPU }} ]
"""


def tensor(kind: str, name: str, data_type: str, dims: str = "1") -> str:
    """An input or output in config.pbtxt."""
    return f'{kind} [ {{ name: "{name}" data_type: {data_type} dims: [ {dims} ] }} ]'


def control(name: str, kind: str, value: str) -> str:
    """A control input in config.pbtxt."""
    return (
        f'  control_input [ {{ name: "{name}" '
        f"control [ {{ kind: CONTROL_SEQUENCE_{kind} {value} }} ] }} ]"
    )


def state(
    name: str, data_type: str, dims: str = "1", initial: str = "", same_buffer: bool = False
) -> str:
    """A state in config.pbtxt, with input `name` and output `name`_NEXT."""
    start = ""
    if initial:
        start = f'initial_state {{ name: "start" data_type: {data_type} {initial} }}'
    buffer = "use_same_buffer_for_input_output: true" if same_buffer else ""
    return (
        f'  state [ {{ input_name: "{name}" output_name: "{name}_NEXT" '
        f"data_type: {data_type} dims: [ {dims} ] {start} {buffer} }} ]"
    )


def _initial(kind: str, dims: str = "1") -> str:
    return {
        "zero": f"dims: [ {dims} ] zero_data: true",
        "file": f'dims: [ {dims} ] data_file: "start.bin"',
        "unspecified": "",
    }[kind]


def _string_file(*texts: str) -> bytes:
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def accumulator(
    datatype: str, initial: str, batching: Batching = Batching(), same_buffer: bool = False
) -> Example:
    """OUTPUT is the sum of all INPUTs since the sequence began; strings are concatenated.

    If no initial state is specified, the model uses START; otherwise, it doesn't.
    """
    if datatype == "bytes":
        data_type, element_type = STRING
        graph = GraphBuilder("accumulator", OPSET_WITH_STRINGS)
        operator, content = "StringConcat", _string_file(INITIAL_TEXT)
    else:
        data_type, element_type, code = NUMBERS[datatype]
        graph = GraphBuilder("accumulator")
        operator, content = "Add", struct.pack(code, INITIAL_NUMBER)
    shape = [*batching.leading, 1]
    value = graph.input("INPUT", element_type, shape)
    before = graph.input("SUM", element_type, shape)
    if initial == "unspecified":
        begins = graph.node("Cast", graph.input("START", TensorProto.INT32, shape), to=TensorProto.BOOL)
        total = graph.node("Where", begins, value, graph.node(operator, before, value))
    else:
        total = graph.node(operator, before, value)
    for name in ("OUTPUT", "SUM_NEXT"):
        graph.node("Identity", total, output=name)
        graph.output(name, element_type, shape)
    sequences = state("SUM", data_type, "1", _initial(initial), same_buffer)
    if initial == "unspecified":
        sequences += "\n" + control("START", "START", "int32_false_true: [ 0, 1 ]")
    tensors = tensor("input", "INPUT", data_type) + "\n" + tensor("output", "OUTPUT", data_type)
    extra = {"initial_state/start.bin": content} if initial == "file" else {}
    return Example(batching.config(tensors, sequences), {1: graph.bytes()}, extra)


def _whole_batch(graph: GraphBuilder, value: str, rows: str, output: str) -> None:
    """Gives each row of `output` all rows of `value`."""
    flat = graph.node("Reshape", value, graph.weight(numpy.array([1, -1])))
    column = graph.node("Concat", rows, graph.weight(numpy.array([1])), axis=0)
    graph.node("Expand", flat, column, output=output)


def _row_count(graph: GraphBuilder, value: str) -> str:
    return graph.node("Slice", graph.node("Shape", value), *_range(graph, 0, 1))


def _range(graph: GraphBuilder, start: int, end: int) -> list[str]:
    return [graph.weight(numpy.array([number])) for number in (start, end)]


def _row_numbers(graph: GraphBuilder, rows: str, output: str) -> None:
    scalar = graph.node("Squeeze", rows)
    zero, one = (graph.weight(numpy.array(number)) for number in (0, 1))
    numbers = graph.node("Range", zero, scalar, one)
    graph.node("Reshape", numbers, graph.weight(numpy.array([-1, 1])), output=output)


def controls(truth: str, correlation_id: str, batching: Batching = Batching()) -> Example:
    """Returns the controls of its whole batch, and the number of its row, to each client.

    OUTPUT is INPUT, which may have any length.
    """
    false_true, truth_type, truth_config = TRUTHS[truth]
    id_type = CORRELATION_IDS[correlation_id]
    id_config = f"TYPE_{correlation_id.upper()}"
    graph = GraphBuilder("controls")
    value = graph.input("INPUT", TensorProto.INT32, ["batch", "length"])
    graph.node("Identity", value, output="OUTPUT")
    graph.output("OUTPUT", TensorProto.INT32, ["batch", "length"])
    rows = _row_count(graph, value)
    _row_numbers(graph, rows, "ROW")
    graph.output("ROW", TensorProto.INT64, ["batch", 1])
    sequences = []
    tensors = [tensor("input", "INPUT", "TYPE_INT32", "-1")]
    tensors += [tensor("output", "OUTPUT", "TYPE_INT32", "-1"), tensor("output", "ROW", "TYPE_INT64")]
    for name in ("START", "END", "READY", "CORRID"):
        element_type, config_type = (
            (id_type, id_config) if name == "CORRID" else (truth_type, truth_config)
        )
        given = graph.input(name, element_type, ["batch", 1])
        _whole_batch(graph, given, rows, f"{name}S")
        graph.output(f"{name}S", element_type, ["batch", "rows"])
        tensors.append(tensor("output", f"{name}S", config_type, "-1"))
        value_text = f"data_type: {id_config}" if name == "CORRID" else false_true
        sequences.append(control(name, name, value_text))
    config = batching.config("\n".join(tensors), "\n".join(sequences))
    return Example(config, {1: graph.bytes()})


def controls_without_batches() -> Example:
    """The same for a model without a batch dimension, where controls have the shape [1]."""
    graph = GraphBuilder("controls_without_batches")
    batching = Batching(max_batch_size=0)
    value = graph.input("INPUT", TensorProto.INT32, [1])
    graph.node("Identity", value, output="OUTPUT")
    graph.output("OUTPUT", TensorProto.INT32, [1])
    tensors = [tensor("input", "INPUT", "TYPE_INT32"), tensor("output", "OUTPUT", "TYPE_INT32")]
    sequences = []
    for name in ("START", "END", "READY", "CORRID"):
        is_id = name == "CORRID"
        element_type = TensorProto.UINT64 if is_id else TensorProto.INT32
        given = graph.input(name, element_type, [1])
        graph.node("Identity", given, output=f"{name}S")
        graph.output(f"{name}S", element_type, [1])
        tensors.append(tensor("output", f"{name}S", "TYPE_UINT64" if is_id else "TYPE_INT32"))
        setting = "data_type: TYPE_UINT64" if is_id else "int32_false_true: [ 0, 1 ]"
        sequences.append(control(name, name, setting))
    config = batching.config("\n".join(tensors), "\n".join(sequences))
    return Example(config, {1: graph.bytes()})


def history(batching: Batching) -> Example:
    """SEEN_NEXT, which is both a state and an output, grows by one element with each request."""
    graph = GraphBuilder("history")
    shape = [*batching.leading, "length"]
    value = graph.input("INPUT", TensorProto.INT32, [*batching.leading, 1])
    before = graph.input("SEEN", TensorProto.INT32, shape)
    graph.node("Concat", before, value, output="SEEN_NEXT", axis=len(batching.leading))
    graph.output("SEEN_NEXT", TensorProto.INT32, [*batching.leading, "length_next"])
    tensors = [tensor("input", "INPUT", "TYPE_INT32"), tensor("output", "SEEN_NEXT", "TYPE_INT32", "-1")]
    sequences = state("SEEN", "TYPE_INT32", "-1", _initial("zero"))
    return Example(batching.config("\n".join(tensors), sequences), {1: graph.bytes()})


def fragile_accumulator(batching: Batching) -> Example:
    """Adds up numbers in strings; if a string isn't a number, the execution fails."""
    graph = GraphBuilder("fragile_accumulator")
    shape = [*batching.leading, 1]
    value = graph.node("Cast", graph.input("INPUT", TensorProto.STRING, shape), to=TensorProto.INT32)
    total = graph.node("Add", graph.input("SUM", TensorProto.INT32, shape), value)
    for name in ("OUTPUT", "SUM_NEXT"):
        graph.node("Identity", total, output=name)
        graph.output(name, TensorProto.INT32, shape)
    tensors = tensor("input", "INPUT", "TYPE_STRING") + tensor("output", "OUTPUT", "TYPE_INT32")
    sequences = state("SUM", "TYPE_INT32", "1", _initial("zero"))
    return Example(batching.config(tensors, sequences), {1: graph.bytes()})


def two_states(batching: Batching) -> Example:
    """The sum SUM is hidden, and the text TRACE is also an output."""
    graph = GraphBuilder("two_states", OPSET_WITH_STRINGS)
    shape = [*batching.leading, 1]
    value = graph.input("INPUT", TensorProto.INT32, shape)
    total = graph.node("Add", graph.input("SUM", TensorProto.INT32, shape), value, output="SUM_NEXT")
    text = graph.node("Cast", value, to=TensorProto.STRING)
    before = graph.input("TRACE", TensorProto.STRING, shape)
    comma = graph.weight(numpy.array([","], dtype=object))
    graph.node("StringConcat", graph.node("StringConcat", before, text), comma, output="TRACE_NEXT")
    graph.node("Identity", total, output="OUTPUT")
    graph.output("OUTPUT", TensorProto.INT32, shape)
    graph.output("SUM_NEXT", TensorProto.INT32, shape)
    graph.output("TRACE_NEXT", TensorProto.STRING, shape)
    tensors = [
        tensor("input", "INPUT", "TYPE_INT32"),
        tensor("output", "OUTPUT", "TYPE_INT32"),
        tensor("output", "TRACE_NEXT", "TYPE_STRING"),
    ]
    sequences = [
        state("SUM", "TYPE_INT32", "1", _initial("file")),
        state("TRACE", "TYPE_STRING", "1", _initial("zero")),
    ]
    config = batching.config("\n".join(tensors), "\n".join(sequences))
    extra = {"initial_state/start.bin": struct.pack("<i", INITIAL_NUMBER)}
    return Example(config, {1: graph.bytes()}, extra)


def slow_accumulator(batching: Batching) -> Example:
    """An INT32 accumulator that multiplies matrices ROUNDS times."""
    graph = GraphBuilder("slow_accumulator")
    random = numpy.random.default_rng(3)
    value = graph.input("INPUT", TensorProto.INT32, ["batch", 1])
    rounds = graph.input("ROUNDS", TensorProto.INT64, ["batch", 1])
    before = graph.input("SUM", TensorProto.INT32, ["batch", 1])
    mixing = random.standard_normal((SLOW_SIZE, SLOW_SIZE)).astype(numpy.float32) / SLOW_SIZE**0.5
    graph.weight(mixing, name="mixing")
    start = graph.weight(random.standard_normal((SLOW_SIZE, SLOW_SIZE)).astype(numpy.float32))
    most = graph.node("ReduceMax", rounds, keepdims=0)
    go_on = graph.weight(numpy.array(True))
    mixed = graph.node("Loop", most, go_on, start, body=matrix_loop_body())
    # Tanh keeps the mean below one, so it has no effect on the sum, but has to be computed.
    mean = graph.node("ReduceMean", mixed, keepdims=0)
    rest = graph.node("Cast", graph.node("Floor", graph.node("Abs", mean)), to=TensorProto.INT32)
    total = graph.node("Add", graph.node("Add", before, value), rest)
    for name in ("OUTPUT", "SUM_NEXT"):
        graph.node("Identity", total, output=name)
        graph.output(name, TensorProto.INT32, ["batch", 1])
    tensors = [
        tensor("input", "INPUT", "TYPE_INT32"),
        tensor("input", "ROUNDS", "TYPE_INT64"),
        tensor("output", "OUTPUT", "TYPE_INT32"),
    ]
    sequences = state("SUM", "TYPE_INT32", "1", _initial("zero"))
    return Example(batching.config("\n".join(tensors), sequences), {1: graph.bytes()})


def _accumulators() -> dict[str, ExampleMaker]:
    return {
        f"accumulate_{strategy}_{datatype}_{initial}": functools.partial(
            accumulator, datatype, initial, Batching(text, instance_count=2)
        )
        for strategy, text in STRATEGIES.items()
        for datatype in ("int32", "fp32", "bytes")
        for initial in ("zero", "file", "unspecified")
    }


def _control_models() -> dict[str, ExampleMaker]:
    pairs = [("int32", "uint64"), ("fp32", "int64"), ("bool", "uint32")]
    pairs += [("int32", "int32"), ("fp32", "string")]
    return {
        f"controls_{strategy}_{truth}_{identity}": functools.partial(
            controls, truth, identity, Batching(text)
        )
        for strategy, text in STRATEGIES.items()
        for truth, identity in pairs
    }


MODELS: dict[str, ExampleMaker] = {
    **_accumulators(),
    **_control_models(),
    "controls_without_batches": controls_without_batches,
    "accumulate_same_buffer": functools.partial(
        accumulator, "int32", "zero", Batching(), same_buffer=True
    ),
    "accumulate_without_batches": functools.partial(
        accumulator, "int32", "zero", Batching(max_batch_size=0)
    ),
    "history": functools.partial(history, Batching(max_batch_size=0)),
    "history_batched": functools.partial(history, Batching(OLDEST)),
    "fragile": functools.partial(fragile_accumulator, Batching()),
    "two_states": functools.partial(two_states, Batching()),
}
