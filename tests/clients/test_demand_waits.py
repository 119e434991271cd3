"""Tests of requests that wait for models on demand: over OpenAI's endpoint, with clients that leave
during the wait, and with loads that fail."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import openai
import pytest
from tritonclient.grpc import service_pb2_grpc

from conftest import StartServer
from demand_models import (
    BUDGET,
    DEMAND,
    IDENTITY,
    SECONDS_MAX,
    check_retry_after,
    grpc_request,
    infer,
    memory,
    metric,
    resident,
    serving,
    value_of,
    wait_for_waiting,
    write_gated,
    write_identity,
)
from openai_door import CHAT, RESPONSES, TEXT, Door, chat, events, open_door
from python_backend import MODELS
from raw_http import Connection, post
from server import Reply, Server, wait_until

pytestmark = pytest.mark.galatea_only

#: Makes a model wait at its load for the file `open`, and fail if that file says so.
GATE = """

import os


class TritonPythonModel(TritonPythonModel):
    def initialize(self, args):
        gate = os.path.join(args["model_repository"], "open")
        while not os.path.exists(gate):
            time.sleep(0.01)  # sleep: polls until opened
        if open(gate).read() == "fail":
            raise pb_utils.TritonModelException("the weights are torn")
        super().initialize(args)
"""
SEQUENCES = IDENTITY + "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"


@pytest.fixture
def door(start_server: StartServer, tmp_path: pathlib.Path) -> Iterator[Door]:
    """An endpoint for clients of OpenAI in front of models on demand."""
    with open_door(start_server, tmp_path, DEMAND, "--model-memory=1G") as running:
        yield running


def write_words(door: Door, name: str) -> pathlib.Path:
    """Writes a language model whose load waits until the returned file exists."""
    folder = door.repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('backend: "python"\n')
    words = (MODELS / "vllm_words" / "model.py").read_text()
    (folder / "1" / "model.py").write_text(words + GATE)
    return folder / "open"


def test_clients_of_openai_wait(door: Door) -> None:
    """Texts, chats, streams and responses share the load of their model."""
    gate = write_words(door, "gated")
    client = door.client()
    user = {"role": "user", "content": "a b c"}

    def stream() -> list[str]:
        chunks = client.chat.completions.create(model="gated", messages=[user], stream=True)
        return [chunk.choices[0].delta.content for chunk in chunks]

    bodies = {
        CHAT: chat(model="gated"),
        TEXT: {"model": "gated", "prompt": "d e"},
        RESPONSES: {"model": "gated", "input": "g h"},
    }
    with ThreadPoolExecutor(8) as pool:
        replies = {path: pool.submit(door.post, path, body) for path, body in bodies.items()}
        streamed = pool.submit(stream)
        wait_for_waiting(door.server, len(bodies) + 1)
        assert not any(reply.done() for reply in replies.values())
        gate.write_text("")
        documents = {path: check_answered(reply.result()) for path, reply in replies.items()}
        assert streamed.result() == ["", "a", "b", "c"]
    assert documents[CHAT]["choices"][0]["message"]["content"] == "a b c"
    assert documents[TEXT]["choices"][0]["text"] == "d e"
    assert documents[RESPONSES]["output"][0]["content"][0]["text"] == "g h"
    assert metric(door.server, "galatea_model_loads_total") == 1
    # A model that no repository has is refused at once, and isn't loaded.
    with pytest.raises(openai.APIStatusError) as unknown:
        client.completions.create(model="nothing", prompt="a")
    assert unknown.value.status_code < 500
    assert metric(door.server, "galatea_model_loads_total") == 1


def check_answered(reply: Reply) -> dict[str, object]:
    assert reply.status == 200, reply
    return reply.json()


def test_clients_of_openai_get_the_reason_of_a_failed_load(door: Door) -> None:
    gate = write_words(door, "gated")
    gate.write_text("fail")
    body = chat(model="gated")
    for reply in (door.post(CHAT, body), door.post(CHAT, {**body, "stream": True})):
        check_retry_after(reply)
        assert "the weights are torn" in reply.json()["detail"]
    refused = door.post(RESPONSES, {"model": "gated", "input": "a"})
    check_retry_after(refused)
    assert "the weights are torn" in refused.json()["error"]["message"]


def test_a_client_of_openai_leaves_the_wait(door: Door) -> None:
    gate = write_words(door, "gated")
    body = b'{"model":"gated","prompt":"a","stream":true}'
    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(door.post, CHAT, chat(model="gated", stream=True))
        wait_for_waiting(door.server, 1)
        with door.socket() as leaving:
            leaving.sendall(post(TEXT, body, "Content-Type: application/json"))
            wait_for_waiting(door.server, 2)
        wait_for_waiting(door.server, 1)
        gate.write_text("")
        assert events(kept.result().body)[-1] == "[DONE]"


def test_streams_and_generate_requests_leave_the_wait(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    gate = write_gated(tmp_path, "gated")
    with serving(start_server, tmp_path) as server, ThreadPoolExecutor(1) as pool:
        kept = pool.submit(infer, server, "gated")
        wait_for_waiting(server, 1)
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            # The second request waits behind the first, without a wait of its own.
            requests = [grpc_request("gated"), grpc_request("gated")]
            replies = stub.ModelStreamInfer(iter(requests))
            wait_for_waiting(server, 2)
            replies.cancel()
            wait_for_waiting(server, 1)
        with Connection(server) as leaving:
            leaving.send(post("/v2/models/gated/generate_stream", b'{"INPUT0": 5}'))
            wait_for_waiting(server, 2)
        wait_for_waiting(server, 1)
        gate.write_text("")
        assert value_of(kept.result()) == 7
        wait_for_waiting(server, 0)


def test_a_model_that_all_clients_left_is_not_loaded(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A load that waits for memory is given up with its last request."""
    for name in ("s0", "s1", "s2", "net"):
        write_identity(tmp_path, name)
        if name != "net":
            (tmp_path / name / "config.pbtxt").write_text(SEQUENCES)

    def talk(server: Server, model: str, flag: str) -> None:
        tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}
        parameters = {"sequence_id": 5, flag: True}
        reply = server.infer(model, {"inputs": [tensor], "parameters": parameters})
        assert reply.status == 200, reply

    with serving(start_server, tmp_path, budget=BUDGET) as server:
        for name in ("s0", "s1", "s2"):
            talk(server, name, "sequence_start")
        body = b'{"INPUT0": 5}'
        with Connection(server) as leaving:
            leaving.send(post("/v2/models/net/generate", body))
            wait_for_waiting(server, 1)
        wait_for_waiting(server, 0)
        for name in ("s0", "s1", "s2"):
            talk(server, name, "sequence_end")
        assert memory(server, "net")["state"] == "not_resident"
        assert metric(server, "galatea_model_loads_total") == 3
        assert value_of(infer(server, "net")) == 7
        assert "net" in resident(server)


def test_the_pause_after_a_failed_load_doubles(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    gate = write_gated(tmp_path, "gated")
    gate.write_text("fail")
    with serving(start_server, tmp_path) as server:
        failures = "galatea_model_load_failures_total"

        def pause_ms(reply: Reply) -> int:
            check_retry_after(reply)
            assert "the weights are torn" in reply.error()
            return int(reply.headers["Retry-After-Ms"])

        pauses = [pause_ms(infer(server, "gated"))]

        def has_failed_again() -> bool:
            pauses.append(pause_ms(infer(server, "gated")))
            return metric(server, failures) == 2

        wait_until(has_failed_again, SECONDS_MAX, "the load is tried again")
        assert 0 < max(pauses[:-1]) <= 1_000 < pauses[-1] <= 2_000, pauses
        label = '{reason="load_failed"}'
        assert metric(server, "galatea_model_refusals_total", label) == len(pauses)
        gate.write_text("")
        is_served = lambda: infer(server, "gated").status == 200  # noqa: E731
        wait_until(is_served, SECONDS_MAX, "the model is loaded")
        assert metric(server, failures) == 2
        assert memory(server, "gated")["last_error"] is None
