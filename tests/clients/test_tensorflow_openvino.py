"""Tests of TensorFlow models that OpenVINO executes, with and without TensorFlow's own
library."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shutil
from collections.abc import Iterator

import numpy
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import Server
from test_tensorflow import (
    ANSWERS,
    FLAG as TENSORFLOW_FLAG,
    LIBRARY as TENSORFLOW,
    MODELS,
    REFUSED,
    SAVED,
    UNSTRICT,
    ask,
    check_equal,
    config_of,
    mutated,
)
from test_tensorflow_absent import ADVICE, nowhere

openvino = pytest.importorskip("openvino", reason="the package openvino is not installed")

pytestmark = pytest.mark.galatea_only

LIBRARIES = pathlib.Path(openvino.__file__).parent / "libs"
FLAG = f"--openvino-library={max(LIBRARIES.glob('libopenvino_c.so*'))}"
#: The models of the suite that OpenVINO executes.
EXECUTED = [
    "any_rank",
    "convolution",
    "dynamic",
    "embedding",
    "fixed",
    "graph",
    "graph_on_gpu",
    "identity",
    "mlp",
    "scalar",
    "sum_and_difference",
]
#: The others, and a part of the reason.
REFUSED_BY_OPENVINO = {
    "counter": "these operators as TensorFlow does: AssignAddVariableOp",
    "graph_with_init_ops": "the parameter TF_INIT_OPS_FILE",
    "keeper": "these operators as TensorFlow does: AssignVariableOp",
    "overwriter": "these operators as TensorFlow does: InplaceAdd",
    "signatures": "the parameter TF_SIGNATURE_DEF",
    "strings": "it has no strings, such as",
    "table": "it has no strings, such as",
    "tagged": "the parameter TF_GRAPH_TAG",
    "types": "it computes FP64 with 32 bits",
}
MISSING = "because TensorFlow is not installed"


def runtime(name: str) -> str:
    """The parameter with which a configuration chooses the runtime."""
    return f'parameters {{ key: "RUNTIME" value {{ string_value: "{name}" }} }}'


def reasons(server: Server) -> dict[str, str]:
    """The reasons why models weren't loaded; empty for those that were."""
    index = server.request("POST", "/v2/repository/index", b"").json()
    return {model["name"]: model.get("reason", "") for model in index}


def maps(server: Server) -> str:
    """The files that the server has mapped."""
    return pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()


@pytest.fixture(scope="module")
def alone(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with all models, without TensorFlow."""
    folder = tmp_path_factory.mktemp("alone")
    repository = shutil.copytree(MODELS, folder / "models")
    (folder / "temporary").mkdir()
    environment = {**nowhere(folder), "TMPDIR": str(folder / "temporary")}
    with start_server(repository, FLAG, *UNSTRICT, environment=environment) as running:
        yield running.wait_until_ready()
        assert not list((folder / "temporary").glob("*.pb"))
    assert running.process.returncode == 0


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("model", EXECUTED)
# row: BE-05
def test_answers_are_those_of_tensorflow(alone: Server, model: str, transport: str) -> None:
    """This is done for each model and each request, with full precision."""
    for exchange in ANSWERS[model]:
        check_equal(ask(alone, transport, model, exchange["inputs"]), exchange["outputs"])
    assert f"model '{model}' is executed by OpenVINO, {MISSING}" in alone.log()


# row: BE-05
def test_sequences_and_ragged_batches_work(alone: Server) -> None:
    """States are tensors of the model, and so are the ends of joined requests."""
    with tritonclient.http.InferenceServerClient(alone.http_url) as client:
        totals = []
        for number, start in ((2.0, True), (3.0, False), (5.0, True)):
            one = tritonclient.http.InferInput("x", [1, 1], "FP32")
            one.set_data_from_numpy(numpy.array([[number]], numpy.float32))
            result = client.infer("sequence", [one], sequence_id=7, sequence_start=start)
            totals.append(float(result.as_numpy("y")[0, 0]))
    assert totals == [2, 5, 5]
    values = {"values": {"datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}}
    assert ask(alone, "http", "ragged", values)["sum"].tolist() == [[6.0]]


# row: BE-05
def test_other_models_say_what_to_install(alone: Server) -> None:
    """The error names what OpenVINO lacks, and how to install TensorFlow."""
    found = reasons(alone)
    for model, expected in REFUSED_BY_OPENVINO.items():
        assert expected in found[model] and ADVICE in found[model], (model, found[model])
    executed = {*EXECUTED, "sequence", "ragged"}
    assert {model for model, reason in found.items() if not reason} == executed


# row: BE-05 CFG-25
def test_configurations_are_completed_by_tensorflows_rules(alone: Server) -> None:
    """The executor makes no difference to clients."""
    config = alone.request("GET", "/v2/models/mlp/config").json()
    assert (config["backend"], config["platform"]) == ("tensorflow", "tensorflow_savedmodel")
    assert config["max_batch_size"] == 4 and "dynamic_batching" in config
    assert config["parameters"] == {}
    tensors = [(one["name"], one["data_type"], one["dims"]) for one in config["input"]]
    assert tensors == [("x", "TYPE_FP32", [16])]


# row: BE-05
def test_wrong_configurations_are_refused_in_the_same_words(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Each model's error says what is wrong."""
    # These need TensorFlow's library, which refuses them.
    refused = {name: REFUSED[name] for name in REFUSED if name not in ("tag", "operators")}
    for name, (config, _) in refused.items():
        config_of(tmp_path / "models", name, config)
    config_of(tmp_path / "models", "runtime", f"mlp\n{SAVED}{runtime('onnx')}")
    with start_server(
        tmp_path / "models", FLAG, *UNSTRICT, environment=nowhere(tmp_path)
    ) as running:
        found = reasons(running.wait_until_ready())
    for name, (_, expected) in refused.items():
        assert expected in found[name], (name, found[name])
    assert "parameter 'RUNTIME' must be 'tensorflow', 'openvino' or 'auto'" in found["runtime"]


@pytest.mark.skipif(not TENSORFLOW, reason="GALATEA_TEST_TENSORFLOW names no library")
# row: BE-05
def test_a_configuration_chooses_the_runtime(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Both are used at the same time, and a library that no model needs isn't in memory."""
    models = tmp_path / "models"
    for name in ("tensorflow", "openvino", "auto"):
        config_of(models, name, f"mlp\n{SAVED}{runtime(name)}")
        config_of(models, f"{name}_strings", f"strings\n{SAVED}{runtime(name)}")
    shutil.copytree(MODELS / "mlp", models / "unstated")
    exchange = ANSWERS["mlp"][0]
    explicit = "--model-control-mode=explicit"
    flags = (FLAG, TENSORFLOW_FLAG, explicit)
    with start_server(models, *flags, environment=nowhere(tmp_path)) as running:
        running.wait_until_ready()

        def load(name: str) -> str:
            reply = running.request("POST", f"/v2/repository/models/{name}/load", b"")
            return "" if reply.status == 200 else reply.error()

        assert load("openvino") == load("auto") == ""
        assert "libtensorflow" not in maps(running)
        assert "it has no strings" in load("openvino_strings")
        for name in ("auto_strings", "tensorflow", "tensorflow_strings", "unstated"):
            assert load(name) == "", name
        assert "libtensorflow" in maps(running)
        for name in ("tensorflow", "openvino", "auto", "unstated"):
            found = ask(running, "http", name, exchange["inputs"])
            check_equal(found, exchange["outputs"])
        strings = ANSWERS["strings"][0]
        check_equal(ask(running, "http", "auto_strings", strings["inputs"]), strings["outputs"])
        text = running.log()
    for name, choice in {
        "openvino": "OpenVINO, because the parameter RUNTIME says so",
        "auto": "OpenVINO, because it has all operators",
        "tensorflow": "TensorFlow, because the parameter RUNTIME says so",
        "unstated": "TensorFlow, because it is installed",
        "auto_strings": "TensorFlow, because OpenVINO can't: it has no strings",
    }.items():
        assert f"model '{name}' is executed by {choice}" in text, name


# row: BE-05
def test_all_types_are_executed_if_the_configuration_says_so(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The log says which results are less precise."""
    config_of(tmp_path / "models", "types", f"types\n{SAVED}{runtime('openvino')}")
    with start_server(tmp_path / "models", FLAG, environment=nowhere(tmp_path)) as running:
        running.wait_until_ready()
        for exchange in ANSWERS["types"]:
            check_equal(ask(running, "grpc", "types", exchange["inputs"]), exchange["outputs"])
        text = running.log()
    for datatype in ("INT64", "UINT64", "FP64"):
        assert f"computes {datatype} with 32 bits" in text


# row: BE-05
def test_requests_that_do_not_fit_are_refused(alone: Server) -> None:
    """A model continues after a failed execution."""
    exchange = ANSWERS["dynamic"][0]
    wrong = {"x": {"datatype": "FP32", "shape": [1, 3], "data": [1.0] * 3}}
    with pytest.raises(InferenceServerException):
        ask(alone, "http", "fixed", wrong)
    check_equal(ask(alone, "http", "dynamic", exchange["inputs"]), exchange["outputs"])


# row: BE-05
def test_damaged_files_end_nothing_else(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Each damaged model is loaded or refused, executed or not, and the others are served."""
    numbers = random.Random(os.environ.get("GALATEA_TEST_SEED", "27"))
    models = tmp_path / "models"
    shutil.copytree(MODELS / "mlp", models / "whole")
    originals = {}
    for number in range(int(os.environ.get("GALATEA_TEST_MUTATIONS", "40"))):
        model = numbers.choice(["mlp", "convolution", "graph", "embedding"])
        originals[f"damaged_{number}"] = model
        shutil.copytree(MODELS / model, folder := models / f"damaged_{number}")
        files = [path for path in sorted((folder / "1").rglob("*")) if path.is_file()]
        mutated(numbers.choice(files), numbers)
    with start_server(models, FLAG, *UNSTRICT, environment=nowhere(tmp_path)) as running:
        found = reasons(running.wait_until_ready())
        for name in (name for name, reason in found.items() if not reason):
            with contextlib.suppress(InferenceServerException, KeyError):
                ask(running, "http", name, ANSWERS[originals[name]][0]["inputs"])
        exchange = ANSWERS["mlp"][0]
        check_equal(ask(running, "http", "whole", exchange["inputs"]), exchange["outputs"])
