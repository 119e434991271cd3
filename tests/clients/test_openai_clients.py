"""Tests of other programs' clients for OpenAI, unmodified: the official library for Node.js,
LangChain, and genai-perf."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import perf_tools
from openai_door import Door, open_door
from server import wait_until
from test_genai_perf import REQUESTS, report, write_tokenizer

pytestmark = pytest.mark.galatea_only

NODE = pathlib.Path(__file__).with_name("node_openai_client.js")
SECONDS_MAX = 60

#: Chats as a program with LangChain does. LangChain sends each text to complete as a list, which
#: Triton's frontend refuses.
LANGCHAIN_CLIENT = """
import asyncio, json, sys
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

place = {"base_url": sys.argv[1], "api_key": "none", "model": "vllm_model", "max_retries": 0}
chat = ChatOpenAI(**place, temperature=0.5, max_tokens=9)
messages = [SystemMessage("a "), HumanMessage("b c")]


async def later():
    reply = await chat.ainvoke(messages)
    return [reply.content, [piece.content async for piece in chat.astream(messages) if piece.content]]


reply = chat.invoke(messages)
print(json.dumps({
    "chat": [reply.content, reply.usage_metadata["total_tokens"]],
    "stream": [piece.content for piece in chat.stream(messages) if piece.content],
    "later": asyncio.run(later()),
}))
"""


@pytest.fixture(scope="module")
def door(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """An endpoint whose models repeat their prompts."""
    with open_door(start_server, tmp_path_factory.mktemp("clients")) as running:
        yield running


def url(door: Door) -> str:
    """The address that clients get."""
    return f"http://127.0.0.1:{door.port}/v1"


def output(command: list[Any], **variables: str) -> str:
    """What a program prints."""
    result = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert result.returncode == 0, result
    return result.stdout


# row: OAI-01 OAI-03
def test_the_client_for_node(door: Door) -> None:
    """All endpoints, streams, a refusal, and a stream that the client leaves."""
    node, modules = shutil.which("node"), os.environ.get("GALATEA_NODE_MODULES", "")
    if node is None or not (pathlib.Path(modules) / "openai").is_dir():
        pytest.skip("Node.js is missing, or GALATEA_NODE_MODULES with its package openai")
    assert json.loads(output([node, NODE, url(door)], NODE_PATH=modules)) == {
        "models": ["python_model", "vllm_model"],
        "chat": "a b c",
        "text": "d e",
        "embedding": [0.5, -1.25],
        "refused": ["BadRequestError", 400],
        "streamed": {"text": "abc", "pieces": 4, "tokens": 6},
        "left": "waiting",
    }
    wait_until(lambda: door.seen()[-1] == {"cancelled": True}, 30, "the model is cancelled")


# row: OAI-01 OAI-03
def test_langchain(door: Door, tmp_path: pathlib.Path) -> None:
    """Chats, synchronous, asynchronous and streamed."""
    python = os.environ.get("GALATEA_LANGCHAIN_PYTHON")
    if python is None:
        pytest.skip("GALATEA_LANGCHAIN_PYTHON names no Python with langchain-openai")
    script = tmp_path / "client.py"
    script.write_text(LANGCHAIN_CLIENT)
    assert json.loads(output([python, script, url(door)])) == {
        "chat": ["a b c", 6],
        "stream": ["a", "b", "c"],
        "later": ["a b c", ["a", "b", "c"]],
    }


# row: DEP-04
def test_genai_perf(door: Door, tmp_path: pathlib.Path) -> None:
    """The tool finds all requests, and measures first tokens.

    For completions, it sends each prompt as a list, which Triton's frontend refuses.
    """
    generator = perf_tools.find("genai-perf", "GALATEA_GENAI_PERF")
    analyzer = perf_tools.perf_analyzer()
    command: list[str | pathlib.Path] = [generator, "profile", "-m", "vllm_model"]
    command += ["--endpoint-type", "chat", "--streaming", "-u", f"localhost:{door.port}"]
    command += ["--tokenizer", str(write_tokenizer(tmp_path / "tokenizer"))]
    command += ["--synthetic-input-tokens-mean", "20", "--num-prompts", "5"]
    command += ["--concurrency", "2", "--request-count", str(REQUESTS)]
    command += ["--artifact-dir", str(tmp_path / "report")]
    variables = {**perf_tools.environment(analyzer), "HF_HUB_OFFLINE": "1"}
    result = perf_tools.run(command, variables, tmp_path)
    assert result.returncode == 0, result
    found = report(tmp_path / "report")
    assert found["request_count"]["avg"] == REQUESTS
    assert found["time_to_first_token"]["avg"] > 0
    assert found["output_sequence_length"]["min"] >= 1
