"""Runs a model in ONNX Runtime on a GPU without a server, as fast as one thread can.

    python direct_gpu.py MODEL BATCH SECONDS [--provider NAME] [--device NUMBER] [--shape NAME:SIZES]...

Like a server, each run copies its inputs to the GPU and its outputs back. Prints the inferences per
second as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy
import onnxruntime

WARM_UP_RUNS = 5
TYPES = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64, "tensor(int32)": numpy.int32}


def shapes(texts: list[str]) -> dict[str, list[int]]:
    """The sizes from `NAME:SIZES`, by name."""
    pairs = (text.rsplit(":", 1) for text in texts)
    return {name: [int(size) for size in sizes.split(",")] for name, sizes in pairs}


def shape(dims: list[int | str | None], batch: int, given: list[int]) -> list[int]:
    """An input's shape: the variable sizes are the batch size, then the given sizes, then 1."""
    rest, found = iter(given), [batch]
    for size in dims[1:]:
        found.append(size if isinstance(size, int) else next(rest, 1))
    return found


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--provider", default="CUDAExecutionProvider")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--shape", action="append", default=[])
    options = parser.parse_args()
    settings = {} if options.provider == "CPUExecutionProvider" else {"device_id": options.device}
    session = onnxruntime.InferenceSession(options.model, providers=[(options.provider, settings)])
    # The library falls back to the CPU if it can't use the GPU.
    if session.get_providers()[0] != options.provider:
        raise SystemExit(f"ONNX Runtime does not use {options.provider}")
    given = shapes(options.shape)
    feeds = {
        one.name: numpy.ones(shape(one.shape, options.batch, given.get(one.name, [])), TYPES[one.type])
        for one in session.get_inputs()
    }
    for _ in range(WARM_UP_RUNS):
        session.run(None, feeds)
    runs, started = 0, time.monotonic()
    while (elapsed := time.monotonic() - started) < options.seconds:
        session.run(None, feeds)
        runs += 1
    print(json.dumps(runs * options.batch / elapsed))


if __name__ == "__main__":
    main()
