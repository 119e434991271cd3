"""Tests of the unmodified examples in Triton's repository python_backend, with their own
clients.

Skipped unless GALATEA_PYTHON_BACKEND_EXAMPLES names a checkout of that repository. Examples with
PyTorch need an interpreter in GALATEA_TORCH_PYTHON; docs/ecosystem.md lists the packages that it
needs.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from conftest import StartServer
from own_network import STANDARD_PORTS, own_network

CHECKOUT = os.environ.get("GALATEA_PYTHON_BACKEND_EXAMPLES", "")
EXAMPLES = pathlib.Path(CHECKOUT, "examples")
TORCH = os.environ.get("GALATEA_TORCH_PYTHON", "")
#: How long a client or the loading of models may take; some import PyTorch first.
CLIENT_SECONDS_MAX = 300

needs_examples = pytest.mark.skipif(
    not CHECKOUT, reason="needs a checkout of python_backend in GALATEA_PYTHON_BACKEND_EXAMPLES"
)
needs_torch = pytest.mark.skipif(
    not TORCH, reason="needs a Python with PyTorch in GALATEA_TORCH_PYTHON"
)


def own(folder: str) -> dict[str, str]:
    """The model in a directory, with the directory's name."""
    return {
        f"{folder}/1/model.py": f"{folder}/model.py",
        f"{folder}/config.pbtxt": f"{folder}/config.pbtxt",
    }


def written(folder: str, prefix: str, model: str) -> dict[str, str]:
    """A model whose files have a prefix."""
    return {
        f"{model}/1/model.py": f"{folder}/{prefix}_model.py",
        f"{model}/config.pbtxt": f"{folder}/{prefix}_config.pbtxt",
    }


SQUARE = written("decoupled", "square", "square_int32")


@dataclasses.dataclass(frozen=True)
class Example:
    """Files of the model repository, and clients with a line that each prints."""

    models: Mapping[str, str]
    clients: Mapping[str, str]


BARE = {
    "add_sub": Example(own("add_sub"), {"add_sub/client.py": "PASS: add_sub"}),
    "auto_complete": Example(
        {
            f"{kind}_auto_complete/1/model.py": f"auto_complete/{kind}_model.py"
            for kind in ("batch", "nobatch")
        },
        {"auto_complete/client.py": "PASS: auto_complete"},
    ),
    "bls_decoupled": Example(
        {
            **SQUARE,
            **written("bls_decoupled", "sync", "bls_decoupled_sync"),
            **written("bls_decoupled", "async", "bls_decoupled_async"),
        },
        {
            "bls_decoupled/sync_client.py": "PASS: BLS Decoupled Sync",
            "bls_decoupled/async_client.py": "PASS: BLS Decoupled Async",
        },
    ),
    "custom_metrics": Example(
        own("custom_metrics"), {"custom_metrics/client.py": "PASS: custom_metrics"}
    ),
    "decoupled": Example(
        {**SQUARE, **written("decoupled", "repeat", "repeat_int32")},
        {
            "decoupled/square_client.py": "PASS: square_int32",
            "decoupled/repeat_client.py": "PASS: repeat_int32",
        },
    ),
}
ADD_SUB_AND_PYTORCH = {**own("add_sub"), **own("pytorch")}
WITH_TORCH = {
    "pytorch": Example(own("pytorch"), {"pytorch/client.py": "PASS: pytorch"}),
    "bls": Example(
        {
            **ADD_SUB_AND_PYTORCH,
            **written("bls", "sync", "bls_sync"),
            **written("bls", "async", "bls_async"),
        },
        {"bls/sync_client.py": "PASS: BLS Sync", "bls/async_client.py": "PASS: BLS Async"},
    ),
}


class Runner:
    """Sets up an example, serves it on Triton's ports and runs its clients."""

    def __init__(self, start_server: StartServer, folder: pathlib.Path) -> None:
        self._start = start_server
        self.models = folder / "models"
        #: The example's folder, in which its clients run.
        self.work = folder / "work"

    def lay_out(self, files: Mapping[str, str]) -> None:
        """Copies files as described in the example's README."""
        for target, source in files.items():
            path = self.models / target
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(EXAMPLES / source, path)

    def client(self, script: str, *arguments: str, python: str = sys.executable) -> str:
        """Runs a client, and returns its output. It has to exit with 0."""
        work = EXAMPLES / pathlib.Path(script).parent
        if not self.work.exists():
            shutil.copytree(work, self.work)
        done = subprocess.run(
            [python, EXAMPLES / script, *arguments],
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CLIENT_SECONDS_MAX,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def serve(self, python: str, check: Callable[[], None]) -> None:
        """Serves the models with an interpreter while `check` runs."""
        interpreter = f"--backend-config=python,interpreter={python}"
        with (
            own_network(),
            self._start(self.models, interpreter, ports=STANDARD_PORTS) as server,
        ):
            server.wait_until_ready(CLIENT_SECONDS_MAX)
            check()
        assert server.process.returncode == 0

    def run(self, example: Example, python: str) -> None:
        """Runs all clients of an example."""

        def check() -> None:
            for script, line in example.clients.items():
                assert line in self.client(script)

        self.lay_out(example.models)
        self.serve(python, check)


@pytest.fixture
def runner(
    start_server: StartServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Runner:
    # PyTorch finds its hub there; ours contains stand-ins for what it would download.
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return Runner(start_server, tmp_path)


@needs_examples
@pytest.mark.parametrize("name", BARE)
def test_examples(runner: Runner, name: str) -> None:
    if name == "custom_metrics":
        pytest.importorskip("requests", reason="the example's client needs requests")
    runner.run(BARE[name], sys.executable)


@needs_examples
@needs_torch
@pytest.mark.parametrize("name", WITH_TORCH)
def test_examples_with_torch(runner: Runner, name: str) -> None:
    runner.run(WITH_TORCH[name], TORCH)


WEIGHTS = """
import sys, torch, torchvision
torch.save(torchvision.models.resnet50().state_dict(), sys.argv[1])
"""
HUB = """
import torch


class Images:
    @staticmethod
    def prepare_input_from_uri(uri):
        return torch.full((1, 3, 224, 224), 0.5)


def nvidia_convnets_processing_utils():
    return Images
"""


@needs_examples
@needs_torch
def test_instance_kind(runner: Runner, tmp_path: pathlib.Path) -> None:
    """ResNet-50 with arbitrary weights, and an image that isn't downloaded."""
    hub = tmp_path / "torch" / "hub"
    (hub / "checkpoints").mkdir(parents=True)
    weights = hub / "checkpoints" / "resnet50-11ad3fa6.pth"
    subprocess.run([TORCH, "-c", WEIGHTS, weights], check=True)
    # Release 24.10 also gets the network from a hub.
    network = "from torchvision.models import resnet50\n"
    for name, text in [
        ("NVIDIA_DeepLearningExamples_torchhub", HUB),
        ("pytorch_vision_v0.14.1", network),
    ]:
        (hub / name).mkdir()
        (hub / name / "hubconf.py").write_text(text)

    def check() -> None:
        printed = runner.client("instance_kind/client.py", "-v", python=TORCH)
        assert '"kind": "KIND_CPU"' in printed
        assert "Results is class: " in printed
        assert "PASS: ResNet50 instance kind" in printed

    names = ("config.pbtxt", "1/model.py")
    runner.lay_out({f"resnet50/{one}": f"instance_kind/{one.split('/')[-1]}" for one in names})
    runner.serve(TORCH, check)


CLASSIFIER = """
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.classify(one) for one in requests]

    def classify(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "input").as_numpy()
        classes = numpy.zeros((len(image), 1000), numpy.float32)
        for row, one in zip(classes, image):
            row[int(one[0].mean() * 100)] = 1
        return pb_utils.InferenceResponse([pb_utils.Tensor("output", classes)])
"""
#: The class of a red image: what the preprocessing makes of 255 in the first channel, times 100.
RED = int((1 - 0.485) / 0.229 * 100)


@needs_examples
@needs_torch
def test_preprocessing(runner: Runner, tmp_path: pathlib.Path) -> None:
    """Instead of the TensorRT engine, there is a Python model that recognizes colours; the
    rest is unchanged."""
    repository = "preprocessing/model_repository"
    runner.lay_out(
        {
            "preprocess/1/model.py": "preprocessing/model.py",
            "preprocess/config.pbtxt": f"{repository}/preprocess/config.pbtxt",
            "resnet50_trt/config.pbtxt": f"{repository}/resnet50_trt/config.pbtxt",
            "resnet50_trt/labels.txt": f"{repository}/resnet50_trt/labels.txt",
            "ensemble_python_resnet50/config.pbtxt": (
                f"{repository}/ensemble_python_resnet50/config.pbtxt"
            ),
        }
    )
    (runner.models / "ensemble_python_resnet50" / "1").mkdir()
    engine = runner.models / "resnet50_trt"
    config = (engine / "config.pbtxt").read_text()
    assert 'platform: "tensorrt_plan"' in config
    (engine / "config.pbtxt").write_text(
        config.replace('platform: "tensorrt_plan"', 'backend: "python"')
    )
    (engine / "1").mkdir()
    (engine / "1" / "model.py").write_text(CLASSIFIER)
    image = tmp_path / "red.ppm"
    image.write_bytes(b"P6 64 48 255\n" + b"\xff\0\0" * 64 * 48)
    label = (engine / "labels.txt").read_text().splitlines()[RED]

    def check() -> None:
        printed = runner.client("preprocessing/client.py", "--image", str(image))
        assert f"Result is class: {label}\n" in printed

    runner.serve(TORCH, check)
