"""Tests of the backend `tensorflow`, from files that TensorFlow wrote to the client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from conftest import StartServer
from python_backend import interpreter_flag
from server import Program, Server

LIBRARY = os.environ.get("GALATEA_TEST_TENSORFLOW", "")

pytestmark = [
    pytest.mark.galatea_only,
    pytest.mark.skipif(not LIBRARY, reason="GALATEA_TEST_TENSORFLOW names no library"),
]

SUITE = pathlib.Path(__file__).parents[1] / "tensorflow"
MODELS = SUITE / "models"
#: For each model, requests and what TensorFlow answered to them, one after another.
ANSWERS: dict[str, Any] = json.loads((SUITE / "answers.json").read_text())
#: Requests of these models have tensors that the server adds.
SENT = sorted(set(ANSWERS) - {"ragged", "sequence"})
#: Models that remember, so that each server gets their requests once.
STATEFUL = {"counter", "keeper", "large_keeper", "graph_with_init_ops"}
LIBRARIES = {"http": tritonclient.http, "grpc": tritonclient.grpc}
ERROR_MAX = 2e-6
FLAG = f"--tensorflow-library={LIBRARY}"
UNSTRICT = ("--exit-on-error=false", "--strict-readiness=false")


def array_of(tensor: dict[str, Any]) -> numpy.ndarray:
    """A tensor in the form that the client library expects."""
    datatype, data = tensor["datatype"], tensor["data"]
    if datatype == "BYTES":
        data = [text.encode() for text in data]
        return numpy.array(data, dtype=object).reshape(tensor["shape"])
    dtype = ml_dtypes.bfloat16 if datatype == "BF16" else triton_to_np_dtype(datatype)
    return numpy.array(data, dtype=dtype).reshape(tensor["shape"])


def ask(server: Server, transport: str, model: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """Sends a request, and returns its outputs."""
    library = LIBRARIES[transport]
    url = {"http": server.http_url, "grpc": server.grpc_url}[transport]
    inputs = []
    for name, tensor in tensors.items():
        array = array_of(tensor)
        # A scalar in the graph is one element for clients.
        shape = list(array.shape) or [1]
        one = library.InferInput(name, shape, tensor["datatype"])
        one.set_data_from_numpy(array.reshape(shape))
        inputs.append(one)
    with library.InferenceServerClient(url) as client:
        result = client.infer(model, inputs)
        response = result.get_response()
        if transport == "http":
            names = [output["name"] for output in response["outputs"]]
        else:
            names = [output.name for output in response.outputs]
        return {name: result.as_numpy(name) for name in names}


def check_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The names and shapes are the same, and the numbers agree up to rounding."""
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        array = array_of(tensor)
        assert found[name].shape == (array.shape or (1,)), name
        if tensor["datatype"] == "BYTES":
            assert found[name].reshape(-1).tolist() == array.reshape(-1).tolist(), name
        else:
            assert found[name].dtype == array.dtype, name
            numbers = [one.reshape(-1).astype(numpy.float64) for one in (found[name], array)]
            numpy.testing.assert_allclose(*numbers, rtol=ERROR_MAX, atol=ERROR_MAX)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of all models."""
    return shutil.copytree(MODELS, tmp_path_factory.mktemp("tensorflow") / "models")


@pytest.fixture(scope="module")
def server(start_server: StartServer, repository: pathlib.Path) -> Iterator[Server]:
    """A server with all models."""
    with start_server(repository, FLAG) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("model", [name for name in SENT if name not in STATEFUL])
# row: BE-05
def test_answers_are_those_of_tensorflow(server: Server, model: str, transport: str) -> None:
    """This is done for each model and each request."""
    for exchange in ANSWERS[model]:
        check_equal(ask(server, transport, model, exchange["inputs"]), exchange["outputs"])


@pytest.mark.parametrize("model", sorted(STATEFUL))
# row: BE-05
def test_variables_last_from_request_to_request(server: Server, model: str) -> None:
    """A session has variables, and a variable may keep the input of a request."""
    for exchange in ANSWERS[model]:
        check_equal(ask(server, "http", model, exchange["inputs"]), exchange["outputs"])


# row: BE-05 CFG-25
def test_configurations_are_completed_as_in_triton(server: Server) -> None:
    """Names, types, dimensions, and the batch size."""
    config = server.request("GET", "/v2/models/mlp/config").json()
    assert (config["backend"], config["platform"]) == ("tensorflow", "tensorflow_savedmodel")
    assert config["default_model_filename"] == "model.savedmodel"
    assert config["max_batch_size"] == 4
    assert "dynamic_batching" in config
    assert config["instance_group"][0]["count"] == 2
    tensors = [(one["name"], one["data_type"], one["dims"]) for one in config["input"]]
    assert tensors == [("x", "TYPE_FP32", [16])]
    fixed = server.request("GET", "/v2/models/fixed/config").json()
    assert (fixed["max_batch_size"], "dynamic_batching" in fixed) == (0, False)
    dynamic = server.request("GET", "/v2/models/dynamic/config").json()
    # The configuration's tensor has the model's number of dimensions, so there are no batches.
    assert [one["dims"] for one in dynamic["output"]] == [[-1], [-1, -1]]


# row: BE-05 RAG-04
def test_requests_of_different_lengths_share_a_batch(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Each sequence gets the sum of its own numbers."""
    shutil.copytree(MODELS / "ragged", tmp_path / "ragged")
    rows = [[1.0, 2.0, 3.0], [10.0], [4.0, 5.0]]
    together = {"TRITONSERVER_DELAY_SCHEDULER": str(len(rows))}

    def sum_of(row: list[float]) -> float:
        tensor = {"datatype": "FP32", "shape": [1, len(row)], "data": row}
        return float(ask(running, "http", "ragged", {"values": tensor})["sum"][0, 0])

    with (
        start_server(tmp_path, FLAG, environment=together) as running,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        running.wait_until_ready()
        assert list(threads.map(sum_of, rows)) == [sum(row) for row in rows]
        statistics = running.request("GET", "/v2/models/ragged/stats").json()["model_stats"][0]
    assert statistics["execution_count"] == 1


# row: BE-05
def test_sequences_have_a_state(server: Server) -> None:
    """The state is passed from one request of a sequence to the next."""
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        totals = []
        for number, start in ((2.0, True), (3.0, False), (4.0, False), (5.0, True)):
            one = tritonclient.http.InferInput("x", [1, 1], "FP32")
            one.set_data_from_numpy(numpy.array([[number]], numpy.float32))
            result = client.infer("sequence", [one], sequence_id=7, sequence_start=start)
            totals.append(float(result.as_numpy("y")[0, 0]))
    assert totals == [2, 5, 9, 5]


# row: BE-05
def test_outputs_may_be_left_out(server: Server) -> None:
    """Only the requested outputs are computed."""
    exchange = ANSWERS["sum_and_difference"][0]
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        inputs = []
        for name, tensor in exchange["inputs"].items():
            one = tritonclient.http.InferInput(name, tensor["shape"], "FP32")
            one.set_data_from_numpy(array_of(tensor))
            inputs.append(one)
        wanted = [tritonclient.http.InferRequestedOutput("difference")]
        result = client.infer("sum_and_difference", inputs, outputs=wanted)
    assert [output["name"] for output in result.get_response()["outputs"]] == ["difference"]
    expected = array_of(exchange["outputs"]["difference"])
    numpy.testing.assert_allclose(result.as_numpy("difference"), expected)


def config_of(folder: pathlib.Path, name: str, text: str) -> None:
    """Adds a model from the suite with a different configuration."""
    model, text = text.split("\n", 1)
    shutil.copytree(MODELS / model, folder / name)
    (folder / name / "config.pbtxt").write_text(text)


SAVED = 'platform: "tensorflow_savedmodel"\n'
GRAPH = 'platform: "tensorflow_graphdef"\n'
#: Models that can't be loaded, and the end of what Triton says about them.
REFUSED = {
    "tag": (
        'mlp\n' + SAVED + 'parameters { key: "TF_GRAPH_TAG" value { string_value: "x" } }',
        "unable to auto-complete model configuration for 'tag', failed to load model: Could not "
        "find meta graph def matching supplied tags: { x }.",
    ),
    "signature": (
        'mlp\n' + SAVED + 'parameters { key: "TF_SIGNATURE_DEF" value { string_value: "x" } }',
        "unable to auto-complete model configuration for 'signature', failed to load model: "
        "unable to load model 'signature', expected 'x' signature",
    ),
    "batches": (
        "fixed\n" + SAVED + "max_batch_size: 8",
        "unable to autofill for 'batches', configuration specified max-batch 8 but model signature "
        "does not support batching",
    ),
    "datatype": (
        "mlp\n" + SAVED + 'input { name: "x" data_type: TYPE_INT32 dims: [ 16 ] }',
        "unable to load model 'datatype', configuration expects datatype TYPE_INT32 for input 'x', "
        "model provides TYPE_FP32",
    ),
    "threads": (
        'mlp\n' + SAVED + 'parameters { key: "TF_NUM_INTRA_THREADS" value { string_value: "-1" } }',
        "parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model "
        "'threads'",
    ),
    "sharing": (
        'mlp\n' + SAVED
        + 'parameters { key: "MAX_SESSION_SHARE_COUNT" value { string_value: "0" } }',
        "parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model "
        "'sharing'",
    ),
    "operators": (
        "mlp\n" + SAVED + 'model_operations { op_library_filename: "/no/such/library.so" }',
        "'/no/such/library.so' of model_operations.op_library_filename: /no/such/library.so: "
        "cannot open shared object file",
    ),
    "accelerator": (
        "mlp\n" + SAVED + "optimization { execution_accelerators { cpu_execution_accelerator { "
        'name: "openvino" } } }',
        "CPU Execution Accelerator is not supported in TensorFlow backend",
    ),
    "output": (
        "graph\n" + GRAPH + 'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } '
        'output { name: "nothing" data_type: TYPE_FP32 dims: [ -1, 3 ] }',
        "unexpected inference output 'nothing', allowed outputs are: ",
    ),
}


# row: BE-05
def test_wrong_configurations_are_refused_in_tritons_words(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Each model's error says what is wrong."""
    for name, (config, _) in REFUSED.items():
        config_of(tmp_path, name, config)
    with start_server(tmp_path, FLAG, *UNSTRICT) as running:
        running.wait_until_ready()
        index = running.request("POST", "/v2/repository/index", b"").json()
    reasons = {model["name"]: model.get("reason", "") for model in index}
    for name, (_, expected) in REFUSED.items():
        assert expected in reasons[name], (name, reasons[name])


# row: BE-05
def test_parameters_take_effect(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Threads and graph levels don't change the results; instances that share a session share
    variables."""
    parameters = {
        "TF_NUM_INTRA_THREADS": "1",
        "TF_NUM_INTER_THREADS": "-1",
        "TF_USE_PER_SESSION_THREADS": "true",
    }
    text = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    config_of(tmp_path, "threads", f"mlp\n{SAVED}{text}")
    for level in (-1, 1, 2):
        graph = f"optimization {{ graph {{ level: {level} }} }}"
        config_of(tmp_path, f"level_{level}", f"mlp\n{SAVED}{graph}")
    share = 'parameters { key: "MAX_SESSION_SHARE_COUNT" value { string_value: "4" } }\n'
    config_of(tmp_path, "shared", f"counter\n{SAVED}{share}instance_group {{ count: 4 }}")
    add = {"x": {"datatype": "FP32", "shape": [2], "data": [1.0, 0.0]}}
    with (
        start_server(tmp_path, FLAG, "--backend-config=tensorflow,default-max-batch-size=7")
        as running,
        concurrent.futures.ThreadPoolExecutor(8) as threads,
    ):
        running.wait_until_ready()
        for model in ("threads", "level_-1", "level_1", "level_2"):
            config = running.request("GET", f"/v2/models/{model}/config").json()
            assert config["max_batch_size"] == 7
            exchange = ANSWERS["mlp"][1]
            check_equal(ask(running, "http", model, exchange["inputs"]), exchange["outputs"])
        list(threads.map(lambda _: ask(running, "http", "shared", add), range(40)))
        total = ask(running, "http", "shared", add)["total"]
    assert total.tolist() == [41, 0]


# row: BE-05
def test_sessions_have_the_threads_of_their_parameters(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The first session determines the operators' threads; each session may have its own in
    addition."""
    own = 'parameters { key: "TF_USE_PER_SESSION_THREADS" value { string_value: "true" } }\n'
    exchange = ANSWERS["mlp"][0]

    def threads_with(kind: str, count: int) -> int:
        name = f"{kind}_{count}"
        key = f"TF_NUM_{kind}_THREADS"
        text = f'parameters {{ key: "{key}" value {{ string_value: "{count}" }} }}\n'
        one = "instance_group [ { count: 1 } ]"
        config_of(tmp_path / name, "m", f"mlp\n{SAVED}{own}{text}{one}")
        with start_server(tmp_path / name, FLAG) as running:
            running.wait_until_ready()
            check_equal(ask(running, "http", "m", exchange["inputs"]), exchange["outputs"])
            return len(list(pathlib.Path(f"/proc/{running.process.pid}/task").iterdir()))

    for kind in ("INTRA", "INTER"):
        few, many = threads_with(kind, 1), threads_with(kind, 41)
        # Other threads of the server come and go.
        assert many - few >= 20, (kind, few, many)


# row: BE-05
def test_instances_share_variables_only_if_they_share_a_session(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Each instance adds one thread during its warmup."""
    warm = 'model_warmup { name: "one" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 '
    warm += 'dims: [ 2 ] input_data_file: "ones" } } }\n'
    for name, shared in (("apart", 1), ("pairs", 2), ("together", 4)):
        key = "MAX_SESSION_SHARE_COUNT"
        text = f'parameters {{ key: "{key}" value {{ string_value: "{shared}" }} }}\n'
        config_of(tmp_path, name, f"counter\n{SAVED}{text}{warm}instance_group {{ count: 4 }}")
        (tmp_path / name / "warmup").mkdir()
        ones = numpy.ones(2, numpy.float32).tobytes()
        (tmp_path / name / "warmup" / "ones").write_bytes(ones)
    add = {"x": {"datatype": "FP32", "shape": [2], "data": [1.0, 0.0]}}
    with start_server(tmp_path, FLAG) as running:
        running.wait_until_ready()
        totals = {
            name: ask(running, "http", name, add)["total"].tolist()
            for name in ("apart", "pairs", "together")
        }
    assert totals == {"apart": [2, 1], "pairs": [3, 2], "together": [5, 4]}


# row: BE-05
def test_nodes_are_placed_at_load(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The device in a graph matters only for KIND_MODEL, and only without soft placement."""
    shutil.copytree(MODELS / "graph_on_gpu", tmp_path / "placed_by_server")
    shutil.copytree(MODELS / "graph_on_gpu", tmp_path / "placed_by_graph")
    with (tmp_path / "placed_by_graph" / "config.pbtxt").open("a") as config:
        config.write("instance_group [ { kind: KIND_MODEL } ]\n")
    exchange = ANSWERS["graph_on_gpu"][0]
    strict = "--backend-config=tensorflow,allow-soft-placement=false"
    for flags, states in (((), {"READY"}), ((strict,), {"READY", "UNAVAILABLE"})):
        with start_server(tmp_path, FLAG, *UNSTRICT, *flags) as running:
            running.wait_until_ready()
            index = running.request("POST", "/v2/repository/index", b"").json()
            models = {model["name"]: model for model in index}
            assert {model["state"] for model in index} == states
            found = ask(running, "http", "placed_by_server", exchange["inputs"])
            check_equal(found, exchange["outputs"])
            if flags:
                assert "device" in models["placed_by_graph"]["reason"], models


# row: BE-05
def test_inputs_stay_as_they_were(server: Server) -> None:
    """A variable that keeps an input isn't overwritten by later requests to any model."""
    before = [1.0] * 64
    keep = {"x": {"datatype": "FP32", "shape": [64], "data": before}}
    ask(server, "grpc", "keeper", keep)
    for exchange in ANSWERS["mlp"] * 20:
        ask(server, "grpc", "mlp", exchange["inputs"])
    assert ask(server, "grpc", "keeper", keep)["before"].tolist() == before


# row: BE-05
def test_without_the_library_the_error_says_what_to_install(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """No other model needs it, and the variable names it too."""
    shutil.copytree(MODELS / "mlp", tmp_path / "mlp")
    nowhere = {"PATH": str(tmp_path), "HOME": str(tmp_path), "VIRTUAL_ENV": ""}
    explicit = "--model-control-mode=explicit"
    with start_server(tmp_path, explicit, environment=nowhere) as running:
        running.wait_until_ready()
        error = running.request("POST", "/v2/repository/models/mlp/load", b"").error()
        assert "pip install --no-deps tensorflow-cpu" in error
    nowhere["GALATEA_TENSORFLOW_LIBRARY"] = LIBRARY
    with start_server(tmp_path, explicit, environment=nowhere) as running:
        running.wait_until_ready()
        assert running.request("POST", "/v2/repository/models/mlp/load", b"").status == 200


# row: BE-05
def test_a_saved_model_is_served_without_a_configuration(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """The model may be alone, one of several in a directory, or in versions as for TensorFlow
    Serving."""
    export = "1/model.savedmodel"
    shutil.copytree(MODELS / "mlp" / export, tmp_path / "alone.savedmodel")
    shutil.copytree(MODELS / "table" / export, tmp_path / "several" / "words")
    shutil.copytree(MODELS / "strings" / export, tmp_path / "several" / "texts.savedmodel")
    for version, model in (("2", "table"), ("10", "mlp")):
        shutil.copytree(MODELS / model / export, tmp_path / "versions" / version)
    folders = [str(tmp_path / name) for name in ("alone.savedmodel", "several", "versions")]
    command = [*program.command([]), FLAG]
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--until-input-ends"]
    serve = [command[0], "serve", "--json", *ports, *command[1:], *folders]
    process = subprocess.Popen(
        serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.stdin.close()
    models = {one["name"]: one["state"] for one in ready["models"]}
    assert models == dict.fromkeys(["alone", "texts", "versions", "words"], "READY")
    assert process.returncode == 0
    graph = str(MODELS / "graph" / "1" / "model.graphdef")
    refused = subprocess.run([command[0], "serve", graph], capture_output=True, check=False)
    assert b"save it as a SavedModel" in refused.stderr
    check = [command[0], "check", *command[1:], folders[0]]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0


def mutated(path: pathlib.Path, numbers: random.Random) -> None:
    """Damages a file: shortens it, or changes some of its bytes."""
    content = bytearray(path.read_bytes())
    if numbers.random() < 0.3:
        del content[numbers.randrange(len(content)) :]
    else:
        for _ in range(numbers.randrange(1, 8)):
            content[numbers.randrange(len(content))] = numbers.randrange(256)
    path.write_bytes(content)


# row: BE-05
def test_damaged_files_end_nothing_else(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Each damaged model is loaded or refused, executed or not, and the others are served."""
    numbers = random.Random(os.environ.get("GALATEA_TEST_SEED", "27"))
    shutil.copytree(MODELS / "mlp", tmp_path / "whole")
    count = int(os.environ.get("GALATEA_TEST_MUTATIONS", "40"))
    originals = {}
    for number in range(count):
        model = numbers.choice(["mlp", "table", "graph", "strings"])
        originals[f"damaged_{number}"] = model
        shutil.copytree(MODELS / model, folder := tmp_path / f"damaged_{number}")
        files = [path for path in sorted((folder / "1").rglob("*")) if path.is_file()]
        mutated(numbers.choice(files), numbers)
    with start_server(tmp_path, FLAG, *UNSTRICT) as running:
        running.wait_until_ready()
        index = running.request("POST", "/v2/repository/index", b"").json()
        assert len(index) == count + 1
        loaded = [model["name"] for model in index if model.get("state") == "READY"]
        for name in loaded:
            with contextlib.suppress(InferenceServerException):
                ask(running, "http", name, ANSWERS[originals.get(name, "mlp")][0]["inputs"])
        exchange = ANSWERS["mlp"][0]
        check_equal(ask(running, "http", "whole", exchange["inputs"]), exchange["outputs"])


# row: BE-05
def test_nothing_is_loaded_without_such_a_model(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The library is loaded with the first model."""
    tensor = '{ name: "%s" data_type: TYPE_FP32 dims: [ 1 ] }'
    (tmp_path / "other" / "1").mkdir(parents=True)
    config = f'backend: "identity" input {tensor % "INPUT0"} output {tensor % "OUTPUT0"}'
    (tmp_path / "other" / "config.pbtxt").write_text(config)
    with start_server(tmp_path, FLAG) as running:
        running.wait_until_ready()
        maps = pathlib.Path(f"/proc/{running.process.pid}/maps")
        assert "libtensorflow" not in maps.read_text()


# row: BE-05
def test_requests_that_the_model_refuses_get_its_error(server: Server) -> None:
    """The error is TensorFlow's own, and the model continues."""
    wrong = {"ids": {"datatype": "INT64", "shape": [1, 1], "data": [10]}}
    with pytest.raises(InferenceServerException, match=r"indices\[0,0\] = 10 is not in \[0, 10\)"):
        ask(server, "http", "embedding", wrong)
    exchange = ANSWERS["embedding"][0]
    check_equal(ask(server, "http", "embedding", exchange["inputs"]), exchange["outputs"])


#: Returns the variable as the worker got it.
LEVEL = """
import os
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "unset")
        tensor = pb_utils.Tensor("level", numpy.array([level], dtype=object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


@pytest.mark.parametrize(("given", "in_workers"), [(None, "unset"), ("0", "0")])
def test_the_level_of_messages_is_the_servers_own(
    start_server: StartServer, tmp_path: pathlib.Path, given: str | None, in_workers: str
) -> None:
    """Workers get the operator's variable, not the one that the server sets for TensorFlow."""
    shutil.copytree(MODELS / "mlp", tmp_path / "mlp")
    (tmp_path / "level" / "1").mkdir(parents=True)
    (tmp_path / "level" / "1" / "model.py").write_text(LEVEL)
    (tmp_path / "level" / "config.pbtxt").write_text(
        'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } '
        'output { name: "level" data_type: TYPE_STRING dims: [ 1 ] }'
    )
    environment = {} if given is None else {"TF_CPP_MIN_LOG_LEVEL": given}
    number = {"x": {"datatype": "FP32", "shape": [1], "data": [1.0]}}
    with start_server(tmp_path, FLAG, interpreter_flag(), environment=environment) as running:
        running.wait_until_ready()
        found = ask(running, "http", "level", number)["level"]
        assert found.tolist() == [in_workers.encode()]
        text = running.log()
    # At levels below warnings, TensorFlow describes the load of each SavedModel.
    assert ("Reading SavedModel from" in text) == (given == "0")
