"""Tests of outputs as classes: the largest values, their positions and their labels."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio
from example_models import ensembles, iterative
from example_models.repository import write_example
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import Program, Server, wait_until
from transports import TRANSPORTS, GrpcStream, Transport, make_inputs

CONFIG = """\
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" } ]
"""
PLAIN = CONFIG.replace(' label_filename: "labels.txt"', "")
CACHED = CONFIG + "response_cache { enable: true }\n"
NESTED = """\
platform: "ensemble"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "KINDS" data_type: TYPE_FP32 dims: [ 10 ] } ]
ensemble_scheduling { step [ {
  model_name: "image_pipeline" model_version: -1
  input_map { key: "TEXT" value: "TEXT" }
  output_map { key: "CLASSES" value: "KINDS" }
} ] }
"""
LABELS = "cat\n\ndog\n"
IMAGE_MODELS = ("image_decoder", "image_classifier", "image_segmenter", "image_pipeline")
VALUES = numpy.array([[1.5, 0, -2, 7], [0.25, 4, 3, 2]], numpy.float32)
ELEMENTS_MAX = 1_000_000
LABEL_BYTES_MAX = 1 << 26


def write(
    repository: pathlib.Path, name: str, config: str, files: Mapping[str, str] | None = None
) -> None:
    """A model with additional files, but without model files."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    for path, text in (files or {}).items():
        (repository / name / path).write_bytes(text.encode())


@pytest.fixture(scope="module")
def server(
    program: Program, start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Models with and without labels, and the image example."""
    repository = tmp_path_factory.mktemp("classes")
    write(repository, "labelled", CONFIG, {"labels.txt": LABELS})
    write(repository, "plain", PLAIN)
    write(repository, "cached", CACHED, {"labels.txt": LABELS})
    write(repository, "nested", NESTED)
    for name in IMAGE_MODELS:
        write_example(repository, name, ensembles.EXAMPLES[name]())
    if not program.is_triton:
        for name, make in iterative.MODELS.items():
            write_example(repository, name, make())
    caching = [] if program.is_triton else ["--cache-config=local,size=1048576"]
    with start_server(repository, *caching) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0 or running.is_triton


def classes(row: numpy.ndarray, count: int, labels: list[str] | None = None) -> list[bytes]:
    """The expected classes of a row."""
    places = numpy.argsort(-row, kind="stable")[:count].tolist()
    label = {place: f":{name}" for place, name in enumerate(labels or []) if name}
    return [f"{row[place]:.6f}:{place}{label.get(place, '')}".encode() for place in places]


# Over each protocol.


# row: CLS-01 CLS-03
def test_each_item_of_a_batch_has_its_classes(transport: Transport) -> None:
    """The largest first, as strings."""
    output = transport.infer("labelled", {"INPUT0": VALUES}, outputs={"OUTPUT0": 3})["OUTPUT0"]
    assert output.shape == (2, 3)
    assert output.tolist() == [
        [b"7.000000:3", b"1.500000:0:cat", b"0.000000:1"],
        [b"4.000000:1", b"3.000000:2:dog", b"2.000000:3"],
    ]


# row: CLS-03
def test_there_are_no_more_classes_than_elements(transport: Transport) -> None:
    """Any larger count returns all elements."""
    output = transport.infer("plain", {"INPUT0": VALUES}, outputs={"OUTPUT0": 99})["OUTPUT0"]
    assert output.tolist() == [classes(row, 4) for row in VALUES]


def test_without_a_class_count_outputs_are_tensors(transport: Transport) -> None:
    """Labels of the model don't change this."""
    output = transport.infer("labelled", {"INPUT0": VALUES}, outputs={"OUTPUT0": 0})["OUTPUT0"]
    numpy.testing.assert_array_equal(output, VALUES)


def test_the_asyncio_clients(server: Server) -> None:
    """Both protocols have an asyncio client."""

    async def infer(library: Any, url: str) -> list[list[bytes]]:
        async with library.InferenceServerClient(url) as client:
            inputs = make_inputs(library, {"INPUT0": VALUES})
            wanted = [library.InferRequestedOutput("OUTPUT0", class_count=2)]
            result = await client.infer("labelled", inputs, outputs=wanted)
            return result.as_numpy("OUTPUT0").tolist()

    expected = [[b"7.000000:3", b"1.500000:0:cat"], [b"4.000000:1", b"3.000000:2:dog"]]
    assert asyncio.run(infer(tritonclient.http.aio, server.http_url)) == expected
    assert asyncio.run(infer(tritonclient.grpc.aio, server.grpc_url)) == expected


# row: CLS-04
def test_an_ensemble_passes_on_the_labels_of_its_step(
    transport: Transport,
) -> None:
    """Neither the ensemble nor the ensemble that contains it has a label file."""
    random = numpy.random.default_rng(7)
    shape = (2, ensembles.CHANNELS, ensembles.IMAGE_SIZE, ensembles.IMAGE_SIZE)
    pixels = random.integers(0, 256, shape)
    texts = numpy.array([[" ".join(map(str, one.reshape(-1))).encode()] for one in pixels])
    images = {"IMAGE": (pixels / 255).astype(numpy.float32)}
    names = ensembles.CLASS_NAMES
    likely = transport.infer("image_classifier", images)["CLASSES"]
    named = transport.infer("image_classifier", images, outputs={"CLASSES": 4})["CLASSES"]
    assert named.tolist() == [classes(row, 4, names) for row in likely]
    outputs = transport.infer("image_pipeline", {"TEXT": texts}, outputs={"CLASSES": 10})
    likely = transport.infer("image_pipeline", {"TEXT": texts})["CLASSES"]
    assert outputs["CLASSES"].tolist() == [classes(row, 10, names) for row in likely]
    assert list(outputs) == ["CLASSES"]
    outputs = transport.infer("nested", {"TEXT": texts}, outputs={"KINDS": 1})
    assert outputs["KINDS"].tolist() == [classes(row, 1, names) for row in likely]


def test_one_output_of_several_has_classes(transport: Transport) -> None:
    """The other outputs are unchanged."""
    texts = numpy.array([[b" ".join([b"0"] * 3 * ensembles.IMAGE_SIZE**2)]])
    plain = transport.infer("image_pipeline", {"TEXT": texts})
    wanted = {"REGIONS": 0, "CLASSES": 2}
    outputs = transport.infer("image_pipeline", {"TEXT": texts}, outputs=wanted)
    numpy.testing.assert_array_equal(outputs["REGIONS"], plain["REGIONS"])
    assert outputs["CLASSES"].tolist() == [classes(plain["CLASSES"][0], 2, ensembles.CLASS_NAMES)]


@pytest.mark.galatea_only
def test_each_response_of_a_decoupled_model(server: Server) -> None:
    """Tokens as classes."""
    count = {"COUNT": numpy.array([[3]], numpy.int32)}
    with GrpcStream(server) as stream:
        stream.send("tokens_direct_decoupled_state", count, outputs={"TOKEN": 1})
        responses = [stream.receive()[1]["TOKEN"].tolist() for _ in range(3)]
    assert all(text.endswith(b":0") for [[text]] in responses), responses


@pytest.mark.galatea_only
def test_the_cache_keeps_outputs_and_not_their_classes(server: Server) -> None:
    """Requests with different class counts share one entry."""
    with contextlib.closing(TRANSPORTS["http"](server)) as http:
        first = http.infer("cached", {"INPUT0": VALUES}, outputs={"OUTPUT0": 1})["OUTPUT0"]
        plain = http.infer("cached", {"INPUT0": VALUES}, outputs=["OUTPUT0"])["OUTPUT0"]
        more = http.infer("cached", {"INPUT0": VALUES}, outputs={"OUTPUT0": 2})["OUTPUT0"]
    assert first.tolist() == [[b"7.000000:3"], [b"4.000000:1"]]
    numpy.testing.assert_array_equal(plain, VALUES)
    assert more.tolist() == [[b"7.000000:3", b"1.500000:0:cat"], [b"4.000000:1", b"3.000000:2:dog"]]
    stages = server.statistics("cached")["inference_stats"]
    assert (stages["cache_miss"]["count"], stages["cache_hit"]["count"]) == (1, 2)


@pytest.mark.galatea_only
# row: CLS-05
def test_too_large_an_output(transport: Transport) -> None:
    """A million elements are enough, as in later Triton releases."""
    values = numpy.zeros((1, ELEMENTS_MAX + 1), numpy.float32)
    with pytest.raises(InferenceServerException, match="classification output tensor too large"):
        transport.infer("plain", {"INPUT0": values}, outputs={"OUTPUT0": 1})
    values[0, 5] = 1
    fits = {"INPUT0": values[:, :ELEMENTS_MAX]}
    output = transport.infer("plain", fits, outputs={"OUTPUT0": 1})["OUTPUT0"]
    assert output.tolist() == [[b"1.000000:5"]]


# Label files.


def failure(start_server: StartServer, repository: pathlib.Path) -> str:
    """The output of a server that fails to start."""
    with start_server(repository) as server:
        assert server.wait_for_exit() == 1
        return server.log()


# row: CFG-13
def test_a_missing_label_file(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The file makes the load fail, and is named."""
    write(tmp_path, "m", CONFIG)
    log = failure(start_server, tmp_path)
    lines = [line for line in log.splitlines() if line.startswith("E")]
    assert any("'m'" in line and "labels.txt" in line for line in lines), lines


@pytest.mark.galatea_only
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../other/labels.txt", "file name '../other/labels.txt' must stay inside"),
        ("/etc/passwd", "file name '/etc/passwd' must stay inside"),
        ("1", "can't open '1': not a regular file"),
    ],
)
# row: MR-21
def test_a_label_file_outside_the_model_is_not_read(
    start_server: StartServer, tmp_path: pathlib.Path, name: str, reason: str
) -> None:
    """Nothing outside the model's directory is read."""
    repository = tmp_path / "repository"
    write(repository, "m", CONFIG.replace("labels.txt", name))
    log = failure(start_server, repository)
    lines = [line for line in log.splitlines() if line.startswith("E")]
    message = f"labels of output 'OUTPUT0': {reason}"
    assert any(message in line for line in lines), lines


@pytest.mark.galatea_only
def test_an_endless_label_file(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The limit is 64 MiB."""
    write(tmp_path, "m", CONFIG, {"labels.txt": ""})
    os.truncate(tmp_path / "m" / "labels.txt", LABEL_BYTES_MAX + 1)
    assert f"may have {LABEL_BYTES_MAX} at most" in failure(start_server, tmp_path)


@pytest.mark.galatea_only
def test_check_reads_label_files(program: Program, tmp_path: pathlib.Path) -> None:
    """The check doesn't serve anything."""
    write(tmp_path, "good", CONFIG, {"labels.txt": LABELS})
    write(tmp_path, "bad", CONFIG)
    command = program.command([])
    done = subprocess.run(
        [command[0], "check", *command[1:], "--json", str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )
    found = {model["name"]: model["errors"] for model in json.loads(done.stdout)["models"]}
    assert not found["good"]
    assert "labels of output 'OUTPUT0'" in json.dumps(found["bad"])


def label(server: Server, model: str = "m", tensor: str = "0") -> str:
    """The label of the only class."""
    inputs = [{"name": f"INPUT{tensor}", "shape": [1, 1], "datatype": "FP32", "data": [1]}]
    outputs = [{"name": f"OUTPUT{tensor}", "parameters": {"classification": 1}}]
    reply = server.infer(model, {"inputs": inputs, "outputs": outputs})
    assert reply.status == 200, reply
    (text,) = reply.json()["outputs"][0]["data"]
    value, place, name = text.split(":")
    assert (value, place) == ("1.000000", "0")
    return name


ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [ {
  model_name: "m" model_version: -1
  input_map { key: "INPUT0" value: "INPUT1" }
  output_map { key: "OUTPUT0" value: "OUTPUT1" }
} ] }
"""


def test_a_load_reads_new_labels(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Labels come from the repository or with the load request, and ensembles use the new
    labels."""
    write(tmp_path, "m", CONFIG, {"labels.txt": "first"})
    write(tmp_path, "e", ENSEMBLE)
    flags = ("--model-control-mode=explicit", "--load-model=e")
    with start_server(tmp_path, *flags) as server:
        server.wait_until_ready()
        assert (label(server), label(server, "e", "1")) == ("first", "first")
        path = tmp_path / "m" / "labels.txt"
        path.write_text("second")
        os.utime(path, (2_000_000_000, 2_000_000_000))
        assert label(server) == "first"
        load = "/v2/repository/models/m/load"
        assert server.request("POST", load, b"").status == 200
        assert label(server) == "second"
        wait_until(lambda: label(server, "e", "1") == "second", 30, "the ensemble follows")
        config = {"backend": "identity", "max_batch_size": 8,
                  "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                  "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1],
                              "label_filename": "sub/own.txt"}]}
        parameters = {
            "config": json.dumps(config),
            "file:sub/own.txt": base64.b64encode(b"third\n").decode(),
            "file:1/nothing": "",
        }
        body = json.dumps({"parameters": parameters}).encode()
        reply = server.request("POST", load, body)
        assert reply.status == 200, reply
        assert label(server) == "third"
