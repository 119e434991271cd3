"""Sends two vectors to the model `simple` over HTTP, and prints their sum and
difference."""

from __future__ import annotations

import argparse

import numpy
import tritonclient.http as client


def main() -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000")
    options = parser.parse_args()

    left = numpy.arange(16, dtype=numpy.int32).reshape(1, 16)
    right = numpy.full((1, 16), 3, dtype=numpy.int32)
    inputs = [client.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    inputs[0].set_data_from_numpy(left)
    inputs[1].set_data_from_numpy(right)

    with client.InferenceServerClient(options.url) as server:
        result = server.infer("simple", inputs)
    print("sum       ", result.as_numpy("OUTPUT0")[0].tolist())
    print("difference", result.as_numpy("OUTPUT1")[0].tolist())


if __name__ == "__main__":
    main()
