"""Ensembles and their composing models."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy
from onnx import TensorProto

from .graph import OPSET_WITH_STRINGS, GraphBuilder
from .iterative import token_counter
from .repository import Example, ExampleMaker
from .sequences import OLDEST, Batching, accumulator

CHANNELS = 3
#: The image size of the pipeline that decodes text.
IMAGE_SIZE = 32
CLASS_COUNT = 10
REGION_COUNT = 4
#: The class names, for `image_classifier`'s label file.
CLASS_NAMES = [
    "red", "green", "blue", "cyan", "magenta", "yellow", "white", "grey", "black", "mixed",
]


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of an ensemble: the tensors of its inputs and outputs."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def config(self) -> str:
        """The step in config.pbtxt."""
        maps = [
            f'{field} {{ key: "{key}" value: "{value}" }}'
            for field, pairs in (("input_map", self.inputs), ("output_map", self.outputs))
            for key, value in pairs.items()
        ]
        return f'    {{ model_name: "{self.model}" model_version: -1 {" ".join(maps)} }}'


def tensors(side: str, texts: Sequence[str]) -> str:
    """The tensors for config.pbtxt, from texts such as `NAME FP32 3,-1`; a `?` at the end means
    optional."""
    entries = []
    for text in texts:
        name, datatype, dims = text.rstrip("?").split(" ")
        optional = " optional: true" if text.endswith("?") else ""
        entries.append(
            f'  {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ]{optional} }}'
        )
    return f"{side} [\n" + ",\n".join(entries) + "\n]"


def ensemble(
    max_batch_size: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
    steps: Sequence[Step],
    more: str = "",
) -> Example:
    """An ensemble of these steps."""
    lines = ",\n".join(step.config() for step in steps)
    config = f"""\
platform: "ensemble"
max_batch_size: {max_batch_size}
{tensors("input", inputs)}
{tensors("output", outputs)}
ensemble_scheduling {{
  step [
{lines}
  ]
  {more}
}}
"""
    return Example(config, {})


def chain(model: str, length: int, inner: tuple[str, str], tensor: str, more: str = "") -> Example:
    """The same model, executed this many times one after another."""
    names = ["IN", *(f"between_{number}" for number in range(1, length)), "OUT"]
    steps = [
        Step(model, {inner[0]: before}, {inner[1]: after})
        for before, after in zip(names, names[1:], strict=False)
    ]
    return ensemble(8, [f"IN {tensor}"], [f"OUT {tensor}"], steps, more)


def onnx_model(
    max_batch_size: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
    graph: GraphBuilder,
    more: str = "",
) -> Example:
    """A model for ONNX Runtime with one instance."""
    config = f"""\
backend: "onnxruntime"
max_batch_size: {max_batch_size}
{tensors("input", inputs)}
{tensors("output", outputs)}
{more}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {1: graph.bytes()})


# Arithmetic whose results show which steps ran.


def number_model(name: str, operands: Sequence[str], max_batch_size: int = 8) -> Example:
    """Any number of integers: `double` is 2 X, `square` is X X, `sum` is A + B."""
    graph = GraphBuilder(name)
    shape: list[int | str] = ["batch", "length"] if max_batch_size else ["length"]
    values = [graph.input(operand, TensorProto.INT32, shape) for operand in operands]
    operator = {"double": "Add", "square": "Mul", "sum": "Add"}[name]
    graph.node(operator, *(values * 2)[:2], output="Y")
    graph.output("Y", TensorProto.INT32, shape)
    inputs = [f"{operand} INT32 -1" for operand in operands]
    batching = "dynamic_batching { }" if max_batch_size else ""
    return onnx_model(max_batch_size, inputs, ["Y INT32 -1"], graph, batching)


def identity_pair() -> Example:
    """Two inputs and outputs. A request may omit the second input."""
    names = ["INT32 -1", "INT32 -1?"]
    inputs = [f"INPUT{number} {text}" for number, text in enumerate(names)]
    outputs = ["OUTPUT0 INT32 -1", "OUTPUT1 INT32 -1"]
    config = f"""\
backend: "identity"
max_batch_size: 8
{tensors("input", inputs)}
{tensors("output", outputs)}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {})


def delayed_identity(milliseconds: int) -> Example:
    """Integers that take some time, one request at a time."""
    config = f"""\
backend: "identity"
max_batch_size: 8
{tensors("input", ["INPUT0 INT32 -1"])}
{tensors("output", ["OUTPUT0 INT32 -1"])}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{milliseconds}" }} }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {})


def _arithmetic() -> dict[str, ExampleMaker]:
    number = "INT32 -1"
    fan = [
        Step("sum", {"A": "doubled", "B": "squared"}, {"Y": "SUM"}),
        Step("double", {"X": "IN"}, {"Y": "doubled"}),
        Step("square", {"X": "IN"}, {"Y": "squared"}),
    ]
    unbatched = functools.partial(number_model, "double", ["X"], 0)
    return {
        "double": functools.partial(number_model, "double", ["X"]),
        "square": functools.partial(number_model, "square", ["X"]),
        "sum": functools.partial(number_model, "sum", ["A", "B"]),
        "double_without_batches": unbatched,
        "optional_pair": identity_pair,
        "eightfold": functools.partial(chain, "double", 3, ("X", "Y"), number),
        "fan": functools.partial(ensemble, 8, [f"IN {number}"], [f"SUM {number}"], fan),
        # IN² + 2 IN, and 8 times that.
        "nested": functools.partial(
            ensemble,
            8,
            [f"IN {number}"],
            [f"OUT {number}", f"SUM {number}"],
            [
                Step("fan", {"IN": "IN"}, {"SUM": "SUM"}),
                Step("eightfold", {"IN": "SUM"}, {"OUT": "OUT"}),
            ],
        ),
        "two_ends": functools.partial(
            ensemble,
            8,
            [f"IN {number}"],
            [f"DOUBLED {number}", f"SQUARED {number}"],
            [
                Step("double", {"X": "IN"}, {"Y": "DOUBLED"}),
                Step("square", {"X": "DOUBLED"}, {"Y": "SQUARED"}),
            ],
        ),
        "with_optional": functools.partial(
            ensemble,
            8,
            [f"IN {number}", f"MORE {number}?"],
            [f"OUT {number}", f"REST {number}"],
            [
                Step("double", {"X": "IN"}, {"Y": "doubled"}),
                Step(
                    "optional_pair",
                    {"INPUT0": "doubled", "INPUT1": "MORE"},
                    {"OUTPUT0": "OUT", "OUTPUT1": "REST"},
                ),
            ],
        ),
        "in_and_out_of_batches": functools.partial(
            ensemble,
            8,
            [f"IN {number}"],
            [f"OUT {number}"],
            [
                Step("double", {"X": "IN"}, {"Y": "twice"}),
                Step("double_without_batches", {"X": "twice"}, {"Y": "four_times"}),
                Step("double", {"X": "four_times"}, {"Y": "OUT"}),
            ],
        ),
    }


# Kinds of steps.


def _stateful() -> dict[str, ExampleMaker]:
    """Two models with their own states, fed by one sequence."""
    number = "INT32 1"
    return {
        "sum_direct": functools.partial(accumulator, "int32", "zero"),
        "sum_oldest": functools.partial(accumulator, "int32", "zero", Batching(OLDEST)),
        # The second model adds up the first one's sums.
        "two_sums": functools.partial(
            ensemble,
            4,
            [f"IN {number}"],
            [f"SUM {number}", f"SUM_OF_SUMS {number}"],
            [
                Step("sum_direct", {"INPUT": "IN"}, {"OUTPUT": "SUM"}),
                Step("sum_oldest", {"INPUT": "SUM"}, {"OUTPUT": "SUM_OF_SUMS"}),
            ],
        ),
    }


def _decoupled() -> dict[str, ExampleMaker]:
    def tokens(model: str, more: str = "") -> Example:
        steps = [
            Step("tokens", {"COUNT": "COUNT"}, {"TOKEN": "token"}),
            Step(model, *({"X": "token"}, {"Y": "OUT"}) if model == "double" else _IDENTITY),
        ]
        return ensemble(4, ["COUNT INT32 1"], ["OUT INT32 -1"], steps, more)

    def with_constant() -> Example:
        steps = [
            Step("tokens", {"COUNT": "COUNT"}, {"TOKEN": "token"}),
            Step("double", {"X": "ADDED"}, {"Y": "doubled"}),
            Step("sum", {"A": "token", "B": "doubled"}, {"Y": "OUT"}),
        ]
        return ensemble(4, ["COUNT INT32 1", "ADDED INT32 1"], ["OUT INT32 -1"], steps)

    return {
        "tokens": functools.partial(token_counter, True),
        "slow_identity": functools.partial(delayed_identity, 20),
        "doubled_tokens": functools.partial(tokens, "double"),
        "slow_tokens": functools.partial(tokens, "slow_identity", "max_inflight_requests: 4"),
        "tokens_and_constant": with_constant,
    }


_IDENTITY = ({"INPUT0": "token"}, {"OUTPUT0": "OUT"})


# Images.


def convolution(graph: GraphBuilder, random: numpy.random.Generator, value: str, count: int) -> str:
    """A layer that keeps the size of the image, with `count` channels."""
    channels = CHANNELS
    weight = random.standard_normal((count, channels, 3, 3)) / (9 * channels) ** 0.5
    return graph.node("Conv", value, graph.weight(weight.astype(numpy.float32)), pads=[1] * 4)


def convolutions(layers: int) -> Example:
    """This number of layers, from an image to an image of the same size."""
    graph = GraphBuilder(f"convolutions_{layers}")
    random = numpy.random.default_rng(layers)
    shape: list[int | str] = ["batch", CHANNELS, "height", "width"]
    value = graph.input("input", TensorProto.FLOAT, shape)
    for _ in range(layers):
        value = graph.node("Tanh", convolution(graph, random, value, CHANNELS))
    graph.node("Identity", value, output="output")
    graph.output("output", TensorProto.FLOAT, shape)
    dims = f"FP32 -1,{CHANNELS},-1,-1"
    return onnx_model(0, [f"input {dims}"], [f"output {dims}"], graph)


def _pipelines() -> dict[str, ExampleMaker]:
    """Convolutions of one, two and three layers: in sequence, partly in parallel and all in
    parallel."""
    image = f"FP32 -1,{CHANNELS},-1,-1"

    def step(layers: int, source: str, result: str) -> Step:
        return Step(f"convolutions_{layers}", {"input": source}, {"output": result})

    def pipeline(sources: Sequence[str], outputs: Sequence[str]) -> Example:
        """A pipeline, given the source of each network's image; the results are `first` to
        `third`."""
        results = ["first", "second", "third"]
        steps = [
            step(number, source, result)
            for number, (source, result) in enumerate(zip(sources, results, strict=True), 1)
        ]
        return ensemble(
            0, [f"image {image}"], [f"{output} {image}" for output in outputs], steps
        )

    return {
        **{
            f"convolutions_{layers}": functools.partial(convolutions, layers)
            for layers in (1, 2, 3)
        },
        "pipeline_in_a_row": functools.partial(pipeline, ["image", "first", "second"], ["third"]),
        "pipeline_partly_parallel": functools.partial(
            pipeline, ["image", "first", "first"], ["second", "third"]
        ),
        "pipeline_parallel": functools.partial(
            pipeline, ["image", "image", "image"], ["first", "second", "third"]
        ),
    }


def image_decoder() -> Example:
    """An image from text, which contains the brightness of each channel of each pixel, from 0 to
    255."""
    graph = GraphBuilder("image_decoder", OPSET_WITH_STRINGS)
    text = graph.input("TEXT", TensorProto.STRING, ["batch", 1])
    numbers = graph.split_strings(graph.node("Flatten", text, axis=1))
    numbers = graph.node("Cast", numbers, to=TensorProto.FLOAT)
    shape = graph.weight(numpy.array([-1, CHANNELS, IMAGE_SIZE, IMAGE_SIZE]))
    pixels = graph.node("Reshape", numbers, shape)
    graph.node("Div", pixels, graph.weight(numpy.array(255, numpy.float32)), output="IMAGE")
    dims: list[int | str] = ["batch", CHANNELS, IMAGE_SIZE, IMAGE_SIZE]
    graph.output("IMAGE", TensorProto.FLOAT, dims)
    return onnx_model(8, ["TEXT STRING 1"], [f"IMAGE FP32 {_IMAGE_DIMS}"], graph)


_IMAGE_DIMS = f"{CHANNELS},{IMAGE_SIZE},{IMAGE_SIZE}"


def image_net(name: str) -> Example:
    """`image_classifier` returns the probability of each class, and has class labels;
    `image_segmenter` returns the region of each pixel."""
    graph = GraphBuilder(name)
    random = numpy.random.default_rng(len(name))
    value = graph.input(
        "IMAGE", TensorProto.FLOAT, ["batch", CHANNELS, IMAGE_SIZE, IMAGE_SIZE]
    )
    value = graph.node("Relu", convolution(graph, random, value, CHANNELS))
    if name == "image_classifier":
        value = convolution(graph, random, value, CLASS_COUNT)
        value = graph.node("Flatten", graph.node("GlobalAveragePool", value))
        graph.node("Softmax", value, axis=1, output="CLASSES")
        graph.output("CLASSES", TensorProto.FLOAT, ["batch", CLASS_COUNT])
        outputs = [f"CLASSES FP32 {CLASS_COUNT}"]
    else:
        value = convolution(graph, random, value, REGION_COUNT)
        graph.node("ArgMax", value, axis=1, keepdims=0, output="REGIONS")
        graph.output("REGIONS", TensorProto.INT64, ["batch", IMAGE_SIZE, IMAGE_SIZE])
        outputs = [f"REGIONS INT64 {IMAGE_SIZE},{IMAGE_SIZE}"]
    example = onnx_model(8, [f"IMAGE FP32 {_IMAGE_DIMS}"], outputs, graph, "dynamic_batching { }")
    if name != "image_classifier":
        return example
    dims = f"dims: [ {CLASS_COUNT} ]"
    config = (example.config or "").replace(dims, f'{dims} label_filename: "classes.txt"')
    labels = "".join(f"{label}\n" for label in CLASS_NAMES).encode()
    return Example(config, example.versions, {"classes.txt": labels})


def image_pipeline() -> Example:
    """Text is converted to an image, which is classified and segmented at the same time."""
    return ensemble(
        8,
        ["TEXT STRING 1"],
        [f"CLASSES FP32 {CLASS_COUNT}", f"REGIONS INT64 {IMAGE_SIZE},{IMAGE_SIZE}"],
        [
            Step("image_decoder", {"TEXT": "TEXT"}, {"IMAGE": "image"}),
            Step("image_classifier", {"IMAGE": "image"}, {"CLASSES": "CLASSES"}),
            Step("image_segmenter", {"IMAGE": "image"}, {"REGIONS": "REGIONS"}),
        ],
    )


#: Examples for users.
EXAMPLES: dict[str, ExampleMaker] = {
    **_pipelines(),
    "image_decoder": image_decoder,
    "image_classifier": functools.partial(image_net, "image_classifier"),
    "image_segmenter": functools.partial(image_net, "image_segmenter"),
    "image_pipeline": image_pipeline,
}

#: Models for tests only.
MODELS: dict[str, ExampleMaker] = {**_arithmetic(), **_stateful(), **_decoupled()}
