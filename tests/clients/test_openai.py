"""Tests of OpenAI clients: the official library, and the bytes that Triton's frontend sends."""

from __future__ import annotations

import asyncio
import collections
import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from openai_door import (
    CHAT,
    EMBEDDING,
    TEXT,
    Door,
    chat,
    events,
    open_door,
    without_times,
)
from server import wait_until

pytestmark = pytest.mark.galatea_only

#: Requests, and what Triton's frontend replied to them in front of models like those here. Its
#: FastAPI was 0.121.2, its pydantic 2.14.4, its Python 3.11.
EXCHANGES = pathlib.Path(__file__).with_name("openai_exchanges.jsonl")
USER = {"role": "user", "content": "a b c"}


@pytest.fixture(scope="module")
def door(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """An endpoint with a limit on bodies."""
    folder = tmp_path_factory.mktemp("openai")
    with open_door(start_server, folder, "--http-max-input-size=4000000") as running:
        yield running


# row: OAI-02 OAI-04
def test_every_exchange_is_that_of_triton(door: Door) -> None:
    """449 requests, 332 of them refused, get Triton's status, type and bytes."""
    different = []
    for line in EXCHANGES.read_text().splitlines():
        expected = json.loads(line)
        kind = expected.get("type", "application/json")
        reply = door.send(
            expected.get("method", "POST"),
            expected["path"],
            expected["body"].encode() or None,
            Content_Type=kind,
        )
        found = {
            "status": reply.status,
            "content_type": reply.headers["Content-Type"],
            "allow": reply.headers["Allow"],
            "response": without_times(reply.body.decode()),
        }
        wanted = {name: expected.get(name) for name in found}
        if found != wanted:
            different.append((expected["name"], found, wanted))
    assert not different, different[:3]


def test_the_official_client_completes(door: Door) -> None:
    """Chats and texts that are sent as a whole."""
    client = door.client()
    reply = client.chat.completions.create(model="vllm_model", messages=[USER])
    assert reply.choices[0].message.content == "a b c"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == 6
    text = client.completions.create(model="python_model", prompt="d e", echo=True)
    assert (text.choices[0].text, text.object) == ("d e", "text_completion")
    assert text.id.startswith("cmpl-")


# row: OAI-03
def test_the_official_client_streams(door: Door) -> None:
    """Chunks, with the token counts at the end."""
    client = door.client()
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="vllm_model", messages=[USER], stream=True, stream_options=options
    )
    *chunks, last = stream
    deltas = [chunk.choices[0].delta.content for chunk in chunks]
    assert deltas == ["", "a", "b", "c"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert (last.choices, last.usage.completion_tokens) == ([], 3)
    texts = client.completions.create(model="vllm_model", prompt="d e", stream=True)
    assert [(one.choices[0].text, one.object) for one in texts] == [
        ("d", "text_completion"),
        ("e", "text_completion"),
    ]
    raw = door.post(CHAT, chat(stream=True))
    assert raw.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert events(raw.body)[-1] == "[DONE]"


def test_many_streams_at_once(door: Door) -> None:
    """The asynchronous client, with 32 streams."""

    async def stream(client: openai.AsyncOpenAI, number: int) -> str:
        words = " ".join([str(number)] * 20)
        messages = [{"role": "user", "content": words}]
        chunks = await client.chat.completions.create(
            model="vllm_model", messages=messages, stream=True
        )
        return "|".join([chunk.choices[0].delta.content async for chunk in chunks])

    async def all_streams() -> list[str]:
        url = f"http://127.0.0.1:{door.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(stream(client, number) for number in range(32)))

    expected = ["|" + "|".join([str(number)] * 20) for number in range(32)]
    assert asyncio.run(all_streams()) == expected


# row: OAI-07
def test_the_official_client_embeds(door: Door) -> None:
    """The client itself requests base64."""
    embedding = door.client().embeddings.create(model="vllm_model", input="x y")
    assert embedding.data[0].embedding == [0.5, -1.25]
    with pytest.raises(openai.BadRequestError) as refused:
        door.client().embeddings.create(model="python_model", input="x")
    assert "do not support embedding" in refused.value.response.json()["detail"]


def test_the_official_client_lists_models(door: Door) -> None:
    """The models that are ready, and one by its name."""
    client = door.client()
    models = list(client.models.list())
    assert [model.id for model in models] == ["python_model", "vllm_model"]
    assert {model.owned_by for model in models} == {"Triton Inference Server"}
    again = client.models.retrieve("vllm_model")
    assert again == models[1]
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("other")
    assert unknown.value.response.json() == {"detail": "Unknown model: other"}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="other", messages=[USER])
    assert refused.value.response.json() == {"detail": "Unknown model: other"}


def test_a_model_gets_the_parameters(door: Door) -> None:
    """vLLM's backend receives them as JSON, with Triton's defaults."""
    more = {"max_completion_tokens": 5, "stop": ["x"], "seed": 7, "logprobs": True}
    door.post(CHAT, chat("parameters", **more, top_logprobs=3, min_tokens=1))
    assert door.seen()[-1] == {
        "frequency_penalty": 0,
        "ignore_eos": False,
        "min_tokens": 1,
        "n": 1,
        "presence_penalty": 0,
        "seed": 7,
        "stop": ["x"],
        "temperature": 0.7,
        "top_p": 1,
        "max_tokens": 5,
        "logprobs": 3,
    }
    door.post(TEXT, {"model": "vllm_model", "prompt": "default"})
    assert door.seen()[-1]["max_tokens"] == 16


def test_an_engine_that_fails(door: Door) -> None:
    """Before the first token, the status is 500, as in Triton. After that, it is an event."""
    for stream in (False, True):
        reply = door.post(CHAT, chat("!fail", stream=stream))
        assert (reply.status, reply.json()) == (500, {"detail": "the engine failed"})
    reply = door.post(CHAT, chat("a !fail", stream=True))
    *chunks, last = [one for one in reply.body.decode().split("\n\n") if one]
    assert (reply.status, len(chunks)) == (200, 2)
    error = {"message": "the engine failed", "type": "server_error", "code": None}
    assert json.loads(last.removeprefix("data: ")) == {"error": error}
    stream = door.client().chat.completions.create(
        model="vllm_model", messages=[{"role": "user", "content": "a !fail"}], stream=True
    )
    with pytest.raises(openai.APIError, match="the engine failed"):
        list(stream)
    many = door.post(CHAT, chat("!three x y"))
    assert (many.status, many.json()["detail"]) == (
        500,
        "Unexpected number of responses: 4, expected 1 or 2.",
    )


def test_a_client_that_leaves_cancels(door: Door) -> None:
    """In the middle of a stream, and while the client waits for a document."""
    for stream in (True, False):
        before = len(door.seen())
        body = json.dumps(chat("!wait", stream=stream)).encode()
        with door.socket() as connection:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            wait_until(lambda: len(door.seen()) > before, 30, "the model has the request")
            if stream:
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        wait_until(lambda: len(door.seen()) == before + 2, 30, "the model has noticed")
        assert door.seen()[-1] == {"cancelled": True}


def test_bounds_of_requests(door: Door) -> None:
    """Long bodies, many messages, deep tools and huge numbers are refused."""
    reply = door.post(CHAT, chat("x" * 4_000_000))
    size = len(json.dumps(chat("x" * 4_000_000)))
    message = (
        f"Request size of {size} bytes exceeds the maximum allowed input size of 4000000 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    error = {"message": message, "type": "invalid_request_error", "code": "content_too_large"}
    assert (reply.status, reply.json()) == (413, {"error": error})
    many = {"model": "vllm_model", "messages": [{"role": "user", "content": "x"}] * 50_000}
    reply = door.post(CHAT, many)
    assert (reply.status, reply.json()["detail"]) == (
        400,
        "Received 50000 messages, but at most 16384 are supported",
    )
    deep = '{"a":' * 10_000 + "1" + "}" * 10_000
    body = json.dumps(chat(tools=[])).replace("[]", f'[{{"type":"function","function":{deep}}}]')
    reply = door.send("POST", CHAT, body.encode(), Content_Type="application/json")
    assert (reply.status, reply.json()) == (
        400,
        {"detail": "There was an error parsing the body"},
    )
    reply = door.post(CHAT, chat(stop=["x"] * 2000))
    assert "at most 1024 are supported" in reply.json()["detail"]
    values = b'{"model":[' + b"1," * 1_100_000 + b"1]}"
    assert door.send("POST", CHAT, values, Content_Type="application/json").status == 400
    # A list of errors doesn't grow with the request.
    bad = {"model": "vllm_model", "messages": [{"role": "x", "content": "y" * 1000}] * 2000}
    reply = door.post(CHAT, bad)
    assert (reply.status, len(reply.body) < 3_000_000) == (422, True)
    json.loads(reply.body)


def test_an_explanation(door: Door) -> None:
    """It has the same header as on the inference endpoint."""
    for stream in (False, True):
        reply = door.post(CHAT, chat(stream=stream), triton_explain="1")
        assert "triton-explain" in reply.headers


def prompt_tokens(door: Door) -> collections.Counter[str]:
    """The number of tokens in the prompts of each model."""
    text = door.send("GET", "/metrics").body.decode()
    counts = re.findall(r'^galatea_openai_prompt_tokens_total{model="(\w+)"} (\d+)$', text, re.M)
    return collections.Counter({model: int(count) for model, count in counts})


# row: OAI-01
def test_the_other_endpoints(door: Door) -> None:
    """Health, metrics, and nonexistent paths."""
    ready = door.send("GET", "/health/ready")
    assert (ready.status, ready.body, ready.headers["Content-Type"]) == (200, b"", None)
    before = prompt_tokens(door)
    door.post(CHAT, chat("one two three", stream=True))
    door.post(TEXT, {"model": "python_model", "prompt": "four five"})
    assert door.post(EMBEDDING, {"model": "vllm_model", "input": "x"}).status == 200
    metrics = door.send("GET", "/metrics")
    assert metrics.headers["Content-Type"] == "text/plain; charset=utf-8"
    text = metrics.body.decode()
    assert 'nv_inference_request_success{model="vllm_model",version="1"}' in text
    for name in ("first_token_seconds", "between_tokens_seconds"):
        assert f'galatea_openai_{name}_count{{model="vllm_model"}}' in text
    assert 'galatea_openai_tokens_total{model="python_model"}' in text
    expected = collections.Counter(vllm_model=3 + 1, python_model=2)
    assert prompt_tokens(door) - before == expected
    for action in ("load", "unload"):
        reply = door.send("POST", f"/v1/models/vllm_model/{action}")
        assert (reply.status, reply.json()["detail"]) == (
            400,
            "Model load/unload requires --model-control-mode=explicit",
        )
    assert door.send("GET", "/v1/models/vllm_model").status == 200
    assert door.send("GET", "/v2/health/live").status == 404
