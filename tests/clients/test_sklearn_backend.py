"""Tests of examples/python_backends/sklearn: models without code, compared with their
libraries."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from conftest import ROOT, StartServer
from environments import environment, run
from server import Server, wait_until
from test_python_page import block

pytestmark = pytest.mark.galatea_only

SCRIPT = pathlib.Path(__file__).with_name("train_models.py")
EXAMPLE = ROOT / "examples" / "python_backends" / "sklearn"
PACKAGES = ("scikit-learn==1.9.1", "xgboost-cpu==3.2.0", "lightgbm==4.7.0", "skops==0.16.0")
CONFIG = 'backend: "sklearn"\n'
#: Trees in skops' files must be trusted: their numbers are indexes that nothing checks.
TREES = 'parameters { key: "SKOPS_TRUSTED" value { string_value: "sklearn.tree._tree.Tree" } }\n'
MODELS = ("names", "pipeline", "xgb_three", "xgb_two", "xgb_softmax", "xgb_early",
          "lgb_three", "lgb_two", "lgb_value")
NO_FILE = "must have one of model.skops, model.joblib, model.json, model.ubj, model.txt, but has "


#: The libraries are imported twice for each model, which takes long on a busy machine.
LOAD_SECONDS_MAX = 400


def loaded(server: Server) -> Server:
    """The server once it is ready, or has ended."""
    is_done = lambda: server.process.poll() is not None or server.is_ready()  # noqa: E731
    wait_until(is_done, LOAD_SECONDS_MAX, "all models are loaded")
    return server.wait_until_ready()


@pytest.fixture(scope="module")
def python() -> pathlib.Path:
    """An interpreter that has the libraries."""
    return environment("sklearn", *PACKAGES)


@pytest.fixture(scope="module")
def trained(python: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A repository of trained models, each with its library's predictions next to it."""
    folder = tmp_path_factory.mktemp("trained")
    status, output = run(python, SCRIPT, folder)
    if "libgomp" in output:
        pytest.skip("needs libgomp, which LightGBM uses")
    assert status == 0, output
    for name in MODELS:
        more = TREES if name == "pipeline" else ""
        (folder / name / "config.pbtxt").write_text(CONFIG + more)
    return folder


@pytest.fixture(scope="module")
def flags(
    python: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, ...]:
    """The example as a backend, with that interpreter."""
    backends = tmp_path_factory.mktemp("backends")
    shutil.copytree(EXAMPLE, backends / "sklearn")
    return f"--backend-directory={backends}", f"--backend-config=python,interpreter={python}"


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, trained: pathlib.Path, flags: tuple[str, ...]
) -> Iterator[Server]:
    """A server with all models."""
    with start_server(trained, *flags) as running:
        yield loaded(running)


def expectation(trained: pathlib.Path, name: str) -> tuple[Any, dict[str, Any]]:
    """Rows, and a library's outputs for them."""
    found = json.loads((trained / f"{name}.json").read_text())
    return found["rows"], found["expected"]


def ask(server: Server, name: str, rows: Any, *outputs: str) -> dict[str, Any]:
    """The values of the outputs for the rows, in the shape that the server reports."""
    datatype = "FP32" if name.startswith("xgb") else "FP64"
    data = [value for row in rows for value in row]
    tensor = {"name": "input", "datatype": datatype, "shape": [len(rows), 4], "data": data}
    wanted = {"outputs": [{"name": one} for one in outputs]} if outputs else {}
    reply = server.infer(name, {"inputs": [tensor], **wanted})
    assert reply.status == 200, reply.body
    return {
        one["name"]: numpy.array(one["data"]).reshape(one["shape"])
        for one in reply.json()["outputs"]
    }


def check(found: Any, expected: Any) -> None:
    """Compares numbers with a tolerance of 1e-6, and texts exactly."""
    expected = numpy.array(expected).reshape(len(expected), -1)
    assert found.shape == expected.shape
    if expected.dtype.kind == "U":
        assert found.tolist() == expected.tolist()
    else:
        numpy.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_those_of_the_library(
    server: Server, trained: pathlib.Path, name: str
) -> None:
    """Every output of every kind of file."""
    rows, expected = expectation(trained, name)
    found = ask(server, name, rows)
    assert sorted(found) == sorted(expected)
    for output, values in expected.items():
        check(found[output], values)


def test_the_configuration_is_that_of_the_model(server: Server) -> None:
    """Features and classes."""
    config = server.get("/v2/models/names/config").json()
    tensors = [(one["name"], one["data_type"], one["dims"])
               for one in config["input"] + config["output"]]
    assert tensors == [("input", "TYPE_FP64", [4]), ("predict", "TYPE_STRING", [1]),
                       ("predict_proba", "TYPE_FP64", [3])]
    assert config["max_batch_size"] == 64 and "dynamic_batching" in config
    config = server.get("/v2/models/xgb_early/config").json()
    assert [one["data_type"] for one in config["input"] + config["output"]] == ["TYPE_FP32"] * 2


def test_one_output_of_two(server: Server, trained: pathlib.Path) -> None:
    """This holds for whichever outputs the client requests."""
    rows, expected = expectation(trained, "lgb_three")
    for output in ("predict", "predict_proba"):
        found = ask(server, "lgb_three", rows, output)
        assert list(found) == [output]
        check(found[output], expected[output])


def test_clients_that_come_together(server: Server, trained: pathlib.Path) -> None:
    """Whichever requests share a call, each client gets its own rows."""
    rows, expected = expectation(trained, "pipeline")

    def one(number: int) -> None:
        start, count = number % len(rows), 1 + number % 3
        found = ask(server, "pipeline", rows[start:start + count])
        check(found["predict_proba"], expected["predict_proba"][start:start + count])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(60)))


def write(repository: pathlib.Path, config: str = CONFIG, **files: bytes) -> pathlib.Path:
    """A model with these files, `model_json=...` for model.json."""
    version = repository / "m" / "1"
    version.mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(config)
    for name, content in files.items():
        (version / name.replace("_", ".")).write_bytes(content)
    return version


@pytest.mark.parametrize("files, text", [
    ({}, f"{NO_FILE}none of them"),
    ({"model_json": b"{}", "model_txt": b""}, f"{NO_FILE}model.json and model.txt"),
    ({"model_json": b"[1"}, "/model.json' can't be loaded: XGBoostError: "),
    ({"model_ubj": b"\0"}, "/model.ubj' can't be loaded: XGBoostError: "),
    ({"model_joblib": b"no pickle"}, "/model.joblib' can't be loaded: "),
    ({"model_skops": b"no archive"}, "/model.skops' can't be loaded: BadZipFile: "),
    ({"model_txt": b"tree\n"}, "/model.txt' can't be loaded: LightGBMError: "),
])
def test_errors_name_the_file(
    start_server: StartServer, tmp_path: pathlib.Path, flags: tuple[str, ...],
    files: dict[str, bytes], text: str,
) -> None:
    """Files that are missing, too many, or damaged."""
    version = write(tmp_path, **files)
    with start_server(tmp_path, *flags) as server:
        assert server.wait_for_exit() == 1
        log = server.log()
    assert text in log and str(version) in log


def test_a_configuration_may_choose(
    start_server: StartServer, tmp_path: pathlib.Path, trained: pathlib.Path,
    flags: tuple[str, ...],
) -> None:
    """Its data type and batches are used."""
    tensor = 'input { name: "input" data_type: TYPE_FP32 dims: [ 4 ] }\n'
    version = write(tmp_path, f"{CONFIG}max_batch_size: 8\n{tensor}")
    shutil.copy(trained / "names" / "1" / "model.joblib", version)
    with start_server(tmp_path, *flags) as server:
        loaded(server)
        config = server.get("/v2/models/m/config").json()
    assert config["max_batch_size"] == 8
    assert config["input"][0]["data_type"] == "TYPE_FP32"


def test_the_steps_of_the_page(
    start_server: StartServer, tmp_path: pathlib.Path, trained: pathlib.Path,
    python: pathlib.Path,
) -> None:
    """Checks docs/python.md: the files are where its commands put them."""
    *commands, serve = block("sklearn").splitlines()
    assert serve.split() == ["galatea", "--model-repository", "models", "--backend-directory",
                             "backends"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copy(trained / "names" / "1" / "model.joblib", tmp_path / "trained.joblib")
    script = "set -e\n" + "\n".join(commands)
    subprocess.run(script, shell=True, cwd=tmp_path, check=True, timeout=60)
    backends = f"--backend-directory={tmp_path / 'backends'}"
    interpreter = f"--backend-config=python,interpreter={python}"
    rows, expected = expectation(trained, "names")
    with start_server(tmp_path / "models", backends, interpreter) as server:
        loaded(server)
        check(ask(server, "iris", rows)["predict"], expected["predict"])


HOSTILE = """
import sys
from skops import io
from sklearn.linear_model import Ridge
from sklearn.preprocessing import FunctionTransformer
from sklearn.pipeline import make_pipeline
import os

model = make_pipeline(FunctionTransformer(os.path.basename), Ridge())
io.dump(model, sys.argv[1])
"""


def test_skops_files_run_nothing_that_is_not_trusted(
    start_server: StartServer, tmp_path: pathlib.Path, python: pathlib.Path,
    flags: tuple[str, ...],
) -> None:
    """Types in a file other than the known ones must be named in the configuration."""
    version = write(tmp_path)
    assert run(python, "-c", HOSTILE, version / "model.skops")[0] == 0
    with start_server(tmp_path, *flags) as server:
        assert server.wait_for_exit() == 1
        log = server.log()
    assert "UntrustedTypesFoundException" in log and "posixpath.basename" in log
