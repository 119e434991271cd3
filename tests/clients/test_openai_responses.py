"""Tests of the Responses API with the official client: texts, events, tools, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from openai_door import RESPONSES, Door, chat, open_door
from server import wait_until

pytestmark = pytest.mark.galatea_only

MODEL = "vllm_model"
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": name,
        "description": f"Does {name}.",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    }
    for name in ("get_weather", "get_time")
]
#: Two calls. The model sends the words between spaces one by one, and drops the spaces.
CALLS = {
    "hermes": (
        'Well <tool_call> {"name": "get_weather", "arguments": {"city": "Dallas"}} </tool_call> '
        '<tool_call>{"name": "get_time", "arguments": {"zone": "é"}} </tool_call>'
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Dallas"}}, '
        '{"name": "get_time", "arguments": {"zone": "é"}}]'
    ),
}


@pytest.fixture(scope="module")
def door(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """An endpoint that parses calls, and counts the tokens."""
    folder = tmp_path_factory.mktemp("responses")
    flags = ("--tool-call-parser=hermes", "--lora-separator=_lora_")
    with open_door(start_server, folder, *flags) as running:
        yield running


def body(**more: Any) -> dict[str, Any]:
    """A request."""
    return {"model": MODEL, "input": "a b c", **more}


# row: OAI-01
def test_the_official_client_creates_responses(door: Door) -> None:
    """A text, the token counts, and the members of the request."""
    client = door.client()
    response = client.responses.create(
        model=MODEL, input="a b c", temperature=0.5, metadata={"k": "v"}, max_output_tokens=9
    )
    assert (response.output_text, response.status, response.object) == (
        "a b c",
        "completed",
        "response",
    )
    assert (response.error, response.incomplete_details) == (None, None)
    assert re.fullmatch("resp_[0-9a-f]{32}", response.id)
    assert (response.model, response.metadata) == (MODEL, {"k": "v"})
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.5, 1.0, 9)
    assert (response.tools, response.tool_choice) == ([], "auto")
    assert response.text.format.type == "text"
    assert response.previous_response_id is None
    assert response.to_dict()["store"] is False
    [message] = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert message.content[0].type == "output_text"
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 3)
    assert response.usage.total_tokens == 6
    sent = door.seen()[-1]
    assert (sent["temperature"], sent["max_tokens"]) == (0.5, 9)
    client.responses.create(model=MODEL, input="a")
    sent = door.seen()[-1]
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (1.0, 1.0, 16)


# row: OAI-01
def test_a_conversation_becomes_a_prompt(door: Door) -> None:
    """Instructions come first. Outputs of an earlier response can be sent back."""
    client = door.client()
    first = client.responses.create(model=MODEL, input="one ")
    items: Any = [
        {"role": "developer", "content": "two "},
        {"role": "user", "content": [{"type": "input_text", "text": "three "}]},
        *[item.to_dict() for item in first.output],
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "four"},
    ]
    response = client.responses.create(model=MODEL, input=items, instructions="zero ")
    # The call is part of the message before it, which the template writes without calls.
    assert response.output_text == "zero two three one four"
    assert response.instructions == "zero "


# row: OAI-01 OAI-03
def test_the_official_client_streams(door: Door) -> None:
    """Typed events with consecutive numbers, whose text is that of the final response."""
    stream = door.client().responses.create(model=MODEL, input="a b c", stream=True)
    events = list(stream)
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].response.status == events[1].response.status == "in_progress"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["a", "b", "c"]
    final = events[-1].response
    assert (final.output_text, final.status, final.usage.total_tokens) == ("abc", "completed", 6)
    assert final.output[0] == events[-2].item
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {final.output[0].id}
    raw = door.post(RESPONSES, body(stream=True))
    assert raw.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    first, *_ = raw.body.decode().split("\n\n")
    name, data = first.split("\n")
    assert name == "event: response.created"
    assert json.loads(data.removeprefix("data: "))["type"] == "response.created"
    assert b"[DONE]" not in raw.body


# row: OAI-03
def test_the_clients_of_streams(door: Door) -> None:
    """The helper that accumulates events, and many asynchronous streams at once."""
    with door.client().responses.stream(model=MODEL, input="a b c") as stream:
        snapshots = [one.snapshot for one in stream if one.type == "response.output_text.delta"]
        assert snapshots == ["a", "ab", "abc"]
        assert stream.get_final_response().output_text == "abc"

    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        async with client.responses.stream(model=MODEL, input=f"{number} x") as events:
            async for _ in events:
                pass
            return (await events.get_final_response()).output_text

    async def everything() -> list[str]:
        url = f"http://127.0.0.1:{door.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            whole = await client.responses.create(model=MODEL, input="w")
            assert whole.output_text == "w"
            return await asyncio.gather(*(one(client, number) for number in range(16)))

    assert asyncio.run(everything()) == [f"{number}x" for number in range(16)]


def called(response: Any) -> list[tuple[str, Any]]:
    """The calls in the output of a response."""
    calls = [item for item in response.output if item.type == "function_call"]
    assert all(call.status == "completed" for call in calls)
    assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == len(calls)
    return [(call.name, json.loads(call.arguments)) for call in calls]


FOUND = [("get_weather", {"city": "Dallas"}), ("get_time", {"zone": "é"})]


# row: OAI-07
def test_calls_are_found(door: Door) -> None:
    """In a document and in a stream, after a text for the user."""
    client = door.client()
    whole = client.responses.create(model=MODEL, input=CALLS["hermes"], tools=TOOLS)
    assert (called(whole), whole.output_text.strip()) == (FOUND, "Well")
    assert [tool.name for tool in whole.tools] == ["get_weather", "get_time"]
    with client.responses.stream(model=MODEL, input=CALLS["hermes"], tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert (called(final), final.output_text) == (FOUND, "Well")
    done = [one for one in events if one.type == "response.function_call_arguments.done"]
    assert [json.loads(one.arguments) for one in done] == [arguments for _, arguments in FOUND]
    for one in done:
        deltas = [
            event.delta
            for event in events
            if event.type == "response.function_call_arguments.delta"
            and event.output_index == one.output_index
        ]
        assert "".join(deltas) == one.arguments
    added = [one.output_index for one in events if one.type == "response.output_item.added"]
    assert added == [0, 1, 2]


# row: OAI-07
def test_the_calls_of_tritons_parsers(
    start_server: Callable[..., Any], tmp_path: Any
) -> None:
    """No argument is repeated in a stream."""
    with open_door(start_server, tmp_path, "--tool-call-parser=mistral") as door:
        client = door.client()
        with client.responses.stream(model=MODEL, input=CALLS["mistral"], tools=TOOLS) as stream:
            for _ in stream:
                pass
            assert called(stream.get_final_response()) == FOUND
        whole = client.responses.create(model=MODEL, input=CALLS["mistral"], tools=TOOLS)
        assert called(whole) == FOUND
        text = client.responses.create(model=MODEL, input="no call", tools=TOOLS, stream=True)
        assert [one.delta for one in text if one.type == "response.output_text.delta"] == ["nocall"]


# row: OAI-07
def test_a_tool_that_the_client_chooses(door: Door) -> None:
    """The text becomes the arguments, and the model gets the schema."""
    client = door.client()
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        choose: Any = {"tools": TOOLS, "tool_choice": choice}
        whole = client.responses.create(model=MODEL, input='{"city":1}', **choose)
        assert called(whole) == [("get_weather", {"city": 1})]
        assert "structured_outputs" in door.seen()[-1]
        events = list(
            client.responses.create(model=MODEL, input='{"city": 1}', stream=True, **choose)
        )
        assert called(events[-1].response) == [("get_weather", {"city": 1})]
        deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        assert deltas == ['{"city":', "1}"]


# row: OAI-07
def test_the_form_of_the_text(door: Door) -> None:
    """The model gets it as for chats."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    formats: list[tuple[Any, Any]] = [
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_schema", "name": "n", "schema": schema, "strict": True}, None),
        ({"type": "text"}, {}),
    ]
    for form, expected in formats:
        response = door.client().responses.create(
            model=MODEL, input="{}", text={"format": form, "verbosity": "medium"}
        )
        assert response.to_dict()["text"]["format"] == form
        sent = json.loads(door.seen()[-1].get("structured_outputs", "{}"))
        assert sent == expected or json.loads(sent["json"]) == schema
    refused = door.post(
        RESPONSES,
        {"model": "python_model", "input": "x", "text": {"format": formats[1][0]}},
    )
    assert_refused(refused, "text.format")


def assert_refused(reply: Any, param: str | None) -> str:
    """Checks that an error has the form of OpenAI, and returns its text."""
    assert reply.status == 400, reply
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    return error["message"]


# row: OAI-01
def test_state_and_built_in_tools_are_refused(door: Door) -> None:
    """The error names the field."""
    refused: list[tuple[dict[str, Any], str]] = [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [*TOOLS, {"type": "web_search"}]}, "tools[2].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ]
    for more, param in refused:
        assert f"'{param}" in assert_refused(door.post(RESPONSES, body(**more)), param) or (
            param == "tool_choice"
        )
    with pytest.raises(openai.BadRequestError) as error:
        door.client().responses.create(model=MODEL, input="x", store=True)
    assert error.value.param == "store"
    assert "responses are not stored" in error.value.message
    with pytest.raises(openai.NotFoundError):
        door.client().responses.retrieve("resp_1")


# row: OAI-01
def test_values_that_change_nothing_are_accepted(door: Door) -> None:
    """These are the values of what the server does anyway."""
    reply = door.post(
        RESPONSES,
        body(
            store=False,
            background=False,
            previous_response_id=None,
            truncation="disabled",
            service_tier="auto",
            reasoning={"effort": None},
            include=["reasoning.encrypted_content"],
            stream_options={"include_obfuscation": False},
            parallel_tool_calls=True,
            prompt_cache_key="key",
            tools=[],
        ),
    )
    assert reply.status == 200, reply
    assert reply.json()["prompt_cache_key"] == "key"


# row: OAI-01
def test_errors_of_models(door: Door) -> None:
    """Before the first event they have a status. After that, the response fails."""
    for stream in (False, True):
        reply = door.post(RESPONSES, body(input="!fail", stream=stream))
        error = {"message": "the engine failed", "type": "server_error", "code": None}
        assert (reply.status, reply.json()) == (500, {"error": error})
    events = list(door.client().responses.create(model=MODEL, input="a !fail", stream=True))
    failed = events[-1]
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert failed.response.error.message == "the engine failed"
    assert failed.response.output[0].content[0].text == "a"
    unknown = door.post(RESPONSES, {"model": "other", "input": "x"})
    assert assert_refused(unknown, None) == "Unknown model: other"


# row: OAI-03
def test_a_client_that_leaves_cancels(door: Door) -> None:
    """In the middle of a stream."""
    with door.client().responses.create(model=MODEL, input="!wait", stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    wait_until(lambda: door.seen()[-1] == {"cancelled": True}, 30, "the model is cancelled")


# row: OAI-06
def test_the_endpoint_belongs_to_inference(
    start_server: Callable[..., Any], tmp_path: Any
) -> None:
    """Its rules, its counts of tokens, and the HTTP port."""
    flags = ("--openai-restricted-api=inference:key=value", "--openai-on-http-port=true")
    with open_door(start_server, tmp_path, *flags) as door:
        assert door.post(RESPONSES, body()).status == 401
        for port in (door.port, None):
            request = json.dumps(body()).encode()
            headers = {"Content-Type": "application/json", "key": "value"}
            reply = door.server.request("POST", RESPONSES, request, headers, port=port)
            assert reply.status == 200
        explained = door.post(RESPONSES, body(), key="value", triton_explain="1")
        assert "triton-explain" in explained.headers
        metrics = door.send("GET", "/metrics").body.decode()
        assert f'galatea_openai_tokens_total{{model="{MODEL}"}} 9' in metrics
        assert door.post("/v1/chat/completions", chat(), key="value").status == 200
