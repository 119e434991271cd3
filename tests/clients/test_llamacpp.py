"""Language models in GGUF files with llama.cpp itself.

Skipped unless GALATEA_LLAMACPP_PYTHON names an interpreter with the package `xllamacpp`, and
GALATEA_TEST_GGUF a model with a chat template.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openai_door import CHAT, EMBEDDING, TEXT, Door, chat, events
from python_backend import workers
from server import REQUEST_SECONDS_MAX, START_SECONDS_MAX, Server, free_ports, wait_until
from test_generation import EMBED, Client, generate, metric, parameter, wait_until_idle

PYTHON = os.environ.get("GALATEA_LLAMACPP_PYTHON", "")
MODEL = os.environ.get("GALATEA_TEST_GGUF", "")

pytestmark = [
    pytest.mark.galatea_only,
    pytest.mark.skipif(
        not PYTHON or not MODEL,
        reason="needs xllamacpp in GALATEA_LLAMACPP_PYTHON and a model in GALATEA_TEST_GGUF",
    ),
]
#: The prompts of the tests are shorter.
SMALL = parameter("n_ctx", "512") + parameter("threads", "1")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}


def write(repository: pathlib.Path, name: str, config: str) -> pathlib.Path:
    """Writes a model with the file."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(config)
    (version / "model.gguf").symlink_to(MODEL)
    return version / "model.gguf"


@pytest.fixture(scope="module")
def door(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """A server with the model, as it is and for embeddings."""
    repository = tmp_path_factory.mktemp("llamacpp") / "models"
    write(repository, "words", SMALL + "instance_group { count: 2 }\n")
    write(repository, "vectors", SMALL + EMBED + parameter("pooling", "mean"))
    [port] = free_ports(1)
    flags = (f"--backend-config=llamacpp,interpreter={PYTHON}", f"--openai-port={port}")
    with start_server(repository, *flags) as server:
        running = Door(server.wait_until_ready(), port, repository)
        wait_until(running.is_open, START_SECONDS_MAX, "the endpoint is open")
        yield running
    assert server.process.returncode == 0


def test_a_chat(door: Door) -> None:
    """The model's template writes the prompt, and the usage is that of llama.cpp."""
    asked = chat("Say hello.", "words", max_tokens=8, temperature=0)
    reply = door.post(CHAT, asked).json()
    text = reply["choices"][0]["message"]["content"]
    assert text.strip() and "<|" not in text
    assert reply["usage"]["completion_tokens"] <= 8
    stream = events(door.post(CHAT, {**asked, "stream": True}).body)
    texts = [one["choices"][0]["delta"]["content"] for one in stream[:-1]]
    assert "".join(texts) == text


def test_a_schema_and_a_grammar(door: Door) -> None:
    """The text matches."""
    given: dict[str, Any] = {"max_tokens": 100, "temperature": 0}
    text = generate(door, "JSON:", json_schema=json.dumps(SCHEMA), **given).json()["text_output"]
    assert json.loads(text)["a"] in ("x", "y")
    outputs = json.dumps({"structured_outputs": {"choice": ["yes", "no"]}})
    text = generate(door, "Is it?", sampling_parameters=outputs, **given).json()["text_output"]
    assert text in ("yes", "no")
    assert generate(door, "a", grammar="nonsense").status == 400
    assert generate(door, "a " * 2000).status == 400


def test_a_prompt_is_kept(door: Door) -> None:
    """The second time, it is computed no more."""
    prompt = "one two three four five six seven eight nine ten " * 4
    for _ in range(3):
        assert generate(door, prompt, max_tokens=1).status == 200
    wait_until_idle(door.server)
    assert metric(door.server, "cached_prompt_tokens_total") > 0


def test_clients_that_leave(door: Door) -> None:
    """Their slots are free again."""
    for _ in range(10):
        clients = [Client(door, words="Once upon a time") for _ in range(4)]
        for client in clients[:2]:
            assert "text" in client.read_token()
        for client in clients:
            client.leave()
    wait_until_idle(door.server)
    assert generate(door, "a", max_tokens=1).status == 200


def test_embeddings(door: Door) -> None:
    """Equal texts have equal embeddings, of length 1."""
    asked = {"model": "vectors", "encoding_format": "float"}
    found = [
        door.post(EMBEDDING, {**asked, "input": text}).json()["data"][0]["embedding"]
        for text in ("a cat", "a cat", "a ship at sea")
    ]
    assert found[0] == found[1] != found[2]
    assert abs(sum(one * one for one in found[0]) - 1) < 1e-3


def test_the_engine_opens_no_port(door: Door) -> None:
    """llama.cpp's own server has an address that is removed at once."""
    for number in workers(door.server):
        process = pathlib.Path(f"/proc/{number}")
        ports = {
            line.split()[9]
            for kind in ("tcp", "tcp6")
            for line in (process / "net" / kind).read_text().splitlines()[1:]
        }
        own = set()
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                own.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
        assert not ports & own
        # The server exists, and no other process can connect to it.
        lines = (process / "net" / "unix").read_text().splitlines()[1:]
        paths = [line.split()[7] for line in lines if line.split()[6] in own and "/" in line]
        assert [pathlib.Path(path).name for path in paths] == ["llama.sock"]
        assert not pathlib.Path(paths[0]).exists()


def test_damaged_models(start_server: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    """Whatever llama.cpp does with them, the server goes on."""
    repository = tmp_path / "models"
    data = pathlib.Path(MODEL).read_bytes()
    for name, damaged in {
        "short": data[: len(data) // 2],
        "architecture": data.replace(b"llama", b"lambs", 1),
        "dimension": data.replace(b"token_embd.weight", b"token_embd.heavy.", 1),
    }.items():
        path = write(repository, name, SMALL)
        path.unlink()
        path.write_bytes(damaged)
    write(repository, "words", SMALL)
    flags = (f"--backend-config=llamacpp,interpreter={PYTHON}", "--model-control-mode=explicit")
    with start_server(repository, *flags) as running:
        server: Server = running.wait_until_live()
        for name in ("short", "architecture", "dimension"):
            path = f"/v2/repository/models/{name}/load"
            error = server.request("POST", path, b"{}").error()
            assert "can't load" in error or "worker" in error, (name, error)
        assert server.request("POST", "/v2/repository/models/words/load", b"{}").status == 200


def test_one_command(program: Any, tmp_path: pathlib.Path) -> None:
    """A file is all that it takes."""
    ports = free_ports(4)
    names = ("http", "grpc", "metrics", "openai")
    flags = [f"--{name}-port={port}" for name, port in zip(names, ports, strict=True)]
    flags.append(f"--backend-config=llamacpp,interpreter={PYTHON}")
    command = [*program.command([])[:1], "serve", MODEL, "--name=m", *flags]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        server = Server.__new__(Server)
        server.http_port = ports[0]
        door = Door(server, ports[3], tmp_path)

        def answers() -> bool:
            try:
                reply = door.post(TEXT, {"model": "m", "prompt": "a", "max_tokens": 1})
            except OSError:
                return False
            return reply.status == 200

        wait_until(answers, START_SECONDS_MAX + REQUEST_SECONDS_MAX, "it generates")
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
