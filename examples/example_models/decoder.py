"""A decoder-only language model that makes one token for each live sequence in every execution.

The graph is that of a Llama: RMS normalization, rotary positions, grouped-query attention, a gated
feed-forward layer, and one table for both the embeddings and the output. Its keys and values are
states of the server. Sequences of different lengths share an execution: the server pads shorter
states at the start, and the graph ignores what lies before a sequence's own tokens.

A sequence's first execution reads its whole prompt, and each later one reads its last token.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy
from onnx import TensorProto

from .graph import GraphBuilder
from .repository import Example, ExampleMaker

#: This is added to the attention scores of tokens that a row must not see. It is finite, so that a
#: row that sees nothing gets a number instead of NaN.
UNSEEN_SCORE = -1.0e9
#: The most likely tokens among which a token is drawn.
CANDIDATE_COUNT_MAX = 40
#: A temperature below this is greedy.
TEMPERATURE_MIN = 1.0e-4


@dataclasses.dataclass(frozen=True)
class DecoderSizes:
    """The sizes of a decoder, and the numbers that its file states."""

    layer_count: int
    head_count: int
    #: The number of heads for keys and values, each of which several query heads share.
    shared_head_count: int
    head_size: int
    vocabulary_size: int
    #: The most tokens of a sequence, prompt included.
    context_size: int
    norm_epsilon: float
    rotation_base: float
    #: A sequence ends with any of these tokens.
    end_tokens: tuple[int, ...]

    @property
    def state_size(self) -> int:
        """The numbers that a layer keeps for a token: its keys, or its values."""
        return self.shared_head_count * self.head_size


class DecoderGraph:
    """Writes a decoder into a graph. Weights have the names of Llama's own files."""

    def __init__(self, weights: Mapping[str, numpy.ndarray], sizes: DecoderSizes) -> None:
        self.graph = GraphBuilder("decoder")
        self._weights = weights
        self._sizes = sizes
        self._embeddings = self.graph.weight(weights["embed_tokens"], "embed_tokens")

    def write(self) -> bytes:
        """The whole model."""
        graph = self.graph
        self._declare_inputs()
        self._place_tokens()
        tokens = self._new_tokens()
        value = graph.node("Gather", self._embeddings, tokens)
        for index in range(self._sizes.layer_count):
            value = self._layer(index, value)
        last = graph.node("Gather", value, self._integer(-1), axis=1)
        table = graph.node("Transpose", self._embeddings, perm=[1, 0])
        logits = graph.node("MatMul", self._normalize(last, "norm"), table)
        self._choose(logits)
        return graph.bytes()

    def _declare_inputs(self) -> None:
        graph = self.graph
        graph.input("PROMPT", TensorProto.INT64, ["elements"])
        for name in ("PROMPT_LENGTH", "PROMPT_END"):
            graph.input(name, TensorProto.INT32, ["batch"])
        graph.input("START", TensorProto.INT32, ["batch", 1])
        graph.input("MAX_TOKENS", TensorProto.INT32, ["batch", 1])
        graph.input("SEED", TensorProto.INT64, ["batch", 1])
        for name in ("TEMPERATURE", "TOP_P"):
            graph.input(name, TensorProto.FLOAT, ["batch", 1])
        for name in ("LENGTH", "LAST_TOKEN"):
            graph.input(name, TensorProto.INT64, ["batch", 1])
        for index in range(self._sizes.layer_count):
            for name in ("KEYS", "VALUES"):
                shape = ["batch", "past", self._sizes.state_size]
                graph.input(f"{name}_{index}", TensorProto.FLOAT, shape)

    def _place_tokens(self) -> None:
        """Decides what each row reads: its prompt, or one token. The row's new tokens are aligned
        at the end, as its old ones are."""
        graph, one = self.graph, self._integer(1)
        self._starts = graph.node("Cast", "START", to=TensorProto.BOOL)
        prompt = graph.node("Cast", "PROMPT_LENGTH", to=TensorProto.INT64)
        self._prompt_length = graph.node("Unsqueeze", prompt, self._integers(1))
        end = graph.node("Cast", "PROMPT_END", to=TensorProto.INT64)
        end = graph.node("Unsqueeze", end, self._integers(1))
        #: [batch, 1]: the number of tokens that a row reads.
        self._count = graph.node("Where", self._starts, self._prompt_length, one)
        most = graph.node("ReduceMax", self._count, keepdims=0)
        #: [new]
        self._steps = graph.node("Range", self._integer(0), most, one)
        padding = graph.node("Sub", most, self._count)
        #: [batch, new]: the place of each step among its row's tokens; negative in padding.
        self._offsets = graph.node("Sub", self._steps, padding)
        self._is_new = graph.node("GreaterOrEqual", self._offsets, self._integer(0))
        self._prompt_start = graph.node("Sub", end, self._prompt_length)
        self._rotate_by(graph.node("Add", "LENGTH", self._offsets))
        self._see()

    def _rotate_by(self, positions: str) -> None:
        """Looks up the rotations. Positions behind the last one are an error of the run."""
        graph, sizes = self.graph, self._sizes
        positions = graph.node("Max", positions, self._integer(0))
        frequencies = sizes.rotation_base ** -(
            numpy.arange(0, sizes.head_size, 2, dtype=numpy.float64) / sizes.head_size
        )
        angles = numpy.outer(numpy.arange(sizes.context_size), frequencies)
        self._rotations = []
        for table in (numpy.cos(angles), numpy.sin(angles)):
            weight = graph.weight(table.astype(numpy.float32))
            rotation = graph.node("Gather", weight, positions)
            self._rotations.append(graph.node("Unsqueeze", rotation, self._integers(2)))

    def _see(self) -> None:
        """The scores [batch, 1, 1, new, past + new] that hide what a token must not see."""
        graph = self.graph
        past = graph.node("Shape", "KEYS_0", start=1, end=2)
        past_scalar = graph.node("Squeeze", past)
        old = graph.node("Range", self._integer(0), past_scalar, self._integer(1))
        first = graph.node("Sub", past_scalar, "LENGTH")
        seen_old = graph.node("GreaterOrEqual", old, first)
        seen_old = graph.node("Unsqueeze", seen_old, self._integers(1))
        until = graph.node("Unsqueeze", self._steps, self._integers(1))
        seen_new = graph.node("LessOrEqual", self._steps, until)
        new = graph.node("Unsqueeze", self._is_new, self._integers(1))
        seen_new = graph.node("And", new, seen_new)
        rows = graph.node("Shape", seen_new)
        # [batch, new, past], which the old tokens have for each new one.
        rows = graph.node("Concat", graph.node("Slice", rows, *self._range(0, 2)), past, axis=0)
        seen = graph.node("Concat", graph.node("Expand", seen_old, rows), seen_new, axis=2)
        hidden = graph.node("Where", seen, self._number(0), self._number(UNSEEN_SCORE))
        self._hidden = graph.node("Unsqueeze", hidden, self._integers(1, 2))

    def _new_tokens(self) -> str:
        """[batch, new]: the prompt's tokens, or the last token."""
        graph = self.graph
        places = graph.node("Add", self._prompt_start, self._offsets)
        last = graph.node("Sub", graph.node("Size", "PROMPT"), self._integer(1))
        places = graph.node("Max", graph.node("Min", places, last), self._integer(0))
        prompt = graph.node("Gather", "PROMPT", places)
        return graph.node("Where", self._starts, prompt, "LAST_TOKEN")

    def _layer(self, index: int, value: str) -> str:
        """Attention, followed by the gated layer, each with a residual."""
        graph = self.graph
        normal = self._normalize(value, f"layers.{index}.input_layernorm")
        value = graph.node("Add", value, self._attend(index, normal))
        prefix = f"layers.{index}.mlp"
        normal = self._normalize(value, f"layers.{index}.post_attention_layernorm")
        gate = self._dense(normal, f"{prefix}.gate_proj")
        gate = graph.node("Mul", gate, graph.node("Sigmoid", gate))
        inner = graph.node("Mul", gate, self._dense(normal, f"{prefix}.up_proj"))
        return graph.node("Add", value, self._dense(inner, f"{prefix}.down_proj"))

    def _attend(self, index: int, value: str) -> str:
        graph, sizes, prefix = self.graph, self._sizes, f"layers.{index}.self_attn"
        shared, size = sizes.shared_head_count, sizes.head_size
        group = sizes.head_count // shared
        query = self._rotate(self._dense(value, f"{prefix}.q_proj"), sizes.head_count)
        query = self._shape(query, 0, 0, shared, group, size)
        query = graph.node("Transpose", query, perm=[0, 2, 3, 1, 4])
        query = self._shape(query, 0, 0, -1, size)
        keys = self._rotate(self._dense(value, f"{prefix}.k_proj"), shared)
        keys = self._remember(f"KEYS_{index}", self._shape(keys, 0, 0, sizes.state_size))
        values = self._remember(f"VALUES_{index}", self._dense(value, f"{prefix}.v_proj"))
        keys = graph.node("Transpose", self._shape(keys, 0, 0, shared, size), perm=[0, 2, 3, 1])
        values = graph.node("Transpose", self._shape(values, 0, 0, shared, size), perm=[0, 2, 1, 3])
        scores = graph.node("Mul", graph.node("MatMul", query, keys), self._number(size**-0.5))
        # [batch, shared heads, group, new, past + new]
        whole = graph.node(
            "Concat",
            self._integers(0, 0, group, -1),
            graph.node("Shape", self._hidden, start=4, end=5),
            axis=0,
        )
        scores = graph.node("Add", graph.node("Reshape", scores, whole), self._hidden)
        shares = graph.node("Softmax", scores, axis=-1)
        flat = graph.node(
            "Concat",
            self._integers(0, 0, -1),
            graph.node("Shape", self._hidden, start=4, end=5),
            axis=0,
        )
        mixed = graph.node("MatMul", graph.node("Reshape", shares, flat), values)
        steps = graph.node("Shape", self._hidden, start=3, end=4)
        split = graph.node(
            "Concat", self._integers(0, 0, group), steps, self._integers(size), axis=0
        )
        mixed = graph.node("Reshape", mixed, split)
        mixed = graph.node("Transpose", mixed, perm=[0, 3, 1, 2, 4])
        mixed = self._shape(mixed, 0, 0, sizes.head_count * size)
        return self._dense(mixed, f"{prefix}.o_proj")

    def _remember(self, state: str, value: str) -> str:
        """Appends to a state."""
        output = f"{state}_NEXT"
        self.graph.node("Concat", state, value, axis=1, output=output)
        self.graph.output(
            output, TensorProto.FLOAT, ["batch", "length", self._sizes.state_size]
        )
        return output

    def _rotate(self, value: str, heads: int) -> str:
        """Turns the halves of each head by its token's position."""
        graph, size = self.graph, self._sizes.head_size
        value = self._shape(value, 0, 0, heads, size)
        cosine, sine = self._rotations
        half, whole = size // 2, size
        first = graph.node("Slice", value, *self._range(0, half, axis=3))
        second = graph.node("Slice", value, *self._range(half, whole, axis=3))
        product = lambda left, right: graph.node("Mul", left, right)  # noqa: E731
        turned = (
            graph.node("Sub", product(first, cosine), product(second, sine)),
            graph.node("Add", product(second, cosine), product(first, sine)),
        )
        return graph.node("Concat", *turned, axis=3)

    def _choose(self, logits: str) -> None:
        """Draws the next token, and decides whether the sequence goes on."""
        graph, sizes = self.graph, self._sizes
        count = min(CANDIDATE_COUNT_MAX, sizes.vocabulary_size)
        scores, tokens = graph.top(logits, count)
        drawn = graph.node("GatherElements", tokens, self._draw(scores, tokens), axis=1)
        greedy = graph.node("Slice", tokens, *self._range(0, 1, axis=1))
        draws = graph.node("GreaterOrEqual", "TEMPERATURE", self._number(TEMPERATURE_MIN))
        graph.node("Where", draws, drawn, greedy, output="TOKEN")
        graph.output("TOKEN", TensorProto.INT64, ["batch", 1])
        graph.node("Add", "LENGTH", self._count, output="LENGTH_NEXT")
        graph.output("LENGTH_NEXT", TensorProto.INT64, ["batch", 1])
        produced = graph.node("Sub", "LENGTH_NEXT", self._prompt_length)
        produced = graph.node("Add", produced, self._integer(1))
        limit = graph.node("Cast", "MAX_TOKENS", to=TensorProto.INT64)
        more = graph.node("Less", produced, limit)
        room = graph.node("Less", "LENGTH_NEXT", self._integer(sizes.context_size))
        more = graph.node("And", more, room)
        for token in sizes.end_tokens:
            goes_on = graph.node("Not", graph.node("Equal", "TOKEN", self._integer(token)))
            more = graph.node("And", more, goes_on)
        graph.node("Identity", more, output="MORE")
        graph.output("MORE", TensorProto.BOOL, ["batch", 1])

    def _draw(self, scores: str, tokens: str) -> str:
        """[batch, 1]: the index of the drawn candidate. The largest sum of a logarithmic
        probability and Gumbel noise is a fair draw. The noise depends on the seed, the position and
        the token, so a sequence's draws are the same in every batch."""
        graph = self.graph
        heat = graph.node("Max", "TEMPERATURE", self._number(TEMPERATURE_MIN))
        scores = graph.node("Div", scores, heat)
        shares = graph.node("Softmax", scores, axis=1)
        before = graph.node("CumSum", shares, self._integer(1), exclusive=1)
        kept = graph.node("Less", before, "TOP_P")
        # The most likely token is always kept.
        kept = graph.node("Or", kept, graph.node("LessOrEqual", before, self._number(0)))
        scores = graph.node("Where", kept, scores, self._number(UNSEEN_SCORE))
        return graph.node("ArgMax", graph.node("Add", scores, self._noise(tokens)), axis=1)

    def _noise(self, tokens: str) -> str:
        graph = self.graph
        word = self._integer(1 << 32)
        wrap = lambda value: graph.node("Mod", value, word)  # noqa: E731
        times = lambda value, factor: graph.node("Mul", value, self._integer(factor))  # noqa: E731
        seed = graph.node("Mod", "SEED", self._integer(1 << 30))
        hashed = graph.node("Add", times(seed, 2_654_435_761), times("LENGTH", 2_246_822_519))
        hashed = graph.node("Add", wrap(hashed), times(tokens, 3_266_489_917))
        for _ in range(4):
            hashed = wrap(graph.node("Add", times(wrap(hashed), 1_664_525), self._integer(1)))
            high = graph.node("Div", hashed, self._integer(1 << 15))
            hashed = wrap(graph.node("Add", times(high, 40_503), hashed))
        bits = graph.node("Div", hashed, self._integer(1 << 9))
        bits = graph.node("Cast", bits, to=TensorProto.FLOAT)
        uniform = graph.node("Add", bits, self._number(0.5))
        uniform = graph.node("Mul", uniform, self._number(2.0**-23))
        negated = graph.node("Neg", graph.node("Log", uniform))
        return graph.node("Neg", graph.node("Log", negated))

    def _normalize(self, value: str, name: str) -> str:
        graph = self.graph
        square = graph.node("Pow", value, self._number(2))
        mean = graph.node("ReduceMean", square, axes=[-1], keepdims=1)
        root = graph.node("Sqrt", graph.node("Add", mean, self._number(self._sizes.norm_epsilon)))
        weight = graph.weight(self._weights[name])
        return graph.node("Mul", graph.node("Div", value, root), weight)

    def _dense(self, value: str, name: str) -> str:
        return self.graph.node("MatMul", value, self.graph.weight(self._weights[name].T))

    def _shape(self, value: str, *dims: int) -> str:
        return self.graph.node("Reshape", value, self._integers(*dims))

    def _range(self, start: int, end: int, axis: int = 0) -> tuple[str, str, str]:
        return self._integers(start), self._integers(end), self._integers(axis)

    def _integers(self, *values: int) -> str:
        return self.graph.weight(numpy.array(values, numpy.int64))

    def _integer(self, value: int) -> str:
        return self.graph.weight(numpy.array(value, numpy.int64))

    def _number(self, value: float) -> str:
        return self.graph.weight(numpy.array(value, numpy.float32))


CONFIG = """\
backend: "onnxruntime"
max_batch_size: {max_batch_size}
input [
  {{ name: "PROMPT" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }},
  {{ name: "MAX_TOKENS" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "TEMPERATURE" data_type: TYPE_FP32 dims: [ 1 ] }},
  {{ name: "TOP_P" data_type: TYPE_FP32 dims: [ 1 ] }},
  {{ name: "SEED" data_type: TYPE_INT64 dims: [ 1 ] }}
]
output [ {{ name: "TOKEN" data_type: TYPE_INT64 dims: [ 1 ] }} ]
batch_input [
  {{
    kind: BATCH_ELEMENT_COUNT target_name: "PROMPT_LENGTH"
    data_type: TYPE_INT32 source_input: "PROMPT"
  }},
  {{
    kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "PROMPT_END"
    data_type: TYPE_INT32 source_input: "PROMPT"
  }}
]
model_transaction_policy {{ decoupled: true }}
parameters {{ key: "continue_output" value {{ string_value: "MORE" }} }}
parameters {{ key: "state_padding" value {{ string_value: "start" }} }}
{threads}\
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
sequence_batching {{
  iterative_sequence: true
  max_sequence_idle_microseconds: 60000000
  oldest {{ max_candidate_sequences: {max_batch_size} }}
  control_input [ {{
    name: "START"
    control [ {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} ]
  }} ]
{states}}}
"""
STATE = """\
  state [ {{
    input_name: "{input}" output_name: "{output}" data_type: {type} dims: [ {dims} ]
    initial_state {{ name: "zero" data_type: {type} dims: [ {first} ] zero_data: true }}
  }} ]
"""
THREADS = """\
parameters {{ key: "intra_op_thread_count" value {{ string_value: "{count}" }} }}
"""


def decoder_config(sizes: DecoderSizes, max_batch_size: int, thread_count: int = 1) -> str:
    """The configuration: an iterative model whose states are the keys and values of each layer."""
    integer = {"type": "TYPE_INT64", "dims": "1", "first": "1"}
    states = STATE.format(input="LENGTH", output="LENGTH_NEXT", **integer)
    states += STATE.format(input="LAST_TOKEN", output="TOKEN", **integer)
    numbers = {
        "type": "TYPE_FP32",
        "dims": f"-1, {sizes.state_size}",
        # An empty state is not allowed. The graph hides this element, because LENGTH is 0.
        "first": f"1, {sizes.state_size}",
    }
    for index in range(sizes.layer_count):
        for name in (f"KEYS_{index}", f"VALUES_{index}"):
            states += STATE.format(input=name, output=f"{name}_NEXT", **numbers)
    threads = THREADS.format(count=thread_count)
    return CONFIG.format(max_batch_size=max_batch_size, states=states, threads=threads)


#: A decoder for tests. Its tokens are bytes, and the token behind them ends a sequence.
TINY = DecoderSizes(
    layer_count=2,
    head_count=4,
    shared_head_count=2,
    head_size=8,
    vocabulary_size=257,
    context_size=96,
    norm_epsilon=1e-5,
    rotation_base=10_000.0,
    end_tokens=(256,),
)


def random_weights(sizes: DecoderSizes, seed: int = 7) -> dict[str, numpy.ndarray]:
    """Random weights, large enough that the next token depends on all earlier ones."""
    random = numpy.random.default_rng(seed)
    width = sizes.head_count * sizes.head_size
    state, inner = sizes.state_size, 2 * width

    def matrix(rows: int, columns: int) -> numpy.ndarray:
        values = random.standard_normal((rows, columns)) * 1.5 / columns**0.5
        return values.astype(numpy.float32)

    weights = {"embed_tokens": matrix(sizes.vocabulary_size, width)}
    for index in range(sizes.layer_count):
        for name, shape in {
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (state, width),
            "self_attn.v_proj": (state, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }.items():
            weights[f"layers.{index}.{name}"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"layers.{index}.{name}"] = numpy.ones(width, numpy.float32)
    weights["norm"] = numpy.ones(width, numpy.float32)
    return weights


def tiny_decoder() -> Example:
    """A decoder with random weights."""
    graph = DecoderGraph(random_weights(TINY), TINY)
    return Example(decoder_config(TINY, max_batch_size=8), {1: graph.write()})


TEXT_CONFIG = """\
backend: "python"
input [
  {{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }},
  {{ name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true }},
  {{ name: "top_p" data_type: TYPE_FP32 dims: [ 1 ] optional: true }},
  {{ name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true }},
  {{ name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }},
  {{ name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }},
  {{ name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }}
]
output [
  {{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }},
  {{ name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }}
]
model_transaction_policy {{ decoupled: true }}
parameters {{ key: "decoder" value {{ string_value: "{decoder}" }} }}
parameters {{ key: "prompt_tokens_max" value {{ string_value: "{prompt_tokens_max}" }} }}
parameters {{ key: "end_tokens" value {{ string_value: "{end_tokens}" }} }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
TEXT_MODEL = pathlib.Path(__file__).parent.parent / "python_models/text_generator/model.py"


def text_generator(
    decoder: str, sizes: DecoderSizes, files: Mapping[str, bytes] | None = None
) -> Example:
    """The Python model that puts text in front of a decoder."""
    config = TEXT_CONFIG.format(
        decoder=decoder,
        prompt_tokens_max=sizes.context_size - 1,
        end_tokens=",".join(map(str, sizes.end_tokens)),
    )
    return Example(config, {}, {"1/model.py": TEXT_MODEL.read_bytes(), **(files or {})})


def tiny_text() -> Example:
    """Text in front of the tiny decoder. A token is a byte."""
    return text_generator("tiny_decoder", TINY)


MODELS: dict[str, ExampleMaker] = {"tiny_decoder": tiny_decoder, "tiny_text": tiny_text}
