"""Tests of scikit-learn models, served in each way in docs/scikit-learn.md with that page's
code."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import urllib.request
from typing import Any

import numpy
import pytest

from conftest import ROOT, StartServer
from environments import environment, run
from server import Program
from test_serve_command import refused, serving

pytestmark = pytest.mark.galatea_only

SCRIPT = pathlib.Path(__file__).with_name("train_scikit_learn.py")
PAGE = (ROOT / "docs" / "scikit-learn.md").read_text()
PACKAGES = ("scikit-learn==1.9.1", "treelite==4.8.1", "skl2onnx==1.20.0", "onnx==1.23.2",
            "skops==0.16.0")
#: What the server gives for the others is in the page's table.
WITH_PROBABILITIES = ("random_two", "random_three", "extra_three", "boosted_three",
                      "histogram_three")
#: Sums of 32 bits.
ERROR_MAX = 2e-6
SECONDS_MAX = 300
CONFIG = """\
backend: "fil"
max_batch_size: 64
input {{ name: "input__0" data_type: TYPE_FP32 dims: [ 6 ] }}
output {{ name: "output__0" data_type: TYPE_FP32 dims: [ {columns} ] }}
parameters {{ key: "model_type" value {{ string_value: "treelite_checkpoint" }} }}
parameters {{ key: "is_classifier" value {{ string_value: "true" }} }}
parameters {{ key: "predict_proba" value {{ string_value: "{probabilities}" }} }}
"""


def code(words: str) -> str:
    """The page's Python block that contains these words."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (found,) = [block for block in blocks if words in block]
    return str(found)


@pytest.fixture(scope="module")
def python() -> pathlib.Path:
    """An interpreter that has the libraries."""
    return environment("scikit-learn", *PACKAGES)


@pytest.fixture(scope="module")
def trained(python: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The models' files, and their predictions."""
    folder = tmp_path_factory.mktemp("scikit_learn")
    status, output = run(python, SCRIPT, folder, code("treelite"), code("skl2onnx"))
    assert status == 0, output
    (folder / "python" / "churn.py").write_text(code("joblib"))
    return folder


class Answers:
    """Rows, and each model's results for them."""

    def __init__(self, folder: pathlib.Path) -> None:
        found = json.loads((folder / "expected.json").read_text())
        self.rows = numpy.array(found["rows"], numpy.float32)
        self.models: dict[str, dict[str, Any]] = found["models"]


@pytest.fixture(scope="module")
def answers(trained: pathlib.Path) -> Answers:
    """The results of the models themselves."""
    return Answers(trained)


def ask(
    address: str, model: str, name: str, datatype: str, rows: numpy.ndarray
) -> dict[str, numpy.ndarray]:
    """The outputs for rows."""
    tensor = {"name": name, "datatype": datatype, "shape": list(rows.shape),
              "data": rows.ravel().tolist()}
    request = urllib.request.Request(
        f"{address}/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as reply:
        outputs = json.loads(reply.read())["outputs"]
    return {one["name"]: numpy.array(one["data"]).reshape(one["shape"]) for one in outputs}


def check(found: numpy.ndarray, expected: Any) -> None:
    """Compares numbers up to the last bits of FP32, and texts and indices exactly."""
    expected = numpy.array(expected)
    found = found.reshape(expected.shape)
    if expected.dtype.kind == "f":
        numpy.testing.assert_allclose(found, expected, rtol=ERROR_MAX, atol=ERROR_MAX)
    else:
        assert found.tolist() == expected.tolist()


# row: BE-06
def test_forests_by_treelite(program: Program, trained: pathlib.Path, answers: Answers) -> None:
    """Every estimator in the page's table, without a configuration."""
    files = sorted((trained / "forests").glob("*.tl"))
    assert len(files) == 12
    with serving(program, trained / "forests") as ready:
        for file in files:
            expected = answers.models[file.stem]
            (found,) = ask(ready["http"], file.stem, "input__0", "FP32", answers.rows).values()
            if file.stem in WITH_PROBABILITIES:
                check(found, expected["predict_proba"])
            elif file.stem.endswith("_two"):
                check(found, [row[1] for row in expected["predict_proba"]])
            else:
                check(found, expected["score" if file.stem == "isolation" else "predict"])


# row: BE-06
def test_forests_with_a_configuration(
    start_server: StartServer, tmp_path: pathlib.Path, trained: pathlib.Path, answers: Answers
) -> None:
    """Class indices, and two columns for a boosted model with two classes."""
    for name, file, columns, probabilities in (
        ("index", "random_three", 1, "false"),
        ("boosted_index", "boosted_two", 1, "false"),
        ("columns", "boosted_two", 2, "true"),
    ):
        version = tmp_path / name / "1"
        version.mkdir(parents=True)
        shutil.copy(trained / "forests" / f"{file}.tl", version / "checkpoint.tl")
        config = CONFIG.format(columns=columns, probabilities=probabilities)
        (tmp_path / name / "config.pbtxt").write_text(config)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        address = f"http://127.0.0.1:{server.http_port}"
        for name, file, output in (
            ("index", "random_three", "index"), ("boosted_index", "boosted_two", "index"),
            ("columns", "boosted_two", "predict_proba"),
        ):
            (found,) = ask(address, name, "input__0", "FP32", answers.rows).values()
            check(found, answers.models[file][output])


def test_onnx_by_skl2onnx(program: Program, trained: pathlib.Path, answers: Answers) -> None:
    """Pipelines and forests, with labels that are texts or numbers."""
    files = sorted((trained / "onnx").glob("*.onnx"))
    assert len(files) == 5
    # Without it, completed configurations allow four rows.
    with serving(program, "--backend-config=default-max-batch-size=64", trained / "onnx") as ready:
        for file in files:
            expected = answers.models[file.stem]
            found = ask(ready["http"], file.stem, "X", "FP32", answers.rows)
            if "predict_proba" in expected:
                assert set(found) == {"label", "probabilities"}
                check(found["label"], expected["predict"])
                check(found["probabilities"], expected["predict_proba"])
            else:
                assert set(found) == {"variable"}
                check(found["variable"], expected["predict"])


def test_with_zipmap_the_model_can_not_be_loaded(program: Program, trained: pathlib.Path) -> None:
    """The probabilities aren't a tensor."""
    code, _, errors = refused(program, trained / "zipmap" / "tables.onnx")
    assert code == 1 and "output_probability" in errors, errors


def test_a_function_in_python(
    program: Program, python: pathlib.Path, trained: pathlib.Path, answers: Answers
) -> None:
    """The page's function, with the joblib file next to it."""
    flag = f"--backend-config=python,interpreter={python}"
    with serving(program, flag, trained / "python" / "churn.py") as ready:
        rows = answers.rows.astype(numpy.float64)
        found = ask(ready["http"], "churn", "x", "FP64", rows)
    expected = answers.models["linear_names"]
    check(found["label"], expected["predict"])
    check(found["probabilities"], expected["predict_proba"])


def test_a_joblib_file_is_refused_with_the_ways(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """It is a program, and a skops file needs a worker."""
    code, out, errors = refused(program, trained / "python" / "churn.joblib")
    assert (code, out) == (1, "")
    for way in ("is a pickle, which is code", "skl2onnx", "treelite.sklearn.import_model", "in Python"):
        assert way in errors, errors
    (tmp_path / "churn.skops").write_text("any")
    code, out, errors = refused(program, tmp_path / "churn.skops")
    assert code == 1 and "is read by scikit-learn" in errors, errors
