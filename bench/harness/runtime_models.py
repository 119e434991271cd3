"""Writes three networks in one framework's format, with the weights that the first one generated.

    python runtime_models.py FRAMEWORK DIRECTORY

It is run with the Python that has the framework: `torch` writes the weights, TorchScript, the
compiled package and ONNX (`model.pt`, `model.pt2`, `model.onnx`), `openvino` reads the ONNX file,
and `tensorflow` builds the same networks from the weights. Each network maps `INPUT__0` to
`OUTPUT__0`. The first dimension is the batch, which can have any size.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy

#: The input of one row, by network.
INPUTS = {"mlp": (64,), "convolutions": (3, 32, 32), "transformer": (32, 64)}
HEADS = 4
BATCH_MAX = 64
EPSILON = 1e-5
#: The example from which frameworks derive shapes.
ROWS = 2


def torch_networks() -> dict[str, Any]:
    """The networks, with random weights."""
    import torch  # pylint: disable=import-outside-toplevel
    from torch import nn  # pylint: disable=import-outside-toplevel

    class Attention(nn.Module):  # type: ignore[misc]
        """An encoder layer, written out so that each framework has the same operations."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.before = nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.between = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Attention, and a network for each position."""
            heads = self.qkv(self.before(x)).reshape(-1, 32, 3, HEADS, 16).permute(2, 0, 3, 1, 4)
            scores = torch.softmax(heads[0] @ heads[1].transpose(-1, -2) * 0.25, -1)
            x = x + self.out((scores @ heads[2]).transpose(1, 2).reshape(-1, 32, 64))
            return x + self.down(torch.relu(self.up(self.between(x))))

    torch.manual_seed(7)
    return {
        "mlp": nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)),
        "convolutions": nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10),
        ),
        "transformer": nn.Sequential(Attention(64), Attention(64)),
    }


def write_torch(folder: pathlib.Path) -> None:
    """The weights, TorchScript, the compiled package, ONNX, and the outputs for an input."""
    import torch  # pylint: disable=import-outside-toplevel

    for name, network in torch_networks().items():
        network.eval()
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        example = torch.randn(ROWS, *INPUTS[name])
        weights = {key: value.numpy() for key, value in network.state_dict().items()}
        numpy.savez(place / "weights.npz", **weights)
        numpy.savez(place / "example.npz", x=example.numpy(), y=network(example).detach().numpy())
        with torch.no_grad():
            torch.jit.trace(network, (example,)).save(str(place / "model.pt"))
            torch.onnx.export(
                network, (example,), str(place / "model.onnx"), dynamo=False,
                input_names=["INPUT__0"], output_names=["OUTPUT__0"],
                dynamic_axes={"INPUT__0": {0: "batch"}, "OUTPUT__0": {0: "batch"}},
            )
            rows = torch.export.Dim("batch", min=1, max=BATCH_MAX)
            exported = torch.export.export(network, (example,), dynamic_shapes=({0: rows},))
            # The compiler fixes the number of threads of a loop.
            torch._inductor.aoti_compile_and_package(  # pylint: disable=protected-access
                exported, package_path=str(place / "model.pt2"),
                inductor_configs={"cpp.threads": 1},
            )


def write_openvino(folder: pathlib.Path) -> None:
    """The intermediate representation, converted from ONNX."""
    import openvino  # pylint: disable=import-outside-toplevel

    for name in INPUTS:
        model = openvino.Core().read_model(folder / name / "model.onnx")
        openvino.save_model(model, folder / name / "model.xml", compress_to_fp16=False)


def write_tensorflow(folder: pathlib.Path) -> None:
    """A SavedModel, built from the weights."""
    import tensorflow as tf  # pylint: disable=import-outside-toplevel

    def dense(weights: Any, layer: str, x: Any) -> Any:
        return tf.matmul(x, weights[f"{layer}.weight"].T) + weights[f"{layer}.bias"]

    def normal(weights: Any, layer: str, x: Any) -> Any:
        mean = tf.reduce_mean(x, -1, keepdims=True)
        spread = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
        x = (x - mean) * tf.math.rsqrt(spread + EPSILON)
        return x * weights[f"{layer}.weight"] + weights[f"{layer}.bias"]

    def mlp(weights: Any, x: Any) -> Any:
        return dense(weights, "2", tf.nn.relu(dense(weights, "0", x)))

    def convolutions(weights: Any, x: Any) -> Any:
        x = tf.transpose(x, [0, 2, 3, 1])
        for layer in ("0", "3", "6"):
            kernel = weights[f"{layer}.weight"].transpose(2, 3, 1, 0)
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + weights[f"{layer}.bias"])
            if layer != "6":
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        return dense(weights, "9", tf.reshape(tf.transpose(x, [0, 3, 1, 2]), [-1, 4096]))

    def transformer(weights: Any, x: Any) -> Any:
        for layer in ("0", "1"):
            heads = dense(weights, f"{layer}.qkv", normal(weights, f"{layer}.before", x))
            heads = tf.transpose(tf.reshape(heads, [-1, 32, 3, HEADS, 16]), [2, 0, 3, 1, 4])
            scores = tf.nn.softmax(tf.matmul(heads[0], heads[1], transpose_b=True) * 0.25)
            joined = tf.transpose(tf.matmul(scores, heads[2]), [0, 2, 1, 3])
            joined = tf.reshape(joined, [-1, 32, 64])
            x = x + dense(weights, f"{layer}.out", joined)
            hidden = dense(weights, f"{layer}.up", normal(weights, f"{layer}.between", x))
            x = x + dense(weights, f"{layer}.down", tf.nn.relu(hidden))
        return x

    def served(build: Any, weights: Any) -> Any:
        # TensorFlow traces the function later, and names the tensors after its arguments.
        def serve(INPUT__0: Any) -> Any:  # pylint: disable=invalid-name
            return {"OUTPUT__0": build(weights, INPUT__0)}

        return serve

    networks = {"mlp": mlp, "convolutions": convolutions, "transformer": transformer}
    for name, build in networks.items():
        weights = dict(numpy.load(folder / name / "weights.npz"))
        example = numpy.load(folder / name / "example.npz")
        module = tf.Module()
        signature = tf.TensorSpec([None, *INPUTS[name]], tf.float32, name="INPUT__0")
        module.serve = tf.function(served(build, weights), input_signature=[signature])
        found = module.serve(tf.constant(example["x"]))["OUTPUT__0"].numpy()
        numpy.testing.assert_allclose(found, example["y"], rtol=1e-3, atol=1e-4)
        place = folder / name / "model.savedmodel"
        tf.saved_model.save(module, str(place), signatures=module.serve)


if __name__ == "__main__":
    {"torch": write_torch, "openvino": write_openvino, "tensorflow": write_tensorflow}[sys.argv[1]](
        pathlib.Path(sys.argv[2])
    )
