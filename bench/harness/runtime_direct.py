"""Runs a network repeatedly in a framework, and prints the CPU time per call in microseconds.

    python runtime_direct.py FORM FOLDER SECONDS

There is no server. The script is run with the Python that has the framework. It uses one thread,
one row, and an input in place.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy

# Only the function that needs a framework imports it. pylint: disable=import-outside-toplevel


def onnx(folder: pathlib.Path, x: numpy.ndarray) -> Callable[[], Any]:
    """ONNX Runtime's session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    return lambda: session.run(None, {"INPUT__0": x})


def openvino(folder: pathlib.Path, x: numpy.ndarray) -> Callable[[], Any]:
    """OpenVINO's request, made as a server makes it."""
    import openvino as ov

    compiled = ov.Core().compile_model(folder / "model.xml", "CPU", {"INFERENCE_NUM_THREADS": 1})
    request = compiled.create_infer_request()
    request.set_input_tensor(ov.Tensor(x, shared_memory=True))
    return request.infer


def torchscript(folder: pathlib.Path, x: numpy.ndarray) -> Callable[[], Any]:
    """TorchScript."""
    import torch

    torch.set_num_threads(1)
    network, tensor = torch.jit.load(str(folder / "model.pt")), torch.from_numpy(x)

    def call() -> Any:
        with torch.inference_mode():
            return network(tensor)

    return call


def aoti(folder: pathlib.Path, x: numpy.ndarray) -> Callable[[], Any]:
    """A compiled package."""
    import torch

    torch.set_num_threads(1)
    load = torch._inductor.aoti_load_package  # pylint: disable=protected-access
    network, tensor = load(str(folder / "model.pt2")), torch.from_numpy(x)

    def call() -> Any:
        with torch.inference_mode():
            return network(tensor)

    return call


def savedmodel(folder: pathlib.Path, x: numpy.ndarray) -> Callable[[], Any]:
    """TensorFlow's function."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    loaded = tf.saved_model.load(str(folder / "model.savedmodel"))
    network, tensor = loaded.signatures["serving_default"], tf.constant(x)
    return lambda: network(INPUT__0=tensor)["OUTPUT__0"].numpy()


def main() -> None:
    """Measures and prints the time."""
    form, folder, seconds = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
    x = numpy.load(folder / "example.npz")["x"][:1].copy()
    forms = (onnx, openvino, torchscript, aoti, savedmodel)
    call = {each.__name__: each for each in forms}[form](folder, x)
    for _ in range(200):
        call()
    best, calls, cpu, until = float("inf"), 0, time.process_time(), time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.perf_counter()
        call()
        best, calls = min(best, time.perf_counter() - begun), calls + 1
    used = (time.process_time() - cpu) / calls
    print(json.dumps({"cpu_us": used * 1e6, "least_us": best * 1e6}))


if __name__ == "__main__":
    main()
