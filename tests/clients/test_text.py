"""Tests of text models: directories as their makers publish them."""

from __future__ import annotations

import json
import pathlib
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pytest
import tritonclient.grpc

import text_models
from server import Program
from test_serve_command import refused, serving

pytestmark = pytest.mark.galatea_only

TEXTS = [
    "the cat", "", "The dog ran far away, quickly!", "a", "unknown words are here",
    "the cat sat on the mat and the dog ran far away quickly " * 3,
]


@pytest.fixture(scope="module", name="address")
def fixture_address(
    program: Program, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """A server with a model of each kind."""
    folder = tmp_path_factory.mktemp("texts")
    text_models.sentence_transformer(folder / "embedder")
    text_models.dense_embedder(folder / "dense")
    text_models.cross_encoder(folder / "ranker")
    text_models.cross_encoder(folder / "prompted", prompt="the dog ")
    text_models.classifier(folder / "classifier")
    with serving(program, folder) as document:
        yield document


def infer(
    address: dict[str, Any], model: str, inputs: dict[str, Sequence[str]], **parameters: Any
) -> dict[str, numpy.ndarray]:
    """The outputs for texts."""
    listed = [
        {"name": name, "datatype": "BYTES", "shape": [len(texts), 1], "data": list(texts)}
        for name, texts in inputs.items()
    ]
    body = json.dumps({"inputs": listed, "parameters": parameters}).encode()
    with urllib.request.urlopen(f"{address['http']}/v2/models/{model}/infer", body) as response:
        outputs = json.load(response)["outputs"]
    return {one["name"]: numpy.array(one["data"]).reshape(one["shape"]) for one in outputs}


def error(address: dict[str, Any], model: str, texts: Sequence[str], **parameters: Any) -> str:
    """The error for texts."""
    with pytest.raises(urllib.error.HTTPError) as raised:
        infer(address, model, {"text": texts}, **parameters)
    assert raised.value.code == 400
    message: str = json.load(raised.value)["error"]
    return message


def test_embeddings_are_those_of_the_reference(address: dict[str, Any]) -> None:
    """Texts of different lengths in one request."""
    outputs = infer(address, "embedder", {"text": TEXTS})
    expected = numpy.array([text_models.embedding(text) for text in TEXTS])
    assert (outputs["embedding"] * expected).sum(axis=1).min() > 0.9999
    counts = [len(text_models.vectors(text)) for text in TEXTS]
    assert outputs["num_input_tokens"].ravel().tolist() == counts


def test_a_dense_layer_follows_the_pooling(address: dict[str, Any]) -> None:
    """A layer with tanh, in front of the scaling."""
    outputs = infer(address, "dense", {"text": TEXTS})
    expected = [text_models.dense_embedding(text) for text in TEXTS]
    numpy.testing.assert_allclose(outputs["embedding"], expected, rtol=1e-4, atol=1e-6)


def test_grpc_has_the_same_embeddings(address: dict[str, Any]) -> None:
    """The official client, with parameters."""
    with tritonclient.grpc.InferenceServerClient(address["grpc"]) as client:
        tensor = tritonclient.grpc.InferInput("text", [2, 1], "BYTES")
        tensor.set_data_from_numpy(numpy.array([[b"the cat"], [b"dog"]], dtype=object))
        result = client.infer("embedder", [tensor], parameters={"dimensions": 2})
    found = result.as_numpy("embedding")
    expected = numpy.array([text_models.embedding(text)[:2] for text in ("the cat", "dog")])
    expected /= numpy.linalg.norm(expected, axis=1, keepdims=True)
    numpy.testing.assert_allclose(found, expected, rtol=1e-5)


def test_prompts_and_limits(address: dict[str, Any]) -> None:
    """Options of a request."""
    outputs = infer(address, "embedder", {"text": ["cat"]}, prompt_name="query")
    expected = text_models.embedding("the cat")
    numpy.testing.assert_allclose(outputs["embedding"][0], expected, rtol=1e-5)
    message = error(address, "embedder", [TEXTS[-1]], truncate=False)
    assert message.endswith("input 'text', element 0: the text has more than 12 tokens")
    message = error(address, "embedder", ["cat"], prompt_name="passage")
    assert "the model has no prompt 'passage': it has 'query'" in message
    message = error(address, "embedder", ["cat"], dimensions=5)
    assert "parameter 'dimensions': the value must be a number from 1 to 4" in message


def test_scores_of_pairs(address: dict[str, Any]) -> None:
    """A cross-encoder."""
    pairs = [("the cat", "the mat"), ("a dog", "ran far away " * 9), ("", "")]
    queries, texts = zip(*pairs, strict=True)
    raw = numpy.array([text_models.logits(1, *pair) for pair in pairs])
    outputs = infer(address, "ranker", {"query": queries, "text": texts})
    numpy.testing.assert_allclose(outputs["scores"], 1 / (1 + numpy.exp(-raw)), rtol=1e-4)
    outputs = infer(address, "ranker", {"query": queries, "text": texts}, raw_scores=True)
    numpy.testing.assert_allclose(outputs["scores"], raw, rtol=1e-4)


def test_a_prompt_precedes_the_query_of_a_pair(address: dict[str, Any]) -> None:
    """The default prompt of a cross-encoder, and that of a request."""
    def check(query: str, **parameters: Any) -> None:
        inputs = {"query": ["cat sat"], "text": ["the mat"]}
        found = infer(address, "prompted", inputs, raw_scores=True, **parameters)
        expected = text_models.logits(1, query, "the mat")
        numpy.testing.assert_allclose(found["scores"][0], expected, rtol=1e-4)

    check("the dog cat sat")
    check("the dog cat sat", prompt_name="web")
    check("mat cat sat", prompt="mat ")
    check("cat sat", prompt="")


def test_probabilities_of_classes(address: dict[str, Any]) -> None:
    """A classifier."""
    outputs = infer(address, "classifier", {"text": TEXTS})
    raw = numpy.array([text_models.logits(3, text) for text in TEXTS])
    powers = numpy.exp(raw - raw.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    numpy.testing.assert_allclose(outputs["scores"], expected, rtol=1e-4, atol=1e-6)


def test_what_is_not_supported_is_named(program: Program, tmp_path: pathlib.Path) -> None:
    """A load fails with the file and the reason."""
    folder = text_models.dense_embedder(tmp_path / "dense")
    weights = folder / "2_Dense" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    code, _, errors = refused(program, folder)
    assert code == 1
    assert "2_Dense/pytorch_model.bin: weights in this format are not supported" in errors
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "sentence_transformers.sparse_encoder.models.SpladePooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    code, _, errors = refused(program, folder)
    assert code == 1
    assert ".SpladePooling' is not supported: its embeddings are sparse" in errors
    (folder / "modules.json").write_text("[")
    code, _, errors = refused(program, folder)
    assert code == 1 and "modules.json: EOF while parsing" in errors
    (folder / "modules.json").unlink()
    content = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(content[: len(content) // 2])
    code, _, errors = refused(program, folder)
    assert code == 1 and "tokenizer.json: EOF while parsing" in errors
