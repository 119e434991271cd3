"""Tests of malformed requests from OpenAI clients. Each is refused in a form that the clients know,
and the server continues to serve."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openai_door import CHAT, EMBEDDING, RESPONSES, TEXT, Door, chat, open_door

pytestmark = pytest.mark.galatea_only

#: A loop that would take days for the text "loop", and recursion for the text "recurse".
TEMPLATE = (
    "{% macro call(n) %}{{ call(n + 1) }}{% endmacro %}"
    "{% for m in messages %}"
    "{% if m.content == 'loop' %}{% for a in range(9999) %}{% for b in range(9999) %}"
    "{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}"
    "{% elif m.content == 'grow' %}{{ 'x' * 99999999999 }}"
    "{% elif m.content == 'recurse' %}{{ call(0) }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
USER = {"role": "user", "content": "a"}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}


def nested(depth: int) -> str:
    """The JSON of a schema that is this deep."""
    return '{"properties":' * depth + "{}" + "}" * depth


def text(**members: Any) -> dict[str, Any]:
    """A request for a text."""
    return {"model": "vllm_model", "prompt": "a", **members}


def embedding(**members: Any) -> dict[str, Any]:
    """A request for an embedding."""
    return {"model": "vllm_model", "input": "a", **members}


def spoken(*messages: Any, **members: Any) -> dict[str, Any]:
    """A chat with these messages."""
    return {"model": "vllm_model", "messages": list(messages), **members}


def response(**members: Any) -> dict[str, Any]:
    """A request for a response."""
    return {"model": "vllm_model", "input": "a", **members}


def items(*given: Any) -> dict[str, Any]:
    """A request for a response to these items."""
    return response(input=list(given))


DEEP = json.dumps(chat(tools=[TOOL])).replace('{"type": "object"}', nested(10_000))
#: Bodies that are no document of the right kind.
BODIES: dict[str, tuple[str, bytes]] = {
    "nothing": (CHAT, b""),
    "half an object": (CHAT, b'{"model": '),
    "two documents": (CHAT, b"{} {}"),
    "a list": (CHAT, b"[]"),
    "a number": (CHAT, b"7"),
    "null": (CHAT, b"null"),
    "a string": (TEXT, b'"model"'),
    "no JSON": (TEXT, b"model=vllm_model&prompt=a"),
    "no text": (CHAT, b"\xff\xfe\x00\x01"),
    "an unpaired surrogate": (EMBEDDING, b'{"model": "vllm_model", "input": "\xed\xa0\x80"}'),
    "a comment": (TEXT, b'{"model": "vllm_model", "prompt": "a" /* b */}'),
    "a comma too many": (TEXT, b'{"model": "vllm_model", "prompt": "a",}'),
    "half a request for a response": (RESPONSES, b'{"model": '),
    "a list in place of a response": (RESPONSES, b"[]"),
    "nothing in place of a response": (RESPONSES, b""),
    "a control character": (TEXT, b'{"model": "vllm_model", "prompt": "a\nb"}'),
    "deep lists": (CHAT, b"[" * 100_000),
    "deep objects": (CHAT, b'{"a":' * 100_000),
    "a deep schema": (CHAT, DEEP.encode()),
    "a deep prompt": (TEXT, b'{"model": "vllm_model", "prompt": ' + b"[" * 300 + b"]" * 300 + b"}"),
    "a number without end": (TEXT, b'{"model": "vllm_model", "prompt": "a", "n": ' + b"9" * 9999),
}
#: Chats that are refused.
CHATS: dict[str, dict[str, Any]] = {
    "no members": {},
    "no messages": {"model": "vllm_model"},
    "an empty list of messages": spoken(),
    "messages that are an object": {"model": "vllm_model", "messages": USER},
    "a message that is a string": spoken("a"),
    "too many messages": spoken(*[USER] * 100_000),
    "no model": {"messages": [USER]},
    "a model that is a number": chat(model=7),  # type: ignore[arg-type]
    "an unknown model": chat(model="other"),
    "a model that is a path": chat(model="../../etc/passwd"),
    "an empty model": chat(model=""),
    "an unknown role": spoken({"role": "robot", "content": "a"}),
    "no role": spoken({"content": "a"}),
    "a role that is a list": spoken({"role": ["user"], "content": "a"}),
    "no content": spoken({"role": "user"}),
    "content that is a number": spoken({"role": "user", "content": 1}),
    "content that is an object": spoken({"role": "user", "content": {"text": "a"}}),
    "an image": spoken({"role": "user", "content": [IMAGE]}),
    "a sound": spoken({"role": "user", "content": [AUDIO]}),
    "a part of no type": spoken({"role": "user", "content": [{"text": "a"}]}),
    "a part of an unknown type": spoken({"role": "user", "content": [{"type": "video"}]}),
    "a tool's message without its call": spoken({"role": "tool", "content": "a"}),
    "an unknown member": chat(colour="blue"),
    "huge n": chat(n=10**30),
    "two choices": chat(n=2),
    "no choices": chat(n=0),
    "negative n": chat(n=-1),
    "n that is a string": chat(n="many"),
    "a fraction of tokens": chat(max_tokens=1.5),
    "tokens that are an object": chat(max_completion_tokens={}),
    "a hot temperature": chat(temperature=2.5),
    "a temperature below zero": chat(temperature=-0.1),
    "a temperature that is a list": chat(temperature=[1]),
    "a large top_p": chat(top_p=1.01),
    "a large penalty": chat(frequency_penalty=3),
    "a small penalty": chat(presence_penalty=-3),
    "a seed that is a fraction": chat(seed=1.25),
    "stop words that are numbers": chat(stop=[1]),
    "too many stop words": chat(stop=["x"] * 5000),
    "stream that is a word": chat(stream="perhaps"),
    "stream options without a stream": chat(stream_options={"include_usage": True}),
    "stream options that are a list": chat(stream=True, stream_options=[]),
    "a bias": chat(logit_bias={"1": 1}),
    "likely tokens without probabilities": chat(top_logprobs=2),
    "too many likely tokens": chat(logprobs=True, top_logprobs=21),
    "probabilities of another backend": chat(model="python_model", logprobs=True),
    "tools without a parser": chat(tools=[TOOL]),
    "a choice of tools without a parser": chat(tools=[TOOL], tool_choice="auto"),
    "a required tool without tools": chat(tool_choice="required"),
    "a named tool without tools": chat(tool_choice=TOOL),
    "a tool that is not there": chat(
        tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}
    ),
    "an unknown choice of tools": chat(tools=[TOOL], tool_choice="some"),
    "too many tools": chat(tools=[TOOL] * 2000),
    "tools that are an object": chat(tools=TOOL),
    "a tool of an unknown type": chat(tools=[{"type": "hammer", "function": FUNCTION}]),
    "a tool without a function": chat(tools=[{"type": "function"}]),
    "a tool without a name": chat(tools=[{"type": "function", "function": {}}]),
    "an unknown format": chat(response_format={"type": "xml"}),
    "a format that is a string": chat(response_format="json"),
    "a template that loops": chat("loop"),
    "a template that recurses": chat("recurse"),
    "a template that grows": chat("grow"),
}
#: Texts and embeddings that are refused.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "no prompt": (TEXT, {"model": "vllm_model"}),
    "an empty prompt": (TEXT, text(prompt="")),
    "a list of prompts": (TEXT, text(prompt=["a", "b"])),
    "a prompt of tokens": (TEXT, text(prompt=[1, 2])),
    "a prompt that is an object": (TEXT, text(prompt={})),
    "a suffix": (TEXT, text(suffix="b")),
    "best of several": (TEXT, text(best_of=3)),
    "too many probabilities": (TEXT, text(logprobs=6)),
    "an echo that is a word": (TEXT, text(echo="loud")),
    "tokens below zero": (TEXT, text(max_tokens=-1)),
    "no input": (EMBEDDING, {"model": "vllm_model"}),
    "an input that is an object": (EMBEDDING, embedding(input={"text": "a"})),
    "an unknown encoding": (EMBEDDING, embedding(encoding_format="hex")),
    "dimensions that are a word": (EMBEDDING, embedding(dimensions="all")),
    "a model without embeddings": (EMBEDDING, embedding(model="python_model")),
}
#: Requests for responses that are refused.
ANSWERS: dict[str, dict[str, Any]] = {
    "no input of a response": {"model": "vllm_model"},
    "no model of a response": {"input": "a"},
    "an unknown model of a response": response(model="other"),
    "an unknown member of a response": response(messages=[]),
    "an input that is a number": response(input=7),
    "no items": items(),
    "an item that is a text": items("a"),
    "a message without a role": items({"content": "a"}),
    "a message of a tool": items({"role": "tool", "content": "a"}),
    "a message without content": items({"role": "user"}),
    "content that is an object": items({"role": "user", "content": {"text": "a"}}),
    "a part that is an image": items({"role": "user", "content": [IMAGE]}),
    "a part without text": items({"role": "user", "content": [{"type": "input_text"}]}),
    "a call without arguments": items({"type": "function_call", "call_id": "1", "name": "f"}),
    "an output without a call": items({"type": "function_call_output", "output": "a"}),
    "an item that is stored": items({"type": "item_reference", "id": "msg_1"}),
    "an item of reasoning": items({"type": "reasoning", "id": "rs_1", "summary": []}),
    "many items": items(*[USER] * 20_000),
    "a response that is stored": response(store=True),
    "a response in the background": response(background=True),
    "a response to another": response(previous_response_id="resp_1"),
    "a conversation": response(conversation={"id": "conv_1"}),
    "a search of the web": response(tools=[{"type": "web_search"}]),
    "a tool of a response without a name": response(tools=[{"type": "function"}]),
    "a tool in the form of chats": response(tools=[TOOL]),
    "parameters that are a list": response(tools=[{**FUNCTION, "type": "function", "parameters": []}]),
    "a choice without tools": response(tool_choice="required"),
    "a choice of an unknown tool": response(tool_choice={"type": "function", "name": "g"}),
    "a form of a text that is unknown": response(text={"format": {"type": "grammar"}}),
    "a schema that is missing": response(text={"format": {"type": "json_schema", "name": "n"}}),
    "a text that is a word": response(text="json"),
    "no tokens": response(max_output_tokens=0),
    "a temperature of a response that is too high": response(temperature=3),
    "metadata that are numbers": response(metadata={"a": 1}),
    "instructions that are a list": response(instructions=[USER]),
    "an effort": response(reasoning={"effort": "high"}),
    "a template of a response that loops": response(input="loop"),
}


@pytest.fixture(scope="module")
def door(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """An endpoint whose template has loops."""
    folder = tmp_path_factory.mktemp("bad_input")
    template = folder / "loops.jinja"
    template.write_text(TEMPLATE)
    with open_door(start_server, folder, f"--chat-template={template}") as running:
        yield running


def requests() -> Iterator[tuple[str, str, bytes]]:
    """The name, the path and the body of each request."""
    for name, (path, body) in BODIES.items():
        yield name, path, body
    for name, document in CHATS.items():
        yield name, CHAT, json.dumps(document).encode()
    for name, document in ANSWERS.items():
        yield name, RESPONSES, json.dumps(document).encode()
    for name, (path, document) in OTHERS.items():
        yield name, path, json.dumps(document).encode()


def fault(status: int, document: Any) -> str:
    """The fault of a refusal; empty if the refusal has Triton's or OpenAI's form."""
    detail, error = document.get("detail"), document.get("error")
    if status == 422 and isinstance(detail, list) and detail:
        missing = [one for one in detail if not {"type", "loc", "msg"} <= set(one)]
        return f"{missing}" if missing else ""
    if status == 400 and isinstance(detail, str) and detail:
        return ""
    if status == 400 and isinstance(error, dict) and error.get("message"):
        return ""
    return f"{status}: {str(document)[:200]}"


# row: OAI-02
def test_malformed_requests_are_refused(door: Door) -> None:
    """At least 80 requests get 400 or 422, and a good request after each gets its response."""
    faults = {}
    count = 0
    for name, path, body in requests():
        reply = door.send("POST", path, body, Content_Type="application/json")
        found = fault(reply.status, reply.json())
        good = door.post(TEXT, text(prompt="a b"))
        if good.status != 200 or good.json()["choices"][0]["text"] != "a b":
            found += f" then {good.status}: {good.body[:200]!r}"
        if found:
            faults[name] = found
        count += 1
    assert not faults
    assert count >= 80
