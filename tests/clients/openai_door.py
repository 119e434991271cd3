"""The OpenAI endpoint with models that stand in for language models."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from typing import Any

import openai

from python_backend import MODELS, interpreter_flag
from server import START_SECONDS_MAX, Reply, Server, free_ports, wait_until

#: Each message's text, one after the other.
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
CHAT, TEXT, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES = "/v1/responses"
JSON = {"Content-Type": "application/json"}


class Door:
    """A server with the endpoint."""

    def __init__(self, server: Server, port: int, repository: pathlib.Path) -> None:
        self.server = server
        self.port = port
        self.repository = repository

    def is_open(self) -> bool:
        """True if the endpoint accepts connections."""
        try:
            self.socket().close()
        except ConnectionRefusedError:
            return False
        return True

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client, without retries."""
        url = f"http://127.0.0.1:{self.port}/v1"
        return openai.OpenAI(base_url=url, api_key="none", max_retries=0, **options)

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """Sends one request. Underscores in header names stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.server.request(method, path, body, named, port=self.port)

    def post(self, path: str, document: Any, **headers: str) -> Reply:
        """Sends a document."""
        body = json.dumps(document).encode()
        return self.send("POST", path, body, **{**JSON, **headers})

    def socket(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def seen(self, model: str = "vllm_model") -> list[Any]:
        """The sampling parameters that a model received, and whether it was cancelled."""
        file = self.repository / model / "seen.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def write_models(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A repository with a model for a backend called vllm and a Python model, and their
    backends."""
    backends, repository = folder / "backends", folder / "models"
    shutil.copytree(MODELS / "vllm_words", backends / "vllm")
    for name, config in [
        ("vllm_model", 'backend: "vllm"\ninstance_group { count: 4 kind: KIND_MODEL }\n'),
        ("python_model", 'backend: "python"\n'),
    ]:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    (repository / "vllm_model" / "1" / "model.json").write_text("{}")
    shutil.copy(MODELS / "vllm_words" / "model.py", repository / "python_model" / "1")
    return backends, repository


@contextlib.contextmanager
def open_door(
    start_server: Callable[..., Any], folder: pathlib.Path, *flags: str, **options: Any
) -> Iterator[Door]:
    """Starts a server with the endpoint."""
    backends, repository = write_models(folder)
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    [port] = free_ports(1)
    common = (
        f"--backend-directory={backends}",
        interpreter_flag(),
        f"--openai-port={port}",
        f"--chat-template={template}",
    )
    with start_server(repository, *common, *flags, **options) as server:
        door = Door(server.wait_until_ready(), port, repository)
        wait_until(door.is_open, START_SECONDS_MAX, "the endpoint is open")
        yield door
    assert server.process.returncode == 0


def chat(text: str = "a b c", model: str = "vllm_model", **more: Any) -> dict[str, Any]:
    """A chat with one message."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def events(body: bytes) -> list[Any]:
    """The documents in a stream, and the word at its end."""
    lines = [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def without_times(text: str) -> str:
    """A response without its identifier and time."""
    text = re.sub(r"cmpl-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    return re.sub(r'"created":\d+', '"created":0', text)
