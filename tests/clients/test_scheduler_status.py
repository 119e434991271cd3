"""Tests of a scheduler's status page, which shows what each request is waiting for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from example_models import conformance, iterative, sequences
from example_models.repository import Example, write_example

from conftest import StartServer
from server import Server, wait_until
from transports import GrpcStream

pytestmark = pytest.mark.galatea_only  # Triton has no such page.

IDLE_MICROSECONDS = 3_600_000_000
HELD = 8


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose requests stay queued: 8 must be waiting before any executes."""
    repository = tmp_path_factory.mktemp("status")
    identity = conformance.MODELS["identity_int32"]()
    write_example(repository, "default", Example(renamed(identity, "default"), {}))
    levels = "priority_levels: 2 default_priority_level: 2"
    write_example(
        repository, "dynamic", conformance.onnx_whole_batch(f"dynamic_batching {{ {levels} }}")
    )
    one_slot = sequences.Batching("direct { }", 1, idle_microseconds=IDLE_MICROSECONDS)
    write_example(repository, "direct", sequences.accumulator("int32", "zero", one_slot))
    oldest = sequences.Batching("oldest { max_candidate_sequences: 3 }", 2, instance_count=2)
    write_example(repository, "oldest", sequences.accumulator("int32", "zero", oldest))
    write_example(repository, "iterative", iterative.token_counter(True))
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(HELD)}
    with start_server(repository, environment=environment) as running:
        yield running.wait_until_ready()


@pytest.fixture(scope="module")
def free_server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The same without holding requests back."""
    repository = tmp_path_factory.mktemp("free_status")
    one_slot = sequences.Batching("direct { }", 1, idle_microseconds=IDLE_MICROSECONDS)
    write_example(repository, "direct", sequences.accumulator("int32", "zero", one_slot))
    write_example(repository, "tokens", iterative.token_counter(True, delay_microseconds=1000))
    delay = "direct { max_queue_delay_microseconds: 3600000000 minimum_slot_utilization: 1 }"
    write_example(
        repository, "delay", sequences.accumulator("int32", "zero", sequences.Batching(delay, 2))
    )
    settings = "preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 3600000000"
    write_example(
        repository, "dynamic", conformance.onnx_whole_batch(f"dynamic_batching {{ {settings} }}")
    )
    with start_server(repository) as running:
        yield running.wait_until_ready()


def renamed(example: Example, name: str) -> str:
    """The configuration of a model under another name."""
    text = example.config or ""
    return text.replace('name: "identity_int32"', f'name: "{name}"')


def number(value: int = 1, name: str = "INPUT") -> dict[str, numpy.ndarray]:
    """A row with one number."""
    return {name: numpy.array([[value]], numpy.int32)}


@contextlib.contextmanager
def waiting(
    server: Server, model: str, tensors: dict[str, numpy.ndarray], *options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The status while these requests wait; they are cancelled afterwards."""
    stream = GrpcStream(server)
    for one in options:
        stream.send(model, tensors, **one)
    server.wait_for_pending(model, len(options))
    yield server.scheduler(model)
    stream.close(cancel=True)
    server.wait_for_pending(model, 0)


@pytest.mark.parametrize("path", ["", "/versions/1"])
@pytest.mark.parametrize("model", ["default", "dynamic", "direct", "oldest", "iterative"])
def test_an_idle_model(server: Server, model: str, path: str) -> None:
    """Nothing waits, the slots are free, and both paths return the same page."""
    reply = server.get(f"/v2/models/{model}{path}/scheduler")
    assert reply.status == 200
    status = reply.json()
    fields = ["draining", "instances", "name", "queues", "sequences", "totals", "version"]
    assert sorted(status) == fields
    assert (status["name"], status["version"]) == (model, "1")
    assert status["draining"] is False
    assert status["queues"] == []
    assert all(one["state"] == "free" for one in status["instances"])
    assert len({one["name"] for one in status["instances"]}) == (2 if model == "oldest" else 1)
    slots = {"default": None, "dynamic": None, "direct": 1, "oldest": 6, "iterative": 4}[model]
    if slots is None:
        assert status["sequences"] is None
    else:
        assert status["sequences"] == {
            "slots": [],
            "taken_slots": 0,
            "free_slots": slots,
            "backlog": [],
            "backlog_length": 0,
        }


@pytest.mark.parametrize(
    ("path", "code"),
    [("absent", 404), ("absent/versions/1", 404), ("direct/versions/7", 404)],
)
def test_unknown_models(server: Server, path: str, code: int) -> None:
    """The error is the same as for the model's other endpoints."""
    reply = server.get(f"/v2/models/{path}/scheduler")
    assert reply.status == code
    assert reply.error()


def test_the_status_page_is_read_only(server: Server) -> None:
    """Other methods are refused."""
    assert server.request("POST", "/v2/models/direct/scheduler", b"{}").status == 405


# row: BEK-03
def test_queues_of_a_dynamic_batcher(server: Server) -> None:
    """An entry for each level at which a request waits."""
    with waiting(
        server, "dynamic", number(name="INPUT0"), {"priority": 2}, {"priority": 1}, {"priority": 2}
    ) as status:
        assert [(one["priority"], one["waiting"]) for one in status["queues"]] == [(1, 1), (2, 2)]
        for one in status["queues"]:
            assert one["delayed"] == 0
            assert one["oldest_age_us"] >= 0
            assert one["waits_for"]["reason"] == "hold"
            assert one["waits_for"]["missing_requests"] == HELD - 3


# row: SEQ-06
def test_slots_and_backlog(server: Server) -> None:
    """The page shows the sequence and waiting requests of each slot, and the backlog."""
    options = [
        {"sequence_id": "first", "sequence_start": True},
        {"sequence_id": "first"},
        {"sequence_id": 77, "sequence_start": True, "timeout": IDLE_MICROSECONDS},
        {"sequence_id": 78, "sequence_start": True},
        {"sequence_id": 78, "sequence_end": True},
    ]
    with waiting(server, "direct", number(), *options) as status:
        sequences_status = status["sequences"]
        (slot,) = sequences_status["slots"]
        assert "first" not in str(status)
        assert (slot["slot"], slot["waiting"]) == (0, 2)
        assert slot["instance"] == status["instances"][0]["name"]
        assert slot["waits_for"]["reason"] == "hold"
        assert sequences_status["free_slots"] == 0
        first, second = sequences_status["backlog"]
        assert [first["waiting"], second["waiting"]] == [1, 2]
        assert slot["sequence"] < first["sequence"] < second["sequence"]
        assert first["waits_for"]["reason"] == second["waits_for"]["reason"] == "slot"
        assert 0 < first["waits_for"]["remaining_us"] <= IDLE_MICROSECONDS
        assert second["waits_for"]["remaining_us"] is None


def test_slots_on_two_instances(server: Server) -> None:
    """The lowest free slot of all instances is taken first."""
    options = [{"sequence_id": one, "sequence_start": True} for one in (1, 2, 3, 4)]
    with waiting(server, "oldest", number(), *options) as status:
        names = [one["name"] for one in status["instances"]]
        slots = sorted(status["sequences"]["slots"], key=lambda slot: slot["sequence"])
        taken = [(names.index(one["instance"]), one["slot"]) for one in slots]
        assert taken == [(0, 0), (1, 0), (0, 1), (1, 1)]
        assert status["sequences"]["free_slots"] == 2


def test_the_wait_reasons_of_slots(free_server: Server) -> None:
    """A slot waits for its next request, the end of an execution, or more slots."""
    with GrpcStream(free_server) as stream:
        # An execution may end a moment after its response.
        stream.infer("direct", number(), sequence_id=5, sequence_start=True)
        wait_until(lambda: not free_server.is_executing("direct"), 60, "the execution has ended")
        (slot,) = free_server.scheduler("direct")["sequences"]["slots"]
        assert slot["waits_for"]["reason"] == "request"
        assert 0 < slot["waits_for"]["remaining_us"] <= IDLE_MICROSECONDS
        stream.infer("direct", number(), sequence_id=5, sequence_end=True)
        wait_until(lambda: not free_server.is_executing("direct"), 60, "the execution has ended")
        assert free_server.scheduler("direct")["sequences"]["slots"] == []
    with waiting(free_server, "delay", number(), {"sequence_id": 5, "sequence_start": True}) as one:
        (slot,) = one["sequences"]["slots"]
        assert slot["waits_for"]["reason"] == "batch_delay"
        assert slot["waits_for"]["remaining_us"] > 0


def test_the_wait_reason_of_a_queue(free_server: Server) -> None:
    """A queue waits for its batch to grow; the page shows the size and the wanted size."""
    with waiting(free_server, "dynamic", number(name="INPUT0"), {}, {}) as status:
        (queue,) = status["queues"]
        assert queue["waits_for"]["reason"] == "batch_delay"
        assert queue["waits_for"]["pending_batch_size"] == 2
        assert queue["waits_for"]["next_preferred_batch_size"] == 4
        assert queue["waits_for"]["remaining_us"] > 0


def test_a_busy_instance(free_server: Server) -> None:
    """The request is executed repeatedly until its client cancels it."""
    stream = GrpcStream(free_server)
    stream.send("tokens", {"COUNT": numpy.array([[1_000_000]], numpy.int32)})

    wait_until(lambda: free_server.is_executing("tokens"), 60, "the instance is busy")
    stream.close(cancel=True)
    # Between two executions the instance is free for a moment.
    wait_until(
        lambda: free_server.scheduler("tokens")["sequences"]["slots"] == [], 60, "the slot is free"
    )
    wait_until(lambda: not free_server.is_executing("tokens"), 60, "the instance is free")
