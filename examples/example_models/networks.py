"""Neural networks with random weights from fixed seeds, for load tests and timing."""

from __future__ import annotations

import numpy
from onnx import TensorProto

from .graph import GraphBuilder
from .repository import Example

CLASS_COUNT = 10
IMAGE_SIZE = 224


def _random_weight(
    random: numpy.random.Generator, shape: tuple[int, ...], fan_in: int
) -> numpy.ndarray:
    """Draws weights with which a layer keeps the variance of its input under ReLU."""
    return (random.standard_normal(shape) * numpy.sqrt(2.0 / fan_in)).astype(numpy.float32)


def _dense(
    graph: GraphBuilder,
    random: numpy.random.Generator,
    value: str,
    sizes: tuple[int, int],
    output: str | None = None,
) -> str:
    weight = graph.weight(_random_weight(random, sizes, sizes[0]))
    bias = graph.weight(_random_weight(random, (sizes[1],), sizes[0]))
    return graph.node("Gemm", value, weight, bias, output=output)


def mlp() -> Example:
    """Three dense layers: 256 to 1024 to 1024 to 10, with ReLU between them."""
    graph = GraphBuilder("mlp")
    random = numpy.random.default_rng(1)
    value = graph.input("input", TensorProto.FLOAT, ["batch", 256])
    value = graph.node("Relu", _dense(graph, random, value, (256, 1024)))
    value = graph.node("Relu", _dense(graph, random, value, (1024, 1024)))
    _dense(graph, random, value, (1024, CLASS_COUNT), output="logits")
    graph.output("logits", TensorProto.FLOAT, ["batch", CLASS_COUNT])
    config = f"""\
name: "mlp"
backend: "onnxruntime"
max_batch_size: 64
input [ {{ name: "input" data_type: TYPE_FP32 dims: [ 256 ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ {CLASS_COUNT} ] }} ]
dynamic_batching {{
  preferred_batch_size: [ 8, 16, 32, 64 ]
  max_queue_delay_microseconds: 500
}}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {1: graph.bytes()})


def _convolution(
    graph: GraphBuilder,
    random: numpy.random.Generator,
    value: str,
    channels: tuple[int, int],
    kernel: int,
    stride: int,
) -> str:
    inputs, outputs = channels
    fan_in = inputs * kernel * kernel
    weight = graph.weight(_random_weight(random, (outputs, inputs, kernel, kernel), fan_in))
    bias = graph.weight(_random_weight(random, (outputs,), fan_in))
    padding = kernel // 2
    return graph.node(
        "Conv",
        value,
        weight,
        bias,
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[padding] * 4,
    )


def _residual_block(
    graph: GraphBuilder,
    random: numpy.random.Generator,
    value: str,
    channels: tuple[int, int],
    stride: int,
) -> str:
    """Two 3x3 convolutions alongside a shortcut, which is projected if the shapes
    differ."""
    inputs, outputs = channels
    inner = graph.node("Relu", _convolution(graph, random, value, channels, 3, stride))
    inner = _convolution(graph, random, inner, (outputs, outputs), 3, 1)
    shortcut = value
    if inputs != outputs or stride != 1:
        shortcut = _convolution(graph, random, value, channels, 1, stride)
    # Halving keeps the values from growing with each block, because there is no
    # normalisation.
    half = graph.weight(numpy.array(0.5, numpy.float32))
    return graph.node("Relu", graph.node("Mul", graph.node("Add", inner, shortcut), half))


def convnet() -> Example:
    """A residual network for 224x224 images, with about 0.5 GFLOP per image."""
    graph = GraphBuilder("convnet")
    random = numpy.random.default_rng(2)
    value = graph.input("image", TensorProto.FLOAT, ["batch", 3, IMAGE_SIZE, IMAGE_SIZE])
    value = graph.node("Relu", _convolution(graph, random, value, (3, 32), 7, 4))
    for channels, stride in (((32, 32), 1), ((32, 64), 2), ((64, 64), 1), ((64, 128), 2)):
        value = _residual_block(graph, random, value, channels, stride)
    pooled = graph.node("Flatten", graph.node("GlobalAveragePool", value), axis=1)
    _dense(graph, random, pooled, (128, CLASS_COUNT), output="logits")
    graph.output("logits", TensorProto.FLOAT, ["batch", CLASS_COUNT])
    config = f"""\
name: "convnet"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "image" data_type: TYPE_FP32 dims: [ 3, {IMAGE_SIZE}, {IMAGE_SIZE} ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ {CLASS_COUNT} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 1000 }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {1: graph.bytes()})


MODELS = {"mlp": mlp, "convnet": convnet}
