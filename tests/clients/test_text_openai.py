"""Tests of text models behind OpenAI's API: embeddings and scores of documents."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy
import openai
import pytest

import text_models
from server import Program
from test_serve_command import serving

pytestmark = pytest.mark.galatea_only

#: A program with LangChain's embeddings. Without a setting, LangChain sends the numbers of the
#: tokens in the encoding of OpenAI's models. The encoding of bytes stands in for that encoding, which
#: its library downloads.
LANGCHAIN_CLIENT = """
import asyncio, json, sys
import openai, tiktoken
from langchain_openai import OpenAIEmbeddings

ranks = {bytes([value]): value for value in range(256)}
encoding = tiktoken.Encoding(
    "bytes", pat_str=".", mergeable_ranks=ranks, special_tokens={}, explicit_n_vocab=256
)
tiktoken.encoding_for_model = tiktoken.get_encoding = lambda name: encoding
place = {"base_url": sys.argv[1], "api_key": "none", "model": "embedder", "max_retries": 0}
texts = json.loads(sys.argv[2])
plain = OpenAIEmbeddings(**place, check_embedding_ctx_length=False)
try:
    OpenAIEmbeddings(**place).embed_documents(texts)
    refused = None
except openai.BadRequestError as error:
    refused = error.response.json()["detail"]
print(json.dumps({
    "texts": plain.embed_documents(texts),
    "query": plain.embed_query(texts[0]),
    "later": asyncio.run(plain.aembed_query(texts[1])),
    "tokens": refused,
}))
"""
TEXTS = ["the cat", "The dog ran far away, quickly!", "a"]
DOCUMENTS = ["the mat", "ran far away", "the cat sat on the mat", "dog"]


@pytest.fixture(scope="module", name="url")
def fixture_url(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with an embedder and a cross-encoder."""
    folder: pathlib.Path = tmp_path_factory.mktemp("texts")
    text_models.sentence_transformer(folder / "embedder")
    text_models.cross_encoder(folder / "ranker")
    with serving(program, folder, "--openai-on-http-port=true") as document:
        yield f"{document['http']}/v1"


@pytest.fixture(name="client")
def fixture_client(url: str) -> openai.OpenAI:
    """The official client."""
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0)


def post(url: str, path: str, document: dict[str, Any]) -> Any:
    """The response, or the status and the error."""
    request = urllib.request.Request(
        f"{url}/{path}", json.dumps(document).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["detail"]


# row: OAI-01
def test_lists_of_texts_are_embedded_in_one_call(client: openai.OpenAI) -> None:
    """The client asks for base64 unless it is told otherwise."""
    expected = numpy.array([text_models.embedding(text) for text in TEXTS])
    counts = sum(len(text_models.vectors(text)) for text in TEXTS)
    for encoding in ({}, {"encoding_format": "float"}):
        result = client.embeddings.create(model="embedder", input=TEXTS, **encoding)
        assert [one.index for one in result.data] == [0, 1, 2]
        found = numpy.array([one.embedding for one in result.data])
        numpy.testing.assert_allclose(found, expected, rtol=1e-5)
        assert result.usage.prompt_tokens == result.usage.total_tokens == counts
    single = client.embeddings.create(model="embedder", input=TEXTS[0])
    numpy.testing.assert_allclose(single.data[0].embedding, expected[0], rtol=1e-5)


def test_embeddings_can_be_shorter(client: openai.OpenAI) -> None:
    """The shorter embeddings have a length of 1."""
    result = client.embeddings.create(model="embedder", input=TEXTS, dimensions=2)
    expected = numpy.array([text_models.embedding(text)[:2] for text in TEXTS])
    expected /= numpy.linalg.norm(expected, axis=1, keepdims=True)
    numpy.testing.assert_allclose([one.embedding for one in result.data], expected, rtol=1e-5)


def test_base64_is_that_of_the_bytes(url: str) -> None:
    """Without the client's decoding."""
    body = {"model": "embedder", "input": "a", "encoding_format": "base64"}
    text = post(url, "embeddings", body)["data"][0]["embedding"]
    found = numpy.frombuffer(base64.b64decode(text), "<f4")
    numpy.testing.assert_allclose(found, text_models.embedding("a"), rtol=1e-5)


def test_refusals_of_embeddings(url: str) -> None:
    """What a text model doesn't take."""
    def check(expected: tuple[int, str], **more: Any) -> None:
        body = {"model": "embedder", "input": "a"} | more
        code, detail = post(url, "embeddings", body)
        assert code == expected[0] and expected[1] in json.dumps(detail), (code, detail)

    check((400, "the model takes texts; lists of tokens are not supported"), input=[1, 2])
    check((400, "dimensions must be at least 1"), dimensions=0)
    check((500, "the value must be a number from 1 to 4"), dimensions=5)
    check((422, "too_short"), input=[])
    check((422, "string_type"), input=["a", 1])
    check((400, "the model has scores, and no embeddings"), model="ranker")
    check((400, "Unknown model: none"), model="none")
    check((400, "`input` has 2049 items, but the model takes at most 2048"), input=["a"] * 2049)
    # An unknown model accepts no list, as in Triton.
    check((422, "string_type"), model="none", input=["a"])
    code, detail = post(url, "embeddings", {"model": "embedder", "input": ["a"], "user": 1})
    assert (code, [one["loc"] for one in detail]) == (422, [["body", "user"]])


def scores(query: str) -> numpy.ndarray:
    """The scores of all documents."""
    raw = numpy.array([text_models.logits(1, query, text)[0] for text in DOCUMENTS])
    return 1 / (1 + numpy.exp(-raw))


def test_documents_are_ranked(url: str) -> None:
    """The form of Cohere's and Jina's clients."""
    expected = scores("a cat")
    order = numpy.argsort(-expected)
    listed = [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]]
    body = {"model": "ranker", "query": "a cat", "documents": listed, "max_tokens_per_doc": 9}
    result = post(url, "rerank", body)
    assert [one["index"] for one in result["results"]] == order.tolist()
    found = [one["relevance_score"] for one in result["results"]]
    numpy.testing.assert_allclose(found, expected[order], rtol=1e-4)
    assert result["id"].startswith("rerank-") and result["model"] == "ranker"
    counts = sum(len(text_models.vectors("a cat", text)) for text in DOCUMENTS)
    assert result["usage"] == {"prompt_tokens": counts, "total_tokens": counts}
    result = post(url, "rerank", body | {"top_n": 2, "return_documents": True})
    assert [one["document"]["text"] for one in result["results"]] == [
        DOCUMENTS[place] for place in order[:2]
    ]


def test_texts_are_ranked(url: str) -> None:
    """The form of clients of text-embeddings-inference."""
    body = {"model": "ranker", "query": "a cat", "texts": DOCUMENTS, "return_text": True}
    result = post(url, "rerank", body)
    order = numpy.argsort(-scores("a cat"))
    assert [one["text"] for one in result] == [DOCUMENTS[place] for place in order]
    result = post(url, "rerank", body | {"raw_scores": True, "return_text": False})
    raw = [text_models.logits(1, "a cat", DOCUMENTS[one["index"]])[0] for one in result]
    numpy.testing.assert_allclose([one["score"] for one in result], raw, rtol=1e-4)
    assert set(result[0]) == {"index", "score"}
    code, detail = post(url, "rerank", body | {"texts": ["far " * 20], "truncate": False})
    assert code == 500 and "the text has more than 12 tokens" in detail


def test_refusals_of_documents(url: str) -> None:
    """Members that are missing or wrong, and a model without scores."""
    body = {"model": "ranker", "query": "a", "documents": ["a"]}
    assert post(url, "rerank", body | {"model": "embedder"}) == (
        400, "the model does not score documents"
    )
    assert post(url, "rerank", body | {"documents": [""] * 2049}) == (
        400, "`documents` has 2049 items, but the model takes at most 2048"
    )
    for change in ({"documents": []}, {"documents": [1]}, {"query": None}, {"top_n": 0}):
        code, detail = post(url, "rerank", body | change)
        assert code == 422 and detail[0]["loc"][:2] == ["body", *change], (change, detail)


# row: OAI-01
def test_the_embeddings_of_langchain(url: str, tmp_path: pathlib.Path) -> None:
    """LangChain sends texts if it is told not to send tokens. Its tokens are refused."""
    python = os.environ.get("GALATEA_LANGCHAIN_PYTHON")
    if python is None:
        pytest.skip("GALATEA_LANGCHAIN_PYTHON names no Python with langchain-openai")
    script = tmp_path / "client.py"
    script.write_text(LANGCHAIN_CLIENT)
    command = [python, str(script), url, json.dumps(TEXTS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run
    found = json.loads(run.stdout)
    expected = numpy.array([text_models.embedding(text) for text in TEXTS])
    numpy.testing.assert_allclose(found["texts"], expected, rtol=1e-5)
    numpy.testing.assert_allclose(found["query"], expected[0], rtol=1e-5)
    numpy.testing.assert_allclose(found["later"], expected[1], rtol=1e-5)
    assert found["tokens"] == "the model takes texts; lists of tokens are not supported"
