"""Tests of a Python backend around an engine with its own event loop, like vLLM's:
python_models/word_engine."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from tritonclient.utils import InferenceServerException

from python_backend import MODELS, PythonServer, start_python  # noqa: F401
from server import REQUEST_SECONDS_MAX, Reply, Server, wait_until
from transports import GrpcStream

CONFIG = """
backend: "words"
instance_group { count: 1 kind: KIND_MODEL }
"""


@pytest.fixture(scope="module")
def server(
    start_python: PythonServer,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    own = start_python.backends / "words"
    if not own.exists():
        shutil.copytree(MODELS / "word_engine", own)
    repository = tmp_path_factory.mktemp("word_engine")
    for name, settings in [("engine", {}), ("sick", {"sick": True})]:
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        (version / "engine.json").write_text(json.dumps(settings))
    flags = ["--model-control-mode=explicit", "--load-model=engine"]
    with start_python(repository, *flags) as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def generate(server: Server, text: str, endpoint: str = "generate", **body: Any) -> Reply:
    """Sends a prompt to one of the two endpoints."""
    document = json.dumps({"text_input": text, **body}).encode()
    return server.request("POST", f"/v2/models/engine/{endpoint}", document)


def inputs(text: str, count: int, streams: bool = True) -> dict[str, numpy.ndarray]:
    """The tensors of a request."""
    return {
        "text_input": numpy.array([text.encode()], numpy.object_),
        "count": numpy.array([count], numpy.int32),
        "stream": numpy.array([streams]),
    }


def counter(server: Server, name: str) -> float:
    """A metric of the backend."""
    line = f'words:{name}{{model="engine"}} '
    (found,) = (one for one in server.metrics().splitlines() if one.startswith(line))
    return float(found.removeprefix(line))


def test_the_completed_configuration(server: Server) -> None:
    config = server.get("/v2/models/engine/config").json()
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0
    names = [one["name"] for one in config["input"]]
    assert names == ["text_input", "stream", "count"]
    (group,) = config["instance_group"]
    assert (group["kind"], group["count"]) == ("KIND_MODEL", 1)


def test_generate(server: Server) -> None:
    assert generate(server, "a b c", count=5).json()["text_output"] == "a b c a b"
    # A member that isn't an input is a parameter of the request.
    assert generate(server, "a b c", parameters={"count": 2}).json()["text_output"] == "a b"


def test_generate_stream(server: Server) -> None:
    reply = generate(server, "a b c", "generate_stream", stream=True, count=3)
    lines = reply.body.decode().split("\n\n")[:-1]
    events = [json.loads(one.removeprefix("data: ")) for one in lines]
    assert [one["text_output"] for one in events] == ["a", "b", "c"]


def test_a_failing_engine(server: Server) -> None:
    reply = generate(server, "a fail", count=3)
    assert (reply.status, reply.error()) == (400, "the engine failed")
    assert generate(server, "a", count=1).status == 200


def test_many_at_once(server: Server) -> None:
    """Their responses are interleaved, but each request's responses are in order."""
    with GrpcStream(server) as stream:
        for number in range(32):
            stream.send("engine", inputs(f"{number} word", 4), request_id=str(number))
        texts: dict[str, list[bytes]] = {}
        for _ in range(4 * 32):
            number, outputs = stream.receive()
            texts.setdefault(number, []).append(outputs["text_output"][0])
    expected = {str(one): [str(one).encode(), b"word"] * 2 for one in range(32)}
    assert texts == expected


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves(server: Server, streams: bool) -> None:
    """The request would never end."""
    prompts, cancelled = counter(server, "prompts_total"), counter(server, "cancelled_total")
    stream = GrpcStream(server)
    stream.send("engine", inputs("a b", 0, streams))
    if streams:
        assert stream.receive()[1]["text_output"].tolist() == [b"a"]
    wait_until(
        lambda: counter(server, "prompts_total") == prompts + 1,
        REQUEST_SECONDS_MAX,
        "the engine has the request",
    )
    stream.close(cancel=True)
    wait_until(
        lambda: counter(server, "cancelled_total") == cancelled + 1,
        REQUEST_SECONDS_MAX,
        "the engine has ended it",
    )


def load(server: Server, model: str, way: str = "load") -> int:
    """Loads or unloads a model, and returns the status."""
    return server.request("POST", f"/v2/repository/models/{model}/{way}", b"{}").status


def test_a_model_that_unloads_itself(server: Server) -> None:
    assert load(server, "sick") == 200
    with GrpcStream(server) as stream:
        stream.send("sick", inputs("a", 1))
        with pytest.raises(InferenceServerException, match="the engine is sick") as raised:
            stream.receive()
    assert raised.value.status() in (None, "StatusCode.UNAVAILABLE")
    is_gone = lambda: server.get("/v2/models/sick/ready").status == 400  # noqa: E731
    wait_until(is_gone, REQUEST_SECONDS_MAX, "the model is unloaded")


def test_its_threads_end_with_the_model(server: Server) -> None:
    ended = "engine: all threads have ended"
    before = server.log().count(ended)
    assert load(server, "engine", "unload") == 200
    wait_until(lambda: server.log().count(ended) == before + 1, REQUEST_SECONDS_MAX, "they end")
    assert load(server, "engine") == 200
    assert generate(server, "a", count=1).json()["text_output"] == "a"
