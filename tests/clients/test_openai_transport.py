"""Tests of the OpenAI endpoint's TLS, traces and explanations."""

from __future__ import annotations

import json
import pathlib
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest

from openai_door import CHAT, EMBEDDING, TEMPLATE, TEXT, chat, open_door, write_models
from python_backend import interpreter_flag
from server import free_ports
from test_tracing import DOOR_POINTS, SERVER_POINTS, flags, subject, traces_of
from tls_clients import connect, context, wait_until_open
from tls_files import Authority

pytestmark = pytest.mark.galatea_only

MODEL = "vllm_model"
USER: Any = {"role": "user", "content": "a b"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of servers and clients."""
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


def serve(
    start_server: Callable[..., Any], folder: pathlib.Path, *more: str
) -> tuple[Any, int]:
    """A server with the endpoint, and the endpoint's port. HTTP has a port of its own."""
    backends, repository = write_models(folder)
    (folder / "template.jinja").write_text(TEMPLATE)
    [port] = free_ports(1)
    server = start_server(
        repository,
        f"--backend-directory={backends}",
        interpreter_flag(),
        f"--openai-port={port}",
        f"--chat-template={folder / 'template.jinja'}",
        *more,
    )
    return server, port


def client(port: int, settings: ssl.SSLContext) -> openai.OpenAI:
    """The official client with these TLS settings."""
    return openai.OpenAI(
        base_url=f"https://localhost:{port}/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx2.Client(verify=settings),
    )


@pytest.fixture(name="secured")
def fixture_secured(
    start_server: Callable[..., Any], tmp_path: pathlib.Path, authority: Authority
) -> Iterator[int]:
    """The port of an endpoint on a server whose HTTP endpoint uses TLS."""
    identity = authority.issue("server")
    server, port = serve(start_server, tmp_path, *identity.flags("http"))
    with server as running:
        wait_until_open(running)
        yield port


# row: OAI-01 SEC-03
def test_the_endpoint_uses_the_certificates_of_http(secured: int, authority: Authority) -> None:
    """Documents and streams. A client without TLS is told so."""
    official = client(secured, context(authority.file))
    reply = official.chat.completions.create(model=MODEL, messages=[USER])
    assert reply.choices[0].message.content == "a b"
    stream = official.chat.completions.create(model=MODEL, messages=[USER], stream=True)
    assert [chunk.choices[0].delta.content for chunk in stream] == ["", "a", "b"]
    plain = httpx2.get(f"http://127.0.0.1:{secured}/v1/models")
    assert (plain.status_code, "HTTPS" in plain.text) == (400, True)
    with pytest.raises(openai.APIConnectionError):
        client(secured, ssl.create_default_context()).models.list()


# row: OAI-01 SEC-03
def test_the_endpoint_requires_the_certificates_of_clients(
    start_server: Callable[..., Any], tmp_path: pathlib.Path, authority: Authority
) -> None:
    """If the HTTP endpoint does."""
    identity = authority.issue("server")
    mutual = ("--http-use-ssl-mutual=true", f"--http-root-cert={authority.file}")
    server, port = serve(start_server, tmp_path, *identity.flags("http"), *mutual)
    with server as running:
        wait_until_open(running)
        known = client(port, context(authority.file, authority.issue("client")))
        assert len(list(known.models.list())) == 2
        with pytest.raises((ssl.SSLError, OSError)), connect(
            port, context(authority.file)
        ) as stream:
            stream.sendall(b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
            assert stream.recv(1)


# row: OAI-01 OTEL-03
def test_requests_are_traced(start_server: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    """Each request for a text or an embedding has a trace with the points of the HTTP endpoint."""
    file = tmp_path / "traces.json"
    requests = [
        (CHAT, chat("a b"), 1),
        (CHAT, chat("a b c", stream=True), 3),
        (TEXT, {"model": MODEL, "prompt": "a b", "stream": True}, 2),
        (EMBEDDING, {"model": MODEL, "input": "a"}, 1),
    ]
    with open_door(start_server, tmp_path, *flags(file)) as door:
        for path, document, _ in requests:
            assert door.post(path, document).status == 200
        # These requests reach no model.
        assert door.post(CHAT, chat(model="other")).status == 400
        assert door.send("GET", "/v1/models").status == 200
    traces = traces_of(file)
    assert len(traces) == len(requests)
    for entries, (path, _, responses) in zip(traces.values(), requests, strict=True):
        assert subject(entries)["model_name"] == MODEL
        stamps = [stamp["name"] for entry in entries for stamp in entry.get("timestamps", [])]
        assert {*DOOR_POINTS["http"], *SERVER_POINTS} <= set(stamps), path
        assert stamps.count("INFER_RESPONSE_COMPLETE") >= responses, path


# row: OAI-01
def test_requests_are_explained(start_server: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    """The header has the parts of the time; without the client's header, there is none."""
    with open_door(start_server, tmp_path) as door:
        for path, document in [
            (CHAT, chat("a b")),
            (CHAT, chat("a b", stream=True)),
            (TEXT, {"model": MODEL, "prompt": "a"}),
            (EMBEDDING, {"model": MODEL, "input": "a"}),
        ]:
            explained = door.post(path, document, triton_explain="1")
            assert explained.status == 200
            assert json.loads(explained.headers["triton-explain"]), path
            assert door.post(path, document).headers["triton-explain"] is None
