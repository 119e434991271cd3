"""Tests Triton's unmodified backend for vLLM behind the endpoint for clients of OpenAI, with a
stand-in for the engine.

Skipped unless GALATEA_VLLM_BACKEND names a checkout of the repository vllm_backend.
"""

from __future__ import annotations

import base64
import io
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from conftest import StartServer
from openai_door import CHAT, JSON, TEMPLATE, events
from python_backend import interpreter_flag
from server import REQUEST_SECONDS_MAX, Reply, Server, free_ports, wait_until
from test_vllm import CHECKOUT, CONFIG, STAND_IN

pytestmark = [
    pytest.mark.galatea_only,
    pytest.mark.skipif(
        CHECKOUT == pathlib.Path(),
        reason="needs a checkout of vllm_backend in GALATEA_VLLM_BACKEND",
    ),
]

PROMPT = "the most dangerous animal"
USER = {"role": "user", "content": PROMPT}
ADAPTERS = {"poems": "/adapters/poems", "code": "/adapters/code"}


class Endpoint:
    """A server with the endpoint."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port

    def client(self) -> openai.OpenAI:
        """The official client."""
        url = f"http://127.0.0.1:{self.port}/v1"
        return openai.OpenAI(base_url=url, api_key="none", max_retries=0)

    def post(self, path: str, **body: Any) -> Reply:
        """Sends a document."""
        text = json.dumps(body).encode()
        return self.server.request("POST", path, text, JSON, port=self.port)


@pytest.fixture(scope="module")
def endpoint(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoint]:
    """A model with adapters, and one without."""
    pytest.importorskip("PIL", reason="vllm_backend imports Pillow")
    folder = tmp_path_factory.mktemp("vllm_openai")
    shutil.copytree(CHECKOUT / "src", folder / "backends" / "vllm")
    for name, engine in [("plain", {}), ("adapted", {"enable_lora": True})]:
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        (version / "model.json").write_text(json.dumps({"model": "words", **engine}))
    (version / "multi_lora.json").write_text(json.dumps(ADAPTERS))
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    [port] = free_ports(1)
    flags = [
        f"--backend-directory={folder / 'backends'}",
        interpreter_flag(),
        f"--openai-port={port}",
        f"--chat-template={template}",
        "--lora-separator=_lora_",
    ]
    environment = {"PYTHONPATH": str(STAND_IN)}
    with start_server(folder / "models", *flags, environment=environment) as running:
        yield Endpoint(running.wait_until_ready(), port)


# row: OAI-01 BE-06
def test_chats(endpoint: Endpoint) -> None:
    """Whole and streamed, with the engine's numbers of tokens."""
    client = endpoint.client()
    whole = client.chat.completions.create(model="plain", messages=[USER], max_tokens=5)
    assert whole.choices[0].message.content == f" {PROMPT} the"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 5)
    stream = client.chat.completions.create(
        model="plain",
        messages=[USER],
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    assert [one.choices[0].delta.content for one in chunks] == ["", " the", " most", " dangerous"]
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (4, 3)


# row: OAI-02 BE-06
def test_texts(endpoint: Endpoint) -> None:
    """With the prompt, with probabilities, and streamed."""
    client = endpoint.client()
    echoed = client.completions.create(model="plain", prompt=PROMPT, max_tokens=2, echo=True)
    assert echoed.choices[0].text == f"{PROMPT} the most"
    likely = client.completions.create(model="plain", prompt=PROMPT, max_tokens=2, logprobs=1)
    assert likely.choices[0].logprobs.tokens == ["the", "most"]
    assert likely.choices[0].logprobs.token_logprobs == [-0.5, -0.5]
    stream = client.completions.create(model="plain", prompt=PROMPT, max_tokens=3, stream=True)
    assert [one.choices[0].text for one in stream] == [" the", " most", " dangerous"]


def test_a_failure_of_the_engine(endpoint: Endpoint) -> None:
    """It is an event of its stream. Other requests continue."""
    failed = endpoint.post("/v1/completions", model="plain", prompt="fail", stream=True)
    assert "the engine failed" in json.dumps(events(failed.body)[-1])
    assert endpoint.post("/v1/completions", model="plain", prompt=PROMPT).status == 200


# row: OAI-07
def test_embeddings(endpoint: Endpoint) -> None:
    """Of a text and of tokens, with a number of dimensions."""
    client = endpoint.client()
    embedding = client.embeddings.create(model="plain", input="x y", dimensions=2)
    assert embedding.data[0].embedding == [2.0, 2.0]
    tokens = client.embeddings.create(model="plain", input=[1, 2, 3, 4])
    assert tokens.data[0].embedding == [4.0, 4.0, 4.0]
    assert tokens.usage.prompt_tokens == 4


# row: OAI-05
def test_adapters(endpoint: Endpoint) -> None:
    """The name behind the separator selects the adapter whose path the engine gets."""
    client = endpoint.client()
    names = [model.id for model in client.models.list()]
    assert names == ["adapted", "adapted_lora_poems", "adapted_lora_code", "plain"]
    for name, path in ADAPTERS.items():
        model = f"adapted_lora_{name}"
        text = client.completions.create(model=model, prompt=PROMPT, max_tokens=2)
        assert text.choices[0].text == f" adapter:{path} the"
    text = client.completions.create(model="adapted", prompt=PROMPT, max_tokens=1)
    assert text.choices[0].text == " the"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="adapted_lora_songs", prompt=PROMPT)
    detail = refused.value.response.json()["detail"]
    assert detail == "Unknown LoRA: songs; for model: adapted_lora_songs"


def test_images(endpoint: Endpoint) -> None:
    """A chat with an image is refused in Triton's words. The inference protocols pass images on."""
    from PIL import Image

    image = io.BytesIO()
    Image.new("RGB", (3, 2)).save(image, "PNG")
    encoded = base64.b64encode(image.getvalue()).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
    messages = [{"role": "user", "content": [part]}]
    reply = endpoint.post(CHAT, model="plain", messages=messages)
    detail = "only text message is supported, but got "
    assert (reply.status, reply.json()["detail"][: len(detail)]) == (400, detail)
    body = {"text_input": "a", "image": [encoded, encoded], "parameters": {"max_tokens": 3}}
    text = json.dumps(body | {"exclude_input_in_output": True}).encode()
    generated = endpoint.server.request("POST", "/v2/models/plain/generate", text)
    assert generated.json()["text_output"] == " a image:3x2 image:3x2"


# row: OAI-03
def test_a_client_that_leaves_ends_the_request(endpoint: Endpoint) -> None:
    """The backend reports that the engine has ended it."""
    ended = "Successfully cancelled the request"
    before = endpoint.server.log().count(ended)
    stream = endpoint.client().completions.create(
        model="plain", prompt=PROMPT, max_tokens=100_000, stream=True
    )
    next(iter(stream))
    stream.close()
    wait_until(
        lambda: endpoint.server.log().count(ended) == before + 1,
        REQUEST_SECONDS_MAX,
        "the engine has ended it",
    )


def test_metrics(endpoint: Endpoint) -> None:
    """The engine's metrics are beside the endpoint's own, on its port too."""
    assert endpoint.post("/v1/completions", model="plain", prompt=PROMPT, max_tokens=2).status == 200

    def metrics() -> str:
        return endpoint.server.request("GET", "/metrics", port=endpoint.port).body.decode()

    def value(name: str, labels: str) -> float:
        lines = [line for line in metrics().splitlines() if line.startswith(f"{name}{{{labels}}}")]
        return float(lines[0].split()[-1]) if lines else 0.0

    wait_until(
        lambda: value("vllm:generation_tokens_total", 'model="plain",version="1"') >= 2,
        REQUEST_SECONDS_MAX,
        "the engine's tokens are counted",
    )
    assert value("galatea_openai_tokens_total", 'model="plain"') >= 2
