"""Runs a model in ONNX Runtime without a server, as fast as possible.

    python direct.py MODEL BATCH SECONDS

Prints the inferences per second as JSON. It is a separate program so that it can be pinned to
the server's core.
"""

from __future__ import annotations

import json
import sys
import time

import numpy
import onnxruntime

WARM_UP_RUNS = 5
# The value used for dimensions of any size.
ELEMENTS = 16


def session(path: str, batch: int) -> tuple[onnxruntime.InferenceSession, str, list[int]]:
    """Opens a model for one thread, and returns it with the name of its only input and the
    input's shape for such batches."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    opened = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (feed,) = opened.get_inputs()
    shape = [batch, *(ELEMENTS if isinstance(size, str) else size for size in feed.shape[1:])]
    return opened, feed.name, shape


def inferences_per_second(path: str, batch: int, seconds: float) -> float:
    """Runs batches of random floats through the model, which has a single input."""
    opened, name, shape = session(path, batch)
    values = numpy.random.default_rng(0).random(shape, dtype=numpy.float32)
    for _ in range(WARM_UP_RUNS):
        opened.run(None, {name: values})
    runs, started = 0, time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        opened.run(None, {name: values})
        runs += 1
    return runs * batch / elapsed


if __name__ == "__main__":
    print(json.dumps(inferences_per_second(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
