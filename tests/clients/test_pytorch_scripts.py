"""Tests of PyTorch models that name the script of Triton's backend, which the Python backend
executes."""

from __future__ import annotations

import contextlib
import pathlib
import shutil

import numpy
import pytest

from conftest import StartServer
from python_backend import interpreter_flag
from transports import Http

pytestmark = pytest.mark.galatea_only

CONFIG = """\
backend: "pytorch"
runtime: "model.py"
max_batch_size: 8
input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2 ] }
"""
#: Stands in for Triton's script, which runs the class that the model's file has.
SCRIPT = """\
import importlib.util
import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], args["model_version"], "model.py")
        spec = importlib.util.spec_from_file_location("network", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.network = module.Network()

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(one, "INPUT__0") for one in requests]
        outputs = [self.network.forward(one.as_numpy()) for one in inputs]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT__0", one)]) for one in outputs
        ]
"""
NETWORK = """\
class Network:
    def forward(self, x):
        return 2 * x
"""


@pytest.fixture
def places(tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A repository with a model, and a backend directory with the script next to a library."""
    repository, backends = tmp_path / "models", tmp_path / "backends"
    (repository / "doubled" / "1").mkdir(parents=True)
    (repository / "doubled" / "config.pbtxt").write_text(CONFIG)
    (repository / "doubled" / "1" / "model.py").write_text(NETWORK)
    (backends / "pytorch").mkdir(parents=True)
    (backends / "pytorch" / "model.py").write_text(SCRIPT)
    (backends / "pytorch" / "libtriton_pytorch.so").write_text("not opened")
    return repository, backends


@pytest.mark.parametrize("has_library", [True, False])
# row: BE-02
def test_the_script_executes_models_that_name_it(
    start_server: StartServer, places: tuple[pathlib.Path, pathlib.Path], has_library: bool
) -> None:
    """As in Triton, this also works if the backend's library is there."""
    repository, backends = places
    if not has_library:
        (backends / "pytorch" / "libtriton_pytorch.so").unlink()
    with start_server(
        repository, interpreter_flag(), f"--backend-directory={backends}"
    ) as server:
        server.wait_until_ready()
        with contextlib.closing(Http(server)) as client:
            found = client.infer("doubled", {"INPUT__0": numpy.array([[1, 2.5]], "f4")})
        assert found["OUTPUT__0"].tolist() == [[2, 5]]


@pytest.mark.parametrize("backend", ["onnxruntime", "unknown"])
def test_a_missing_script_is_named(
    start_server: StartServer, places: tuple[pathlib.Path, pathlib.Path], backend: str
) -> None:
    """The errors have Triton's texts. The backend pytorch has a supplied script."""
    repository, backends = places
    shutil.rmtree(backends / "pytorch")
    config = CONFIG.replace("pytorch", backend)
    (repository / "doubled" / "config.pbtxt").write_text(config)
    flags = [f"--backend-directory={backends}", "--model-control-mode=explicit"]
    with start_server(repository, interpreter_flag(), *flags) as server:
        server.wait_until_live()
        refused = server.request("POST", "/v2/repository/models/doubled/load", b"{}").body.decode()
        assert (
            "unable to find Python backend based backend library 'model.py' for model 'doubled', "
            f"searched: '{backends}/{backend}/model.py'" in refused
        ), refused
