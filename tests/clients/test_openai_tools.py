"""Tests of tool calls in the texts of models, with the official client of OpenAI."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from openai_door import CHAT, Door, chat, events, open_door
from server import wait_until

pytestmark = pytest.mark.galatea_only

Start = Callable[..., Any]

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "get_time")
]
#: A text with two calls in each format. The model sends the words between spaces one by one, and
#: drops the spaces.
TEXTS = {
    "llama3": (
        '{"name": "get_weather", "parameters": {"city": "Dallas", "days": [1, 2]}};\n'
        '{"name": "get_time", "parameters": {"zone": "é"}}'
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Dallas", "days": [1, 2]}}, '
        '{"name": "get_time", "arguments": {"zone": "é"}}]'
    ),
    "hermes": (
        '<tool_call> {"name": "get_weather", "arguments": {"city": "Dallas", "days": [1, 2]}} '
        '</tool_call> <tool_ call>{"name": "get_time", "arguments": {"zone": "é"}} </tool_call>'
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜>get_ weather<｜tool▁sep｜> "
        '{"city": "Dallas", "days": [1, 2]} <｜tool▁call▁end｜> '
        '<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{"zone": "é"}<｜tool▁call▁end｜>'
    ),
    "openai": (
        "<|channel|>analysis<|message|>Think. <|end|> <|start|>assistant<|channel|>commentary "
        'to=functions.get_weather<|message|>{"city": "Dallas", "days": [1, 2]} <|call|> '
        '<|channel|>commentary to=functions.get_time<|message|>{"zone": "é"}<|call|>'
    ),
    "pythonic": "[get_weather(city='Dallas', days=[1, 2]), get_time(zone='é')]",
}
CALLS = [("get_weather", {"city": "Dallas", "days": [1, 2]}), ("get_time", {"zone": "é"})]


def serve(start_server: Start, folder: pathlib.Path, name: str, *flags: str) -> Any:
    """A server that parses calls in this format."""
    return open_door(start_server, folder, f"--tool-call-parser={name}", *flags)


def streamed(door: Door, text: str) -> tuple[list[Any], str, str]:
    """The calls, the text and the reason in the stream of a chat with tools."""
    messages = [{"role": "user", "content": text}]
    stream = door.client().chat.completions.create(
        model="vllm_model", messages=messages, tools=TOOLS, stream=True
    )
    calls: list[Any] = []
    content, reasons = "", []
    for chunk in stream:
        [choice] = chunk.choices
        content += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or []:
            if call.function.name:
                assert call.index == len(calls)
                calls.append([call.id, call.function.name, ""])
            if call.function.arguments:
                calls[call.index][2] += call.function.arguments
    assert reasons[:-1] == [None] * len(reasons[:-1])
    return calls, content, reasons[-1]


@pytest.mark.parametrize("name", ["hermes", "deepseek_v3", "openai", "pythonic"])
# row: OAI-07
def test_calls_are_found(start_server: Start, tmp_path: pathlib.Path, name: str) -> None:
    """The calls of a stream have the arguments of the text."""
    with serve(start_server, tmp_path, name) as door:
        calls, content, reason = streamed(door, TEXTS[name])
        found = [(function, json.loads(arguments)) for _, function, arguments in calls]
        assert (found, content, reason) == (CALLS, "", "tool_calls")
        assert len({call_id for call_id, _, _ in calls}) == 2


@pytest.mark.parametrize("name", ["llama3", "mistral"])
# row: OAI-07
def test_calls_are_those_of_triton(start_server: Start, tmp_path: pathlib.Path, name: str) -> None:
    """Whole texts and streams of Triton's formats, and texts without calls."""
    with serve(start_server, tmp_path, name) as door:
        body = chat(TEXTS[name], tools=TOOLS)
        [choice] = door.post(CHAT, body).json()["choices"]
        calls = choice["message"]["tool_calls"]
        functions = [call["function"] for call in calls]
        found = [(one["name"], json.loads(one["arguments"])) for one in functions]
        assert (found, choice["message"]["content"]) == (CALLS, "")
        assert choice["finish_reason"] == "tool_calls"
        ids = [call["id"] for call in calls]
        assert len(set(ids)) == 2
        assert all(len(one) == 9 if name == "mistral" else one.startswith("cmpl-") for one in ids)
        streams, content, reason = streamed(door, TEXTS[name])
        assert [function for _, function, _ in streams] == [function for function, _ in CALLS]
        assert (content, reason) == ("", "tool_calls")
        # Without tools, and with tools that the model may not call, the text is the message.
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            [choice] = door.post(CHAT, chat(TEXTS[name], **more)).json()["choices"]
            assert choice["message"]["content"] == TEXTS[name]
            assert choice["message"]["tool_calls"] is None
        calls, content, reason = streamed(door, "no call at all")
        assert (calls, content, reason) == ([], "nocallatall", "stop")


# row: OAI-07
def test_a_long_text_is_cut_off(start_server: Start, tmp_path: pathlib.Path) -> None:
    """The stream ends in the form of Triton, and the model is cancelled."""
    with serve(start_server, tmp_path, "mistral", "--max-tool-call-parse-bytes=5") as door:
        options = {"include_usage": True}
        body = chat("!wait", tools=TOOLS, stream=True, stream_options=options)
        *chunks, done = events(door.post(CHAT, body).body)
        assert done == "[DONE]"
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        expected = {"delta": {"content": ""}, "logprobs": None, "finish_reason": "length"}
        assert choices[1:] == [{**expected, "index": 0}]
        assert chunks[-1]["usage"]["completion_tokens"] == 1
        wait_until(lambda: door.seen()[-1] == {"cancelled": True}, 30, "the model is cancelled")
        # A text without tools has no limit.
        [choice] = door.post(CHAT, chat("a long text")).json()["choices"]
        assert choice["message"]["content"] == "a long text"
