"""Embeds texts with ONNX Runtime in Python, without a server, in batches of similar lengths.

    python text_direct.py DIRECTORY TEXTS SECONDS [EMBEDDINGS]

As sentence-transformers does, it converts the texts in the file TEXTS (JSON) to tokens, sorts them
by length, executes the network in batches, and computes the scaled mean of the vectors with numpy.
It prints texts per second and CPU seconds per text as JSON. With EMBEDDINGS, it first embeds each
text alone, and writes the results to a numpy file.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

import numpy
import onnxruntime
import tokenizers

BUDGET = 1024
LONGEST = 256


def token_network() -> bytes:
    """MiniLM without pooling, as it is published."""
    from example_models import minilm
    from onnx import TensorProto

    encoder, value, _ = minilm.encoded()
    graph = encoder.graph
    value = graph.node("Identity", value, output="last_hidden_state")
    graph.output(value, TensorProto.FLOAT, ["batch", "length", minilm.EMBEDDING_SIZE])
    return graph.bytes()


class Embedder:
    """A network with its tokenizer, for one thread."""

    def __init__(self, directory: pathlib.Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(directory / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(LONGEST)

    def run(self, batch: list[list[int]]) -> numpy.ndarray:
        """The embeddings of a batch."""
        shape = (len(batch), max(map(len, batch)))
        tokens, mask = numpy.zeros(shape, numpy.int64), numpy.zeros(shape, numpy.int64)
        for row, ids in enumerate(batch):
            tokens[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
        feed = {"input_ids": tokens, "attention_mask": mask,
                "token_type_ids": numpy.zeros(shape, numpy.int64)}
        vectors = self.session.run(None, feed)[0]
        means = (vectors * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        result: numpy.ndarray = means / numpy.linalg.norm(means, axis=1, keepdims=True)
        return result.astype(numpy.float32)

    def embed(self, texts: list[str]) -> numpy.ndarray:
        """The embeddings of all texts."""
        encoded = [one.ids for one in self.tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda place: len(encoded[place]))
        batches: list[list[int]] = [[]]
        for place in order:
            if (len(batches[-1]) + 1) * len(encoded[place]) > BUDGET and batches[-1]:
                batches.append([])
            batches[-1].append(place)
        result = numpy.empty((len(texts), 384), numpy.float32)
        for batch in batches:
            result[batch] = self.run([encoded[place] for place in batch])
        return result


def main(directory: str, texts_file: str, seconds: str, embeddings: str = "") -> None:
    """Runs the command."""
    texts = json.loads(pathlib.Path(texts_file).read_text())
    embedder = Embedder(pathlib.Path(directory))
    if embeddings:
        numpy.save(embeddings, numpy.concatenate([embedder.embed([text]) for text in texts]))
    embedder.embed(texts[:64])
    done = 0
    started, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - started < float(seconds):
        embedder.embed(texts)
        done += len(texts)
    elapsed, cpu = time.monotonic() - started, time.process_time() - cpu
    rate = {"texts/s": done / elapsed, "CPU ms/text": cpu * 1e3 / done} if done else {}
    print(json.dumps(rate))


if __name__ == "__main__":
    main(*sys.argv[1:])
