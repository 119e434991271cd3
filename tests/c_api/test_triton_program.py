"""Runs Triton's own server program on our library instead of its own.

The tests are skipped unless GALATEA_TRITON_PACKAGES names the directory into which the Python
package nvidia-pytriton was installed; see docs/c_api.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from server import free_ports, wait_until
from tritonclient.utils import InferenceServerException

PACKAGES = os.environ.get("GALATEA_TRITON_PACKAGES")

pytestmark = pytest.mark.skipif(
    not PACKAGES, reason="needs Triton's packages in GALATEA_TRITON_PACKAGES"
)

READY_SECONDS = 60


def install_program(
    folder: pathlib.Path, library: pathlib.Path
) -> tuple[pathlib.Path, dict[str, str]]:
    """A copy of the program, away from its own library, which it would otherwise find next to
    itself, together with our library under the name that it links to."""
    packages = pathlib.Path(PACKAGES or "")
    program = folder / "bin" / "tritonserver"
    program.parent.mkdir()
    shutil.copy(packages / "pytriton/tritonserver/bin/tritonserver", program)
    needed = subprocess.run(["readelf", "-d", program], check=True, capture_output=True, text=True)
    (name,) = re.findall(r"\[(libtritonserver[^\]]*)\]", needed.stdout)
    (folder / name).symlink_to(library)
    paths = f"{folder}:{packages / 'nvidia_pytriton.libs'}"
    return program, {**os.environ, "LD_LIBRARY_PATH": paths}


class Running:
    """The program with its ports."""

    def __init__(self, http: int, grpc: int, metrics: int, log: pathlib.Path) -> None:
        self.log = log
        self.http = tritonclient.http.InferenceServerClient(f"127.0.0.1:{http}")
        self.grpc = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc}")
        self.http_port = http
        self.metrics_port = metrics

    def metrics(self) -> str:
        """The text of the metrics."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.read().decode()


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, library: pathlib.Path, repository: pathlib.Path
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("triton")
    program, environment = install_program(folder, library)
    http, grpc, metrics = free_ports(3)
    log = (folder / "log").open("w+")
    process = subprocess.Popen(
        [
            program,
            f"--model-repository={repository}",
            "--model-control-mode=explicit",
            "--load-model=identity",
            f"--http-port={http}",
            f"--grpc-port={grpc}",
            f"--metrics-port={metrics}",
        ],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        one = Running(http, grpc, metrics, pathlib.Path(log.name))

        def is_ready() -> bool:
            assert process.poll() is None, pathlib.Path(log.name).read_text()
            with contextlib.suppress(Exception):
                return bool(one.http.is_server_ready() and one.grpc.is_server_ready())
            return False

        wait_until(is_ready, READY_SECONDS, "the server is ready")
        yield one
        # The program waits for open connections until its timeout.
        one.http.close()
        one.grpc.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, pathlib.Path(log.name).read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, running: Running) -> object:
    return getattr(running, request.param)


def infer(client: object, values: numpy.ndarray, model: str = "identity") -> object:
    """Sends values to a model and returns the result."""
    module = tritonclient.grpc if hasattr(client, "start_stream") else tritonclient.http
    tensor = module.InferInput("INPUT0", list(values.shape), "INT32")
    tensor.set_data_from_numpy(values)
    return client.infer(model, [tensor], request_id="seven")


def test_health_and_metadata(client: object) -> None:
    assert client.is_server_live()
    assert client.is_model_ready("identity")
    assert not client.is_model_ready("other")
    as_json = {} if isinstance(client, tritonclient.http.InferenceServerClient) else {"as_json": True}
    assert client.get_server_metadata(**as_json)["name"] == "triton"
    metadata = client.get_model_metadata("identity", **as_json)
    assert metadata["inputs"][0]["name"] == "INPUT0"
    config = client.get_model_config("identity", **as_json)
    assert config.get("config", config)["max_batch_size"] == 8


@pytest.mark.parametrize("values", [[1, 2, 3], []])
def test_raw_request(running: Running, values: list[int]) -> None:
    body = numpy.array(values, dtype=numpy.int32).tobytes()
    url = f"http://127.0.0.1:{running.http_port}/v2/models/identity/infer"
    request = urllib.request.Request(url, body, {"Inference-Header-Content-Length": "0"})
    with urllib.request.urlopen(request, timeout=10) as response:
        content = response.read()
        # If no bytes follow the header, the length is missing.
        length = int(response.headers.get("Inference-Header-Content-Length", len(content)))
    (output,) = json.loads(content[:length])["outputs"]
    assert (output["name"], output["shape"]) == ("OUTPUT0", [1, len(values)])
    assert content[length:] == body


def test_log_settings_apply_to_plug_ins(client: object, running: Running) -> None:
    known = running.log.read_text()
    for wanted in (False, True):
        client.update_log_settings({"log_info": wanted})
        client.load_model("other")
        client.unload_model("other")
        text = running.log.read_text()
        assert ("other" in text.removeprefix(known)) == wanted, text.removeprefix(known)
        known = text


def test_infer_and_statistics(client: object) -> None:
    values = numpy.arange(12, dtype=numpy.int32).reshape(3, 4)
    result = infer(client, values)
    numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)
    if isinstance(client, tritonclient.http.InferenceServerClient):
        assert result.get_response()["id"] == "seven"
        statistics = client.get_inference_statistics("identity")
    else:
        assert result.get_response().id == "seven"
        statistics = client.get_inference_statistics("identity", as_json=True)
    assert int(statistics["model_stats"][0]["inference_count"]) >= 3


def test_classes_with_labels(client: object) -> None:
    """The program computes the classes, and gets the labels from the library."""
    is_http = isinstance(client, tritonclient.http.InferenceServerClient)
    module = tritonclient.http if is_http else tritonclient.grpc
    tensor = module.InferInput("INPUT0", [2, 4], "INT32")
    tensor.set_data_from_numpy(numpy.array([[4, 3, 2, 1], [1, 9, 8, 7]], numpy.int32))
    wanted = [module.InferRequestedOutput("OUTPUT0", class_count=3)]
    classes = client.infer("identity", [tensor], outputs=wanted).as_numpy("OUTPUT0")
    expected = [[b"4:0:zero", b"3:1", b"2:2:two"], [b"9:1", b"8:2:two", b"7:3"]]
    assert classes.tolist() == expected


def test_large_tensors(client: object) -> None:
    values = numpy.arange(1 << 20, dtype=numpy.int32).reshape(1, -1)
    numpy.testing.assert_array_equal(infer(client, values).as_numpy("OUTPUT0"), values)


def test_errors_reach_the_client(client: object) -> None:
    with pytest.raises(InferenceServerException, match="'nobody'"):
        infer(client, numpy.zeros((1, 1), numpy.int32), "nobody")
    with pytest.raises(InferenceServerException, match="batch"):
        infer(client, numpy.zeros((9, 1), numpy.int32))


def test_models_load_and_unload(client: object) -> None:
    assert not client.is_model_ready("other")
    client.load_model("other")
    assert client.is_model_ready("other")
    values = numpy.ones((2, 2), numpy.int32)
    numpy.testing.assert_array_equal(infer(client, values, "other").as_numpy("OUTPUT0"), values)
    client.unload_model("other")
    wait_until(lambda: not client.is_model_ready("other"), READY_SECONDS, "it is unloaded")
    index = client.get_model_repository_index()
    names = index if isinstance(index, list) else [{"name": one.name} for one in index.models]
    assert {one["name"] for one in names} == {"identity", "other"}


# row: DEC-03
def test_streams(running: Running) -> None:
    responses: list[tuple[object, object]] = []
    running.grpc.start_stream(lambda result, error: responses.append((result, error)))
    for number in range(5):
        values = numpy.full((1, 3), number, numpy.int32)
        tensor = tritonclient.grpc.InferInput("INPUT0", [1, 3], "INT32")
        tensor.set_data_from_numpy(values)
        running.grpc.async_stream_infer("identity", [tensor])
    running.grpc.stop_stream()
    assert [error for _, error in responses] == [None] * 5
    assert [int(result.as_numpy("OUTPUT0")[0][0]) for result, _ in responses] == list(range(5))


def test_metrics(running: Running) -> None:
    infer(running.http, numpy.zeros((1, 1), numpy.int32))
    assert 'nv_inference_request_success{model="identity",version="1"}' in running.metrics()
