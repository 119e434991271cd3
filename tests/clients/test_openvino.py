"""Tests of the backend `openvino`, from files of OpenVINO's own package to the client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping

import numpy
import pytest

from conftest import StartServer
from server import Program, Reply, Server
from transports import TRANSPORTS

openvino = pytest.importorskip("openvino", reason="the package openvino is not installed")

from openvino_models import (  # noqa: E402
    SUITE,
    OpenVinoModel,
    Tensors,
    parameter,
    ragged,
    saved,
    sequence,
)

pytestmark = pytest.mark.galatea_only

LIBRARIES = pathlib.Path(openvino.__file__).parent / "libs"
LIBRARY = str(max(LIBRARIES.glob("libopenvino_c.so*")))
ERROR_MAX = 1e-6
MUTATIONS = 60
#: The library of another version.
OTHER = os.environ.get("GALATEA_OTHER_OPENVINO")

StartOpenVino = Callable[..., contextlib.AbstractContextManager[Server]]


def put(repository: pathlib.Path, name: str, model: OpenVinoModel) -> pathlib.Path:
    """Writes a model to a repository, and returns its file."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    path = version / model.file
    model.write(path)
    if model.config:
        (version.parent / "config.pbtxt").write_text(model.config)
    return path


@pytest.fixture(scope="module")
def start(start_server: StartServer) -> StartOpenVino:
    """Starts servers that find OpenVINO's library."""

    @contextlib.contextmanager
    def start_one(
        repository: pathlib.Path, *flags: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[Server]:
        flags = (f"--openvino-library={LIBRARY}", *flags)
        with start_server(repository, *flags, environment=environment) as running:
            yield running.wait_until_ready()
        assert running.process.returncode == 0

    return start_one


@pytest.fixture(scope="module")
def suite() -> dict[str, OpenVinoModel]:
    """All models, for writing and for requests."""
    return {name: make() for name, make in SUITE.items()}


@pytest.fixture(scope="module")
def repository(
    tmp_path_factory: pytest.TempPathFactory, suite: dict[str, OpenVinoModel]
) -> pathlib.Path:
    """The files of all models."""
    folder = tmp_path_factory.mktemp("openvino")
    for name, model in suite.items():
        put(folder, name, model)
    return folder


@pytest.fixture(scope="module")
def server(start: StartOpenVino, repository: pathlib.Path) -> Iterator[Server]:
    """A server with all models."""
    with start(repository) as running:
        yield running


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("name", [name for name in SUITE if name != "state"])
# row: BE-03
def test_answers_are_those_of_openvino(
    server: Server,
    repository: pathlib.Path,
    suite: dict[str, OpenVinoModel],
    name: str,
    transport: str,
) -> None:
    """This is done for each model and each request."""
    model = suite[name]
    client = TRANSPORTS[transport](server)
    path = repository / name / "1" / model.file
    for request, expected in zip(model.requests, model.expected(path), strict=True):
        check_equal(client.infer(name, request), expected)
    client.close()


def check_equal(found: Tensors, expected: Tensors) -> None:
    """The names, types and shapes are the same, and numbers differ at most in the last bits."""
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        numpy.testing.assert_allclose(found[name], array, rtol=ERROR_MAX, atol=ERROR_MAX)


# row: BE-03
def test_a_state_lasts_from_request_to_request(
    server: Server, repository: pathlib.Path, suite: dict[str, OpenVinoModel]
) -> None:
    """As in Triton, the state belongs to the instance, and no request resets it."""
    model = suite["state"]
    client = TRANSPORTS["http"](server)
    for request, expected in zip(
        model.requests, model.expected(repository / "state" / "1" / model.file), strict=True
    ):
        check_equal(client.infer("state", request), expected)
    client.close()


# row: BE-03 RAG-04
def test_requests_of_different_lengths_share_a_batch(
    start: StartOpenVino, tmp_path: pathlib.Path
) -> None:
    """Each sequence gets the sum of its own numbers."""
    model = ragged()
    put(tmp_path, "ragged", model)
    together = {"TRITONSERVER_DELAY_SCHEDULER": str(len(model.requests))}
    with (
        start(tmp_path, environment=together) as running,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):

        def ask(request: Tensors) -> numpy.ndarray:
            client = TRANSPORTS["http"](running)
            with contextlib.closing(client):
                return client.infer("ragged", request)["y"]

        answers = list(threads.map(ask, model.requests))
        statistics = running.request("GET", "/v2/models/ragged/stats").json()["model_stats"][0]
    for request, answer in zip(model.requests, answers, strict=True):
        assert answer.shape == (1, 1)
        numpy.testing.assert_allclose(answer[0, 0], request["x"].sum(), rtol=1e-5)
    assert [one["batch_size"] for one in statistics["batch_stats"]] == [len(model.requests)]


# row: BE-03
def test_sequences_have_controls_and_states_of_their_own(
    start: StartOpenVino, tmp_path: pathlib.Path
) -> None:
    """Requests of two sequences, in turn."""
    put(tmp_path, "sequence", sequence())
    with start(tmp_path) as running:
        client = TRANSPORTS["grpc"](running)
        answers = []
        for number in range(3):
            for one in (1, 2):
                x = numpy.array([[one + number]], numpy.float32)
                options = {"sequence_start": number == 0, "sequence_end": number == 2}
                found = client.infer("sequence", {"x": x}, sequence_id=one, **options)
                answers.append(float(found["y"][0, 0]))
        client.close()
    assert answers == [1001, 1002, 3, 5, 6, 9]


# row: CFG-25
def test_configurations_are_completed(server: Server) -> None:
    """They come from the models' layouts, types and shapes."""

    def config(name: str) -> dict[str, object]:
        return server.request("GET", f"/v2/models/{name}/config").json()

    def tensors(name: str, side: str) -> list[tuple[str, str, list[str]]]:
        return [(one["name"], one["data_type"], one["dims"]) for one in config(name)[side]]

    perceptron = config("perceptron")
    assert (perceptron["backend"], perceptron["max_batch_size"]) == ("openvino", 4)
    assert "dynamic_batching" in perceptron
    assert tensors("perceptron", "input") == [("x", "TYPE_FP32", [8])]
    assert config("fixed_shapes")["max_batch_size"] == 0
    assert "dynamic_batching" not in config("several_outputs")
    assert tensors("fixed_shapes", "input") == [("x", "TYPE_FP32", [3, 2])]
    assert tensors("fixed_shapes", "output") == [("y", "TYPE_FP32", [2, 3])]
    assert tensors("variable_shapes", "output") == [("y", "TYPE_FP32", [-1, -1])]
    assert tensors("convolution", "input") == [("x", "TYPE_FP32", [3, 8, 8])]
    types = {one[0]: one[1] for one in tensors("elements", "input")}
    assert types == {name: f"TYPE_{name}" for name in types} and len(types) == 12


REFUSALS = {
    "count": (
        "input [ { name: 'x' data_type: TYPE_FP32 dims: [ 4 ] },"
        " { name: 'z' data_type: TYPE_FP32 dims: [ 4 ] } ]",
        "unable to load model 'count', configuration expects 2 inputs, model provides 1",
    ),
    "name": (
        "input { name: 'z' data_type: TYPE_FP32 dims: [ 4 ] }",
        "unexpected inference input 'z', allowed inputs are: x",
    ),
    "strings": (
        "input { name: 'x' data_type: TYPE_STRING dims: [ 4 ] }",
        "unsupported datatype TYPE_STRING for input 'x' for model 'strings'",
    ),
    "dims": (
        "input { name: 'x' data_type: TYPE_FP32 dims: [ 5 ] }",
        "model 'dims', tensor 'x': the model expects 2 dimensions (shape [1,4]) but the model "
        "configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > "
        "0 followed by the explicit tensor shape, making complete shape [2,5])",
    ),
    "output": (
        "output { name: 'y' data_type: TYPE_FP32 dims: [ -1 ] }",
        "model 'output', tensor 'y': the model expects 2 dimensions (shape [2,4]) but the model "
        "configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > "
        "0 followed by the explicit tensor shape, making complete shape [2,-1])",
    ),
    "kind": (
        "instance_group { kind: KIND_MODEL }",
        "unable to load model 'kind', Triton OpenVINO backend supports only Kind CPU and AUTO",
    ),
    "threads": (
        "parameters { key: 'INFERENCE_NUM_THREADS' value { string_value: 'X2' } }",
        "expected the parameter 'INFERENCE_NUM_THREADS' to be a non-negative number, got x2",
    ),
    "precision": (
        "parameters { key: 'HINT_BF16' value { string_value: 'no' } }",
        "expected the parameter 'HINT_BF16' to be YES, got no",
    ),
    "compilation": (
        "parameters { key: 'COMPILATION_NUM_THREADS' value { string_value: '2' } }",
        "openvino error in configuring openvino core : ",
    ),
    "device": (
        "parameters { key: 'TARGET_DEVICE' value { string_value: 'warp' } }",
        "openvino error in loading model : ",
    ),
    "extension": (
        "parameters { key: 'CPU_EXTENSION_PATH' value { string_value: '/no/such.so' } }",
        "openvino error in  loading custom CPU extensions : ",
    ),
    "file": (
        "default_model_filename: 'model.graphdef'",
        "unable to find 'model.graphdef' for model 'file'",
    ),
}


def load(server: Server, name: str) -> Reply:
    """Loads a model."""
    return server.request("POST", f"/v2/repository/models/{name}/load", b"{}")


# row: BE-03
def test_contradictions_and_wrong_parameters_are_refused_in_tritons_words(
    start: StartOpenVino, tmp_path: pathlib.Path
) -> None:
    """Each model has one error."""
    x = parameter("x", [1, 4])
    y = openvino.opset15.relu(x)
    y.output(0).set_names({"y"})
    write = saved([y.output(0)], [x])
    for name, (config, _) in REFUSALS.items():
        text = f'backend: "openvino" max_batch_size: 2 {config}'
        put(tmp_path, name, OpenVinoModel(write, [], text))
    with start(tmp_path, "--model-control-mode=explicit") as running:
        for name, (_, expected) in REFUSALS.items():
            reply = load(running, name)
            assert reply.status == 400, name
            assert expected in reply.error(), name


# row: BE-03
def test_batch_padding_changes_nothing_and_says_so(
    start: StartOpenVino, tmp_path: pathlib.Path
) -> None:
    """Batches of any size are executed unchanged."""
    padding = 'parameters { key: "ENABLE_BATCH_PADDING" value { string_value: "YES" } }'
    model = SUITE["convolution"]()
    path = put(tmp_path, "padded", model)
    (path.parents[1] / "config.pbtxt").write_text(f"{model.config} {padding}")
    with start(tmp_path) as running:
        client = TRANSPORTS["http"](running)
        found = client.infer("padded", model.requests[0])
        client.close()
        assert "ENABLE_BATCH_PADDING changes nothing" in running.log()
    check_equal(found, model.expected(path)[0])


# row: BE-03
def test_without_the_library_the_error_says_what_to_install(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """No other model needs it."""
    put(tmp_path, "perceptron", SUITE["perceptron"]())
    flags = ["--model-control-mode=explicit"]
    nowhere = {"PATH": str(tmp_path), "HOME": str(tmp_path), "VIRTUAL_ENV": ""}
    with start_server(tmp_path, *flags, environment=nowhere) as running:
        running.wait_until_ready()
        assert "pip install openvino" in load(running, "perceptron").error()
    nowhere["GALATEA_OPENVINO_LIBRARY"] = LIBRARY
    with start_server(tmp_path, *flags, environment=nowhere) as running:
        running.wait_until_ready()
        assert load(running, "perceptron").status == 200


@pytest.mark.skipif(not OTHER, reason="needs another OpenVINO in GALATEA_OTHER_OPENVINO")
# row: BE-03
def test_versions_serve_side_by_side(start: StartOpenVino, tmp_path: pathlib.Path) -> None:
    """One model has a different library from the server's."""
    models = {name: SUITE["convolution"]() for name in ("usual", "other")}
    paths = {name: put(tmp_path, name, model) for name, model in models.items()}
    parameter = f'parameters {{ key: "OPENVINO_LIBRARY_PATH" value {{ string_value: "{OTHER}" }} }}'
    (tmp_path / "other" / "config.pbtxt").write_text(f"{models['other'].config} {parameter}")
    with start(tmp_path) as running:
        client = TRANSPORTS["grpc"](running)
        for name, model in models.items():
            for request, expected in zip(model.requests, model.expected(paths[name]), strict=True):
                check_equal(client.infer(name, request), expected)
        client.close()
        libraries = pathlib.Path(f"/proc/{running.process.pid}/maps").read_text()
    assert str(OTHER) in libraries and LIBRARY in libraries


# row: BE-03
def test_a_file_is_served_without_a_configuration(program: Program, tmp_path: pathlib.Path) -> None:
    """This includes one of several in a directory, next to XML of another kind."""
    folder = tmp_path / "inside"
    folder.mkdir()
    for name in ("perceptron", "several_outputs"):
        SUITE[name]().write(folder / f"{name}.xml")
    (folder / "pom.xml").write_text("<project/>")
    single = tmp_path / "single.xml"
    SUITE["fixed_shapes"]().write(single)
    SUITE["lite_file"]().write(folder / "lite.tflite")
    command = [*program.command([]), f"--openvino-library={LIBRARY}"]
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--until-input-ends"]
    process = subprocess.Popen(
        [command[0], "serve", "--json", *ports, *command[1:], str(single), str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        ready = json.loads(process.stdout.readline())
        models = {one["name"]: one["state"] for one in ready["models"]}
        process.stdin.close()
    assert models == dict.fromkeys(["lite", "perceptron", "several_outputs", "single"], "READY")
    assert process.returncode == 0
    checked = subprocess.run(
        [command[0], "check", *command[1:], str(single)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", ["perceptron", "onnx_file", "frozen_graph", "saved_model", "lite_file"])
# row: BE-03
def test_damaged_files_are_errors_and_nothing_else(
    start: StartOpenVino, tmp_path: pathlib.Path, name: str
) -> None:
    """The files are cut short anywhere, or have changed bytes."""
    model = SUITE[name]()
    path = put(tmp_path, name, model)
    files = [path] if path.is_file() else [path / "saved_model.pb"]
    files += path.parent.glob("*.bin")
    contents = {file: file.read_bytes() for file in files}
    choice = random.Random(name)
    with start(tmp_path, "--model-control-mode=explicit") as running:
        refused = 0
        for turn in range(MUTATIONS):
            for file, content in contents.items():
                file.write_bytes(damaged(content, turn, choice))
            reply = load(running, name)
            if reply.status == 200:
                ask_anything(running, name, model)
                unload = f"/v2/repository/models/{name}/unload"
                assert running.request("POST", unload, b"{}").status == 200
            else:
                refused += 1
                assert reply.status == 400 and reply.error()
        assert refused > MUTATIONS // 4
        for file, content in contents.items():
            file.write_bytes(content)
        assert load(running, name).status == 200


def damaged(content: bytes, turn: int, choice: random.Random) -> bytes:
    """The content, cut short in a third of the rounds, otherwise with a few different bytes."""
    if turn % 3 == 0:
        return content[: choice.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(1 + turn % 5):
        changed[choice.randrange(len(changed))] = choice.randrange(256)
    return bytes(changed)


def ask_anything(server: Server, name: str, model: OpenVinoModel) -> None:
    """Whatever the damaged model computes, there is a response or an error."""
    client = TRANSPORTS["http"](server)
    with contextlib.suppress(Exception):
        client.infer(name, model.requests[0])
    client.close()
    assert server.request("GET", "/v2/health/live").status == 200
