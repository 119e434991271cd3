"""Tests of tree ensembles: the backend `fil`, from the libraries' files to the client."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import numpy
import pytest

from conftest import StartServer
from server import Server
from transports import TRANSPORTS

pytestmark = pytest.mark.galatea_only

#: Files of the libraries, with rows and what they predict for them.
GOLDENS = pathlib.Path(__file__).parents[2] / "crates" / "forest" / "tests" / "goldens"
#: For each ending, `model_type` and the file's name in a version.
FORMATS = {
    ".model": ("xgboost", "xgboost.model"),
    ".json": ("xgboost_json", "xgboost.json"),
    ".ubj": ("xgboost_ubj", "xgboost.ubj"),
    ".txt": ("lightgbm", "model.txt"),
    ".tl": ("treelite_checkpoint", "checkpoint.tl"),
}
MODELS = sorted(path for path in GOLDENS.iterdir() if path.suffix in FORMATS)
CONFIG = """\
backend: "fil"
max_batch_size: 64
input {{ name: "input__0" data_type: TYPE_FP32 dims: [ {features} ] }}
output {{ name: "output__0" data_type: TYPE_FP32 dims: [ {columns} ] }}
parameters {{ key: "model_type" value: {{ string_value: "{model_type}" }} }}
parameters {{ key: "is_classifier" value: {{ string_value: "false" }} }}
dynamic_batching {{ }}
"""
#: The number of rows beside each file.
ROWS = 40
ERROR_MAX = 2e-6
BROKEN = "broken"


def rows_of(model: pathlib.Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The rows in a file, and its library's predictions."""
    rows = numpy.fromfile(f"{model}.rows", "<f4")
    expected = numpy.fromfile(f"{model}.expected", "<f4")
    return rows.reshape(ROWS, -1), expected.reshape(ROWS, -1)


def name_of(model: pathlib.Path) -> str:
    """The name under which the server has the file."""
    return model.name.replace(".", "_")


def has_targets(model: pathlib.Path) -> bool:
    """Returns true if the model predicts several numbers at once."""
    return "targets" in model.name


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """All files, each as a model."""
    repository = tmp_path_factory.mktemp("forests")
    for model in MODELS:
        rows, expected = rows_of(model)
        model_type, file = FORMATS[model.suffix]
        version = repository / name_of(model) / "1"
        version.mkdir(parents=True)
        shutil.copy(model, version / file)
        sizes = {"features": rows.shape[1], "columns": expected.shape[1]}
        (version.parent / "config.pbtxt").write_text(CONFIG.format(model_type=model_type, **sizes))
    broken = repository / BROKEN / "1"
    broken.mkdir(parents=True)
    (broken / "xgboost.json").write_text('{"learner": 1}')
    config = CONFIG.format(model_type="xgboost_json", features=2, columns=1)
    (broken.parent / "config.pbtxt").write_text(config)
    with start_server(repository, "--exit-on-error=false", "--strict-readiness=false") as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


@pytest.mark.parametrize("transport", ["http", "grpc"])
# row: BE-06
def test_each_file_predicts_what_its_library_does(server: Server, transport: str) -> None:
    """Parts of the rows, so that the batches differ from those in the files."""
    client = TRANSPORTS[transport](server)
    served = [model for model in MODELS if not has_targets(model)]
    assert len(served) >= 25
    for model in served:
        rows, expected = rows_of(model)
        halves = []
        for part in (rows[:13], rows[13:]):
            outputs = client.infer(name_of(model), {"input__0": part})
            # As in Triton, a single column isn't a dimension.
            halves.append(outputs["output__0"].reshape(len(part), -1))
            assert outputs["output__0"].ndim == (1 if expected.shape[1] == 1 else 2), model.name
        found = numpy.concatenate(halves)
        error = numpy.abs(found - expected) / numpy.maximum(numpy.abs(expected), 1)
        assert error.max() <= ERROR_MAX, model.name
    client.close()


# row: BE-06
def test_models_that_can_not_be_served_say_why(server: Server) -> None:
    """Several targets, as in Triton, and a file that isn't a model."""
    index = server.request("POST", "/v2/repository/index", b"").json()
    states = {model["name"]: model for model in index}
    targets = [name_of(model) for model in MODELS if has_targets(model)]
    assert targets
    for name in targets:
        assert states[name]["reason"].endswith("Multi-target model not supported"), name
    assert "xgboost.json': " in states[BROKEN]["reason"]
