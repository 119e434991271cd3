"""A decoder in NumPy, which reads the whole sequence again for each token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy
from example_models.decoder import CANDIDATE_COUNT_MAX, DecoderSizes

WORD = 2**32


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The way in which a token is drawn."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


GREEDY = Sampling()


class ReferenceDecoder:
    """Computes a decoder's tokens one sequence at a time, without a cache."""

    def __init__(self, weights: Mapping[str, numpy.ndarray], sizes: DecoderSizes) -> None:
        self._weights = weights
        self._sizes = sizes

    def tokens(self, prompt: list[int], limit: int, sampling: Sampling = GREEDY) -> list[int]:
        """The tokens that follow a prompt."""
        sequence, first = list(prompt), len(prompt)
        while len(sequence) - first < max(limit, 1):
            read = len(sequence) - 1 if len(sequence) > first else 0
            token = self._choose(self.logits(sequence), sampling, read)
            sequence.append(token)
            if token in self._sizes.end_tokens or len(sequence) > self._sizes.context_size:
                break
        return sequence[first:]

    def logits(self, sequence: list[int]) -> numpy.ndarray:
        """The scores of all tokens to follow a sequence."""
        table = self._weights["embed_tokens"]
        value = table[sequence]
        for index in range(self._sizes.layer_count):
            normal = self._normal(value, f"layers.{index}.input_layernorm")
            value = value + self._attend(index, normal)
            normal = self._normal(value, f"layers.{index}.post_attention_layernorm")
            gate = self._dense(normal, f"layers.{index}.mlp.gate_proj")
            inner = gate / (1 + numpy.exp(-gate)) * self._dense(normal, f"layers.{index}.mlp.up_proj")
            value = value + self._dense(inner, f"layers.{index}.mlp.down_proj")
        return table @ self._normal(value[-1], "norm")

    def _attend(self, index: int, value: numpy.ndarray) -> numpy.ndarray:
        sizes, prefix, length = self._sizes, f"layers.{index}.self_attn", len(value)
        heads = {
            name: self._dense(value, f"{prefix}.{name}_proj").reshape(length, -1, sizes.head_size)
            for name in ("q", "k", "v")
        }
        group = sizes.head_count // sizes.shared_head_count
        query = self._rotate(heads["q"])
        keys = numpy.repeat(self._rotate(heads["k"]), group, axis=1)
        values = numpy.repeat(heads["v"], group, axis=1)
        scores = numpy.einsum("qhd,khd->hqk", query, keys) / sizes.head_size**0.5
        scores = numpy.where(numpy.tri(length, dtype=bool), scores, -numpy.inf)
        shares = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = numpy.einsum("hqk,khd->qhd", shares, values).reshape(length, -1)
        return self._dense(mixed, f"{prefix}.o_proj")

    def _rotate(self, heads: numpy.ndarray) -> numpy.ndarray:
        size = self._sizes.head_size
        turns = self._sizes.rotation_base ** -(numpy.arange(0, size, 2) / size)
        angles = numpy.outer(numpy.arange(len(heads)), turns)[:, None, :]
        first, second = heads[..., : size // 2], heads[..., size // 2 :]
        cosine, sine = numpy.cos(angles), numpy.sin(angles)
        turned = [first * cosine - second * sine, second * cosine + first * sine]
        return numpy.concatenate(turned, axis=-1).astype(numpy.float32)

    def _normal(self, value: numpy.ndarray, name: str) -> numpy.ndarray:
        mean = (value * value).mean(axis=-1, keepdims=True)
        return value / numpy.sqrt(mean + self._sizes.norm_epsilon) * self._weights[name]

    def _dense(self, value: numpy.ndarray, name: str) -> numpy.ndarray:
        return value @ self._weights[name].T

    def _choose(self, logits: numpy.ndarray, sampling: Sampling, read: int) -> int:
        """Draws a token, given how many tokens had been read before the last ones."""
        candidates = numpy.argsort(-logits, kind="stable")[:CANDIDATE_COUNT_MAX]
        if not sampling.temperature:
            return int(candidates[0])
        scores = logits[candidates] / sampling.temperature
        shares = numpy.exp(scores - scores.max())
        shares /= shares.sum()
        before = numpy.cumsum(shares) - shares
        kept = (before < sampling.top_p) | (numpy.arange(len(before)) == 0)
        noise = numpy.array([gumbel(sampling.seed, read, int(token)) for token in candidates])
        return int(candidates[numpy.argmax(numpy.where(kept, scores + noise, -numpy.inf))])


def gumbel(seed: int, read: int, token: int) -> float:
    """The noise of a token: a hash of the seed, the position and the token."""
    hashed = (seed % 2**30 * 2_654_435_761 + read * 2_246_822_519) % WORD
    hashed += token * 3_266_489_917
    for _ in range(4):
        hashed = (hashed % WORD * 1_664_525 + 1) % WORD
        hashed = (hashed // 2**15 * 40_503 + hashed) % WORD
    return float(-numpy.log(-numpy.log((hashed // 2**9 + 0.5) / 2**23)))
