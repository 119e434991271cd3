"""Runs sentences through a model in ONNX Runtime without a server, in batches of similar lengths.

    python sorted_batches.py MODEL TOKENS BUDGET SECONDS [EMBEDDINGS]

All sentences in the file TOKENS (JSON) are available from the start, and are sorted by length. A
batch has at most BUDGET tokens, including its padding. It prints sentences per second and CPU
seconds per sentence as JSON. With EMBEDDINGS, it first executes each sentence alone, and writes the
results to a numpy file. It is a separate program so that it can be pinned to the server's core.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

import numpy
import onnxruntime

#: As many as the server puts into a batch.
ROWS_MAX = 32


def feed(sentences: list[list[int]]) -> dict[str, numpy.ndarray]:
    """The inputs of a batch."""
    shape = (len(sentences), max(len(each) for each in sentences))
    tokens, mask = numpy.zeros(shape, numpy.int64), numpy.zeros(shape, numpy.int64)
    for row, sentence in enumerate(sentences):
        tokens[row, : len(sentence)] = sentence
        mask[row, : len(sentence)] = 1
    types = numpy.zeros(shape, numpy.int64)
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": types}


def batches(sentences: list[list[int]], budget: int) -> list[list[list[int]]]:
    """The sentences, sorted by length and divided into batches."""
    found: list[list[list[int]]] = [[]]
    for sentence in sorted(sentences, key=len):
        if len(found[-1]) == ROWS_MAX or (len(found[-1]) + 1) * len(sentence) > budget:
            found.append([])
        found[-1].append(sentence)
    return [batch for batch in found if batch]


def session(path: str) -> onnxruntime.InferenceSession:
    """Opens a model for one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def rate(
    opened: onnxruntime.InferenceSession, all_batches: list[list[list[int]]], seconds: float
) -> dict[str, float]:
    """Executes all batches repeatedly."""
    done = 0
    for batch in all_batches[:: len(all_batches) // 4 or 1]:
        opened.run(None, feed(batch))
    started, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - started < seconds:
        for batch in all_batches:
            opened.run(None, feed(batch))
            done += len(batch)
    elapsed, cpu = time.monotonic() - started, time.process_time() - cpu
    return {"rate": done / elapsed, "cpu_ms": cpu * 1e3 / done}


def main(model: str, tokens: str, budget: str, seconds: str, embeddings: str = "") -> None:
    """Runs the command."""
    sentences = json.loads(pathlib.Path(tokens).read_text())
    opened = session(model)
    if embeddings:
        alone = [opened.run(None, feed([sentence]))[0][0] for sentence in sentences]
        numpy.save(embeddings, numpy.array(alone))
    found = batches(sentences, int(budget))
    print(json.dumps(rate(opened, found, float(seconds)) | {"rows": len(sentences) / len(found)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
