"""Tests of the backend `pytorch`, from files that PyTorch wrote to the client.

They need the library from the package `torch` in GALATEA_TEST_TORCH. TorchScript models also need a
C++ compiler. Compiled models need the directory that `tests/pytorch/compiled.py` creates, in
GALATEA_TEST_TORCH_MODELS.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import pytest
from tritonclient.utils import triton_to_np_dtype

from conftest import StartServer
from server import Program, Server
from test_serve_command import refused, serving, try_request
from transports import TRANSPORTS

LIBRARY = os.environ.get("GALATEA_TEST_TORCH", "")
COMPILED = os.environ.get("GALATEA_TEST_TORCH_MODELS", "")

pytestmark = [
    pytest.mark.galatea_only,
    pytest.mark.skipif(not LIBRARY, reason="GALATEA_TEST_TORCH names no library"),
]
needs_compiled = pytest.mark.skipif(
    not COMPILED, reason="GALATEA_TEST_TORCH_MODELS names no directory of compiled models"
)

SCRIPTED = pathlib.Path(__file__).parents[2] / "crates" / "backend-pytorch" / "tests" / "models"
#: Models without a state, which answer each request by itself.
SCRIPTS = ["best", "convolved", "keyed", "kinds", "loop", "mlp", "named", "pair", "upper"]
PACKAGES = ["best", "beside", "missing", "mlp", "nested", "passed", "picture", "types", "words"]
FLAG = f"--torch-library={LIBRARY}"
ERROR_MAX = 2e-6
#: The connection to TorchScript may have to be compiled first.
READY_SECONDS_MAX = 300


def golden(folder: pathlib.Path | str, name: str) -> dict[str, Any]:
    """A model's configuration, and PyTorch's results."""
    found: dict[str, Any] = json.loads((pathlib.Path(folder) / f"{name}.json").read_text())
    return found


def put(
    repository: pathlib.Path, folder: pathlib.Path | str, name: str, ending: str
) -> pathlib.Path:
    """Adds a model to a repository."""
    version = repository / f"{name}_{ending}" / "1"
    version.mkdir(parents=True)
    shutil.copy(pathlib.Path(folder) / f"{name}.{ending}", version / f"model.{ending}")
    config = version.parent / "config.pbtxt"
    config.write_text(golden(folder, name)["config"])
    return config


def array_of(tensor: Mapping[str, Any]) -> numpy.ndarray:
    """A tensor in the form that the client library expects."""
    if tensor["datatype"] == "BYTES":
        texts = [text.encode() for text in tensor["strings"]]
        return numpy.array(texts, dtype=object).reshape(tensor["shape"])
    dtype = triton_to_np_dtype(tensor["datatype"])
    return numpy.frombuffer(bytes(tensor["bytes"]), dtype).reshape(tensor["shape"])


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with all models."""
    repository = tmp_path_factory.mktemp("torch")
    for name in SCRIPTS:
        put(repository, SCRIPTED, name, "pt")
    for name in PACKAGES if COMPILED else []:
        put(repository, COMPILED, name, "pt2")
    with start_server(repository, FLAG) as running:
        yield running.wait_until_ready(READY_SECONDS_MAX)
    assert running.process.returncode == 0


def check_answers(
    server: Server, folder: pathlib.Path | str, name: str, ending: str, transport: str
) -> None:
    """Sends each of a model's requests."""
    with contextlib.closing(TRANSPORTS[transport](server)) as client:
        for case in golden(folder, name)["cases"]:
            inputs = {key: array_of(one) for key, one in case["inputs"].items()}
            found = client.infer(f"{name}_{ending}", inputs)
            expected = {key: array_of(one) for key, one in case["outputs"].items()}
            assert sorted(found) == sorted(expected)
            for key, array in expected.items():
                assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape), key
                if array.dtype.kind == "f":
                    error = {"rtol": ERROR_MAX, "atol": ERROR_MAX}
                    numpy.testing.assert_allclose(found[key], array, **error)
                else:
                    assert found[key].tolist() == array.tolist(), key


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("name", SCRIPTS)
# row: BE-02
def test_torchscript_answers_as_in_pytorch(server: Server, name: str, transport: str) -> None:
    """They use the names of arguments, numbers and positions."""
    check_answers(server, SCRIPTED, name, "pt", transport)


@needs_compiled
@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("name", PACKAGES)
# row: BE-02
def test_compiled_models_answer_as_in_pytorch(server: Server, name: str, transport: str) -> None:
    """They use paths and numbers."""
    check_answers(server, COMPILED, name, "pt2", transport)


# row: BE-02 IMP-10
def test_states_follow_their_sequences(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Requests of two sequences in turn, to each kind of model."""
    put(tmp_path, SCRIPTED, "total", "pt")
    if COMPILED:
        config = put(tmp_path, COMPILED, "running", "pt2")
        config.write_text(config.read_text().replace("dims: [3]", "dims: [ 3 ]"))
    with (
        start_server(tmp_path, FLAG) as running,
        contextlib.closing(TRANSPORTS["grpc"](running.wait_until_ready(READY_SECONDS_MAX))) as client,
    ):
        for model, size in [("total_pt", 2), ("running_pt2", 3)]:
            if not (tmp_path / model).exists():
                continue
            answers = []
            for number in range(3):
                for one in (1, 2):
                    x = numpy.full([1, size], one + number, numpy.float32)
                    options = {"sequence_start": number == 0, "sequence_end": number == 2}
                    found = client.infer(model, {"INPUT__0": x}, sequence_id=one, **options)
                    answers.append(found["OUTPUT__0"].tolist())
            assert answers == [[[10.0 * total] * size] for total in (1, 2, 3, 5, 6, 9)], model


# row: BE-02 RAG-04
def test_requests_of_different_lengths_share_a_batch(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Each sequence gets the sum of its own numbers."""
    put(tmp_path, SCRIPTED, "ragged", "pt")
    lengths = (3, 1, 6)
    together = {"TRITONSERVER_DELAY_SCHEDULER": str(len(lengths))}
    with (
        start_server(tmp_path, FLAG, environment=together) as running,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        running.wait_until_ready(READY_SECONDS_MAX)

        def ask(length: int) -> numpy.ndarray:
            with contextlib.closing(TRANSPORTS["http"](running)) as client:
                x = numpy.arange(1, length + 1, dtype=numpy.float32).reshape(1, length)
                return client.infer("ragged_pt", {"values": x})["sums"]

        answers = [answer.tolist() for answer in threads.map(ask, lengths)]
        statistics = running.request("GET", "/v2/models/ragged_pt/stats").json()["model_stats"][0]
        metadata = running.request("GET", "/v2/models/ragged_pt").json()
    assert answers == [[[6]], [[1]], [[21]]]
    assert [one["batch_size"] for one in statistics["batch_stats"]] == [len(lengths)]
    assert [one["name"] for one in metadata["inputs"]] == ["values"]


# row: BE-02
def test_tensors_without_numbers_beside_a_state_are_refused_in_tritons_words(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """This also applies if only an output has no number."""
    config = put(tmp_path, SCRIPTED, "total", "pt")
    config.write_text(config.read_text().replace("OUTPUT__0", "y"))
    with start_server(tmp_path, FLAG, "--model-control-mode=explicit") as running:
        running.wait_until_ready()
        reply = running.request("POST", "/v2/repository/models/total_pt/load", b"{}")
        expected = (
            "PyTorch model 'total_pt' is using sequence batching with state but not all inputs and "
            "outputs follow the <name>__<index> naming convention. "
        )
        assert expected in reply.error()


@needs_compiled
# row: BE-02
def test_a_compiled_model_is_served_without_a_configuration(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """Its names, types, shapes and batches come from its source. The same applies to a file in a
    directory."""
    folder = tmp_path / "inside"
    folder.mkdir()
    names = ["best", "fixed", "lengths", "mlp", "nested", "picture"]
    for name in names:
        shutil.copy(pathlib.Path(COMPILED) / f"{name}.pt2", folder)
    single = pathlib.Path(COMPILED) / "types.pt2"
    with serving(program, FLAG, folder, single) as ready:
        shown = {one["name"]: one for one in ready["models"]}
        assert sorted(shown) == [*names, "types"]
        replies = {name: try_request(one, tmp_path) for name, one in shown.items()}
        configs = {
            name: json.loads(curl(f"{ready['http']}/v2/models/{name}/config")) for name in shown
        }
    assert json.loads(replies["mlp"])["outputs"][0]["shape"] == [1, 3]
    assert json.loads(replies["picture"])["outputs"][0]["shape"] == [1, 2]
    sizes = {name: config["max_batch_size"] for name, config in configs.items()}
    # PyTorch itself limits the batches of the convolution.
    batched = {"best": 1024, "lengths": 1024, "mlp": 1024, "picture": sizes["picture"]}
    assert 8 <= sizes["picture"] < 1024
    assert sizes == {**dict.fromkeys(shown, 0), **batched}
    outputs = [(one["name"], one["data_type"], one["dims"]) for one in configs["best"]["output"]]
    assert outputs == [("RESULT[0]", "TYPE_FP32", [2]), ("RESULT[1]", "TYPE_INT64", [2])]
    assert [one["name"] for one in configs["nested"]["input"]] == [
        "ARGS[0]", "ARGS[1][keyA]", "ARGS[1][key2]", "KWARGS[first]", "KWARGS[second]",
    ]


def curl(url: str) -> str:
    """The body of a response."""
    done = subprocess.run(["curl", "--silent", url], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_example_for_a_model_of_torchscript_is_a_configuration(
    program: Program, tmp_path: pathlib.Path
) -> None:
    """A user puts it where the error says, corrects its sizes, and serves the directory or the
    file."""
    single = tmp_path / "net.pt"
    shutil.copy(SCRIPTED / "mlp.pt", single)
    code, _, errors = refused(program, FLAG, single)
    assert code == 1 and "write net/config.pbtxt such as the following" in errors
    config = errors.split("\n\n", 1)[1]
    assert 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }' in config
    config = config.replace("dims: [ 2 ]", "dims: [ 3 ]")
    file = tmp_path / "net" / "1" / "model.pt"
    file.parent.mkdir(parents=True)
    single.rename(file)
    (tmp_path / "net" / "config.pbtxt").write_text(config)
    for argument in (tmp_path / "net", file):
        with serving(program, FLAG, argument) as ready:
            (one,) = ready["models"]
            assert one["name"] == "net"
            assert json.loads(try_request(one, tmp_path))["outputs"][0]["shape"] == [1, 3]


@needs_compiled
def test_check_and_bench_know_compiled_models(program: Program) -> None:
    """They behave like other files."""
    first, *_ = program.command([])
    model = pathlib.Path(COMPILED) / "mlp.pt2"
    done = subprocess.run(
        [first, "check", "--json", FLAG, model], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["models"][0]["name"] == "mlp"
    done = subprocess.run(
        [
            first, "bench", "--json", "--duration=1", "--concurrency=1", "--protocol=http", FLAG,
            model,
        ],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["results"][0]["errors"] == 0
