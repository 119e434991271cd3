"""Runs a model in ONNX Runtime without any server, as fast as it goes.

    python direct.py MODEL BATCH SECONDS

Prints the inferences per second as JSON. It is a program of its own, so that it
can be pinned to the server's core.
"""

from __future__ import annotations

import json
import sys
import time

import numpy
import onnxruntime

WARM_UP_RUNS = 5
# For dimensions of any size.
ELEMENTS = 16


def inferences_per_second(path: str, batch: int, seconds: float) -> float:
    """Runs batches of random floats through the model's only input."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (feed,) = session.get_inputs()
    shape = [batch, *(ELEMENTS if isinstance(size, str) else size for size in feed.shape[1:])]
    values = numpy.random.default_rng(0).random(shape, dtype=numpy.float32)
    for _ in range(WARM_UP_RUNS):
        session.run(None, {feed.name: values})
    runs, started = 0, time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        session.run(None, {feed.name: values})
        runs += 1
    return runs * batch / elapsed


if __name__ == "__main__":
    print(json.dumps(inferences_per_second(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
