"""A language model that generates a token for each live sequence in every execution.

The decoder has random weights. Its tokens are compared with those of the same model in NumPy, which
has no cache, no batch and no server.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from example_models import decoder
from example_models.repository import write_example
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from decoder_reference import GREEDY, ReferenceDecoder, Sampling
from openai_door import events
from python_backend import interpreter_flag
from server import START_SECONDS_MAX, Reply, Server, free_ports, wait_until
from transports import GrpcStream

pytestmark = pytest.mark.galatea_only

REFERENCE = ReferenceDecoder(decoder.random_weights(decoder.TINY), decoder.TINY)
HOT = Sampling(temperature=1.5, top_p=0.9, seed=4711)
#: Prompts of different lengths, with the most tokens to follow each of them.
GENERATIONS = {
    "one": ([65], 9),
    "short": ([1, 2, 3], 20),
    "long": (list(range(100, 140)), 12),
    "middle": ([7] * 11, 1),
    "again": ([1, 2, 3, 4, 5, 6], 30),
    "last": (list(range(20)), 17),
}


def inputs(prompt: list[int], limit: int, sampling: Sampling = GREEDY) -> dict[str, numpy.ndarray]:
    """The inputs of the decoder."""
    return {
        "PROMPT": numpy.array([prompt], numpy.int64),
        "MAX_TOKENS": numpy.array([[limit]], numpy.int32),
        "TEMPERATURE": numpy.array([[sampling.temperature]], numpy.float32),
        "TOP_P": numpy.array([[sampling.top_p]], numpy.float32),
        "SEED": numpy.array([[sampling.seed]], numpy.int64),
    }


def receive(stream: GrpcStream, expected: dict[str, list[int]]) -> dict[str, list[int]]:
    """The tokens of each request, in order of arrival, until all have come."""
    found: dict[str, list[int]] = {name: [] for name in expected}
    for _ in range(sum(map(len, expected.values()))):
        name, outputs = stream.receive()
        found[name] += outputs["TOKEN"].reshape(-1).tolist()
    return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The decoder, and the model with text in front of it."""
    folder = tmp_path_factory.mktemp("decoder") / "models"
    for name, maker in decoder.MODELS.items():
        write_example(folder, name, maker())
    return folder


@pytest.fixture(scope="module")
def openai_port() -> int:
    """The port of the endpoint for clients of OpenAI."""
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, repository: pathlib.Path, openai_port: int
) -> Iterator[Server]:
    """A server with that endpoint."""
    template = repository.parent / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    flags = (f"--openai-port={openai_port}", f"--chat-template={template}", interpreter_flag())
    with start_server(repository, *flags) as running:
        yield running.wait_until_ready()


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "sampled"])
# row: ITER-04 ITER-07
def test_sequences_are_the_same_alone_and_among_others(server: Server, sampling: Sampling) -> None:
    """Prompts of different lengths are generated one by one, then all at once."""
    expected = {
        name: REFERENCE.tokens(prompt, limit, sampling)
        for name, (prompt, limit) in GENERATIONS.items()
    }
    assert len(set(map(tuple, expected.values()))) == len(expected)
    with GrpcStream(server) as stream:
        for name, tokens in expected.items():
            stream.send("tiny_decoder", inputs(*GENERATIONS[name], sampling), request_id=name)
            assert receive(stream, {name: tokens}) == {name: tokens}
        for _ in range(5):
            for name in expected:
                stream.send("tiny_decoder", inputs(*GENERATIONS[name], sampling), request_id=name)
            assert receive(stream, expected) == expected


# row: ITER-04
def test_all_live_sequences_share_an_execution(
    start_server: StartServer, repository: pathlib.Path
) -> None:
    """Three prompts are read in one execution. After that, each execution makes one token for
    every sequence that isn't complete, although the states have different lengths."""
    names = ["one", "short", "long"]
    expected = {name: REFERENCE.tokens(*GENERATIONS[name]) for name in names}
    lengths = [len(tokens) for tokens in expected.values()]
    assert len(set(lengths)) == 3
    environment = {"TRITONSERVER_DELAY_SCHEDULER": "3"}
    with (
        start_server(
            repository,
            "--model-control-mode=explicit",
            "--load-model=tiny_decoder",
            environment=environment,
        ) as running,
        GrpcStream(running.wait_until_ready()) as stream,
    ):
        for name in names:
            stream.send("tiny_decoder", inputs(*GENERATIONS[name]), request_id=name)
        assert receive(stream, expected) == expected
        count = lambda: running.statistics("tiny_decoder")["execution_count"]  # noqa: E731
        wait_until(lambda: count() == max(lengths), 60, "all executions are counted")
        # A prompt that comes later joins.
        early, late = (list(range(40)), 50), ([9, 9], 3)
        both = {"early": REFERENCE.tokens(*early), "late": REFERENCE.tokens(*late)}
        stream.send("tiny_decoder", inputs(*early), request_id="early")
        first = stream.receive()[1]["TOKEN"].reshape(-1).tolist()
        stream.send("tiny_decoder", inputs(*late), request_id="late")
        rest = receive(stream, {**both, "early": both["early"][1:]})
        assert {**rest, "early": first + rest["early"]} == both


def test_a_prompt_that_is_too_long(server: Server) -> None:
    """It fails alone. The server continues."""
    with GrpcStream(server) as stream:
        stream.send("tiny_decoder", inputs([1] * 200, 3))
        with pytest.raises(InferenceServerException, match="out of data bounds"):
            stream.receive()
        expected = {"a": REFERENCE.tokens([1], 3)}
        stream.send("tiny_decoder", inputs([1], 3), request_id="a")
        assert receive(stream, expected) == expected


def generate(server: Server, endpoint: str, **body: Any) -> Reply:
    """Sends a text to the generate extension."""
    text = json.dumps(body).encode()
    return server.request("POST", f"/v2/models/tiny_text/{endpoint}", text)


def text_of(prompt: str, limit: int) -> str:
    """The reference's text."""
    tokens = REFERENCE.tokens(list(prompt.encode()), limit)
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


def test_generate_stream(server: Server) -> None:
    """The text comes in pieces; a piece never contains a part of a character."""
    reply = generate(server, "generate_stream", text_input="Hello", max_tokens=12)
    pieces = [document["text_output"] for document in events(reply.body)]
    assert "".join(pieces) == text_of("Hello", 12)
    assert len(pieces) > 1



# row: OAI-01
def test_the_endpoint_for_clients_of_openai(server: Server, openai_port: int) -> None:
    """Chats and texts, whole and streamed, with the numbers of tokens."""

    def post(path: str, **body: Any) -> Reply:
        document = json.dumps({"model": "tiny_text", "temperature": 0, **body}).encode()
        headers = {"Content-Type": "application/json"}
        return server.request("POST", path, document, headers, port=openai_port)

    chat = [{"role": "user", "content": "Hello"}]
    whole = post("/v1/chat/completions", messages=chat, max_tokens=12).json()
    expected = text_of("Hello", 12)
    assert whole["choices"][0]["message"]["content"] == expected
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    streamed = post("/v1/completions", prompt="Hello", max_tokens=12, stream=True)
    *chunks, done = events(streamed.body)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    stopped = post("/v1/completions", prompt="Hello", max_tokens=12, stop=expected[4:6])
    assert stopped.json()["choices"][0]["text"] == expected[:4]


def test_a_stream_that_is_left(server: Server) -> None:
    """The sequence ends, and its slot is free."""
    slots = lambda: server.scheduler("tiny_decoder")["sequences"]["free_slots"]  # noqa: E731
    wait_until(lambda: slots() == 8, 60, "all slots are free")
    lost = GrpcStream(server)
    for name in range(8):
        lost.send("tiny_decoder", inputs([name], 90), request_id=str(name))
    lost.receive()
    lost.close(cancel=True)
    wait_until(lambda: slots() == 8, START_SECONDS_MAX, "all slots are free again")
