"""Tests of the ways in which sequences end other than by END: idleness, timeouts, cancellation,
and lost clients."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from example_models import sequences
from example_models.repository import write_example
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import Server, wait_until
from transports import Grpc, GrpcCalls, GrpcStream, Transport

#: Models with room for one sequence.
STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 1 }"}
IDLE_MICROSECONDS = 200_000
BACKLOG_MICROSECONDS = 100_000
#: Rounds that keep a model busy for a moment.
SOME_ROUNDS = 1000

_ids = itertools.count(1)


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with models that have one instance and one slot."""
    repository = tmp_path_factory.mktemp("ends")
    for name, strategy in STRATEGIES.items():
        patient = sequences.Batching(strategy, max_batch_size=1)
        hasty = sequences.Batching(strategy, max_batch_size=1, idle_microseconds=IDLE_MICROSECONDS)
        write_example(repository, f"sum_{name}", sequences.accumulator("int32", "zero", patient))
        write_example(repository, f"idle_{name}", sequences.accumulator("int32", "zero", hasty))
        write_example(repository, f"slow_{name}", sequences.slow_accumulator(patient))
        hasty = dataclasses.replace(hasty, idle_microseconds=IDLE_MICROSECONDS // 10)
        write_example(repository, f"slow_idle_{name}", sequences.slow_accumulator(hasty))
    with start_server(repository) as running:
        yield running.wait_until_ready()


@pytest.fixture(params=list(STRATEGIES))
def strategy(request: pytest.FixtureRequest) -> str:
    """Both strategies."""
    return request.param


@pytest.fixture
def other(server: Server) -> Iterator[Grpc]:
    """A second client."""
    with contextlib.closing(Grpc(server)) as one:
        yield one


@pytest.fixture
def calls(server: Server) -> Iterator[GrpcCalls]:
    """A client that sends overlapping calls."""
    with contextlib.closing(GrpcCalls(server)) as one:
        yield one


def tensors(value: int, rounds: int | None = None) -> dict[str, numpy.ndarray]:
    """The inputs of an accumulator, slow or not."""
    given = {"INPUT": numpy.array([[value]], numpy.int32)}
    if rounds is not None:
        given["ROUNDS"] = numpy.array([[rounds]], numpy.int64)
    return given


def total(outputs: dict[str, numpy.ndarray]) -> int:
    """The sum in a response."""
    return int(outputs["OUTPUT"][0, 0])


def infer(transport: Transport, model: str, value: int, sequence: Any, **options: Any) -> int:
    """Sends one request, and returns the sum."""
    rounds = options.pop("rounds", 0 if model.startswith("slow") else None)
    given = tensors(value, rounds)
    return total(transport.infer(model, given, sequence_id=sequence, **options))


def start(transport: Transport, model: str, value: int, sequence: Any, **options: Any) -> int:
    """The first request of a sequence."""
    return infer(transport, model, value, sequence, sequence_start=True, **options)


def end(transport: Transport, model: str, value: int, sequence: Any) -> int:
    """The last request of a sequence."""
    return infer(transport, model, value, sequence, sequence_end=True)


def assert_unknown(transport: Transport, model: str, sequence: Any) -> None:
    """Checks that the sequence is unknown: its next request needs START."""
    with pytest.raises(InferenceServerException, match="START"):
        infer(transport, model, 1, sequence)


# row: SEQ-05
def test_an_idle_sequence_makes_room(
    server: Server, transport: Transport, other: Grpc, strategy: str
) -> None:
    """A sequence in the backlog gets the slot when the other sequence has timed out."""
    model = f"idle_{strategy}"
    idle, waiting = next(_ids), next(_ids)
    assert start(transport, model, 1, idle) == 1
    # Only the idle timeout can free the only slot.
    assert start(other, model, 5, waiting) == 5
    assert_unknown(transport, model, idle)
    assert start(transport, model, 7, idle, sequence_end=True) == 7


def test_an_idle_sequence_is_forgotten(
    server: Server, transport: Transport, strategy: str
) -> None:
    """It is forgotten even if no sequence waits; the same ID starts without state."""
    model = f"idle_{strategy}"
    sequence = next(_ids)
    assert start(transport, model, 1, sequence) == 1
    if not server.is_triton:
        wait_until(lambda: not slots(server, model), 60, "the slot is free")
        assert_unknown(transport, model, sequence)
    assert start(transport, model, 10, sequence, sequence_end=True) == 10


def slots(server: Server, model: str) -> list[dict[str, Any]]:
    """The slots that hold a sequence, on the status page."""
    return server.scheduler(model)["sequences"]["slots"]


def is_busy(server: Server, model: str) -> bool:
    """Returns true if an instance of the model is executing, according to the status page."""
    return any(one["state"] == "busy" for one in server.scheduler(model)["instances"])


# row: SEQ-05
def test_requests_that_wait_in_an_idle_sequence_are_executed(
    server: Server, calls: GrpcCalls, other: Grpc, strategy: str
) -> None:
    """The idle time ends while a request executes, and the requests that have arrived get
    responses."""
    model = f"slow_idle_{strategy}"
    active, waiting = next(_ids), next(_ids)
    # The execution takes longer than a sequence may be idle.
    calls.send(model, tensors(1, SOME_ROUNDS), sequence_id=active, sequence_start=True)
    if not server.is_triton:
        wait_until(lambda: is_busy(server, model) or calls.is_finished(0), 60, "it runs")
    calls.send(model, tensors(5, 0), sequence_id=waiting, sequence_start=True)
    assert [total(calls.wait(0)), total(calls.wait(1))] == [1, 5]
    # Its only request was executed before the end of its idle time.
    assert_unknown(other, model, active)


# row: SEQ-23
def test_timeout_in_the_backlog(
    server: Server, transport: Transport, other: Grpc, strategy: str
) -> None:
    """The request's timeout fails it while its sequence has no slot."""
    model = f"sum_{strategy}"
    active, waiting = next(_ids), next(_ids)
    assert start(other, model, 1, active) == 1
    with pytest.raises(InferenceServerException) as caught:
        start(transport, model, 5, waiting, timeout=BACKLOG_MICROSECONDS)
    assert caught.value.status() in ("503", "StatusCode.UNAVAILABLE", None)
    assert "timeout of the corresponding sequence has been expired" in caught.value.message()
    assert_unknown(transport, model, waiting)
    assert end(other, model, 1, active) == 2
    # The sequence that timed out left no state behind.
    assert start(transport, model, 5, waiting, sequence_end=True) == 5


# row: SEQ-23
def test_a_timeout_fails_the_whole_sequence(
    server: Server, other: Grpc, calls: GrpcCalls, strategy: str
) -> None:
    """Requests without a timeout fail with the one that has one; other sequences continue."""
    model = f"sum_{strategy}"
    active, first, second = next(_ids), next(_ids), next(_ids)
    assert start(other, model, 1, active) == 1
    calls.send(model, tensors(5), sequence_id=first, sequence_start=True)
    server.wait_for_pending(model, 1)
    calls.send(model, tensors(9), sequence_id=second, sequence_start=True, sequence_end=True)
    server.wait_for_pending(model, 2)
    calls.send(model, tensors(5), sequence_id=first, timeout=BACKLOG_MICROSECONDS)
    for number in (0, 2):
        with pytest.raises(InferenceServerException, match="timeout of the corresponding"):
            calls.wait(number)
    assert not calls.is_finished(1)
    assert end(other, model, 1, active) == 2
    assert total(calls.wait(1)) == 9


# row: SEQ-23
def test_a_timeout_has_no_effect_in_a_slot(transport: Transport, strategy: str) -> None:
    """The test uses the shortest timeout."""
    model = f"slow_{strategy}"
    sequence = next(_ids)
    assert start(transport, model, 1, sequence, timeout=1, rounds=200) == 1
    assert infer(transport, model, 1, sequence, timeout=1, rounds=200, sequence_end=True) == 2


def test_cancelled_in_the_backlog(
    server: Server, other: Grpc, calls: GrpcCalls, strategy: str
) -> None:
    """The rest of its sequence is cancelled too, and the sequence is unknown."""
    model = f"sum_{strategy}"
    active, waiting = next(_ids), next(_ids)
    assert start(other, model, 1, active) == 1
    for index in range(3):
        calls.send(model, tensors(5), sequence_id=waiting, sequence_start=index == 0)
        server.wait_for_pending(model, index + 1)
    calls.cancel(0)
    assert calls.is_cancelled(0)
    if server.is_triton:
        assert end(other, model, 1, active) == 2
    assert calls.is_cancelled(1) and calls.is_cancelled(2)
    assert_unknown(other, model, waiting)
    if not server.is_triton:
        assert end(other, model, 1, active) == 2
    assert start(other, model, 5, waiting, sequence_end=True) == 5


@pytest.mark.galatea_only  # Triton fails the earlier requests as well.
# row: SEQ-24
def test_cancelled_in_the_middle_of_the_backlog(
    server: Server, other: Grpc, calls: GrpcCalls, strategy: str
) -> None:
    """Earlier requests still complete, and then the slot is free."""
    model = f"sum_{strategy}"
    active, waiting = next(_ids), next(_ids)
    assert start(other, model, 1, active) == 1
    for index in range(4):
        calls.send(model, tensors(5), sequence_id=waiting, sequence_start=index == 0)
        server.wait_for_pending(model, index + 1)
    calls.cancel(2)
    assert calls.is_cancelled(2) and calls.is_cancelled(3)
    assert_unknown(other, model, waiting)
    assert end(other, model, 1, active) == 2
    assert [total(calls.wait(0)), total(calls.wait(1))] == [5, 10]
    assert start(other, model, 1, active, sequence_end=True) == 1


@contextlib.contextmanager
def held_server(
    start_server: StartServer, repository: pathlib.Path, strategy: str, waiting: int, slots: int
) -> Iterator[Server]:
    """A server whose "model" executes nothing until this many requests are waiting in its slots."""
    text = STRATEGIES[strategy].replace("sequences: 1", f"sequences: {slots}")
    batching = sequences.Batching(text, max_batch_size=slots)
    write_example(repository, "model", sequences.accumulator("int32", "zero", batching))
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(waiting)}
    with start_server(repository, environment=environment) as running:
        yield running.wait_until_ready()


@pytest.mark.galatea_only  # In Triton cancelled requests stay in the queue while it is held back.
# row: SEQ-24
def test_cancelled_in_a_slot(
    start_server: StartServer, tmp_path: pathlib.Path, strategy: str
) -> None:
    """Earlier requests complete; later ones are cancelled with it."""
    with (
        held_server(start_server, tmp_path, strategy, waiting=6, slots=2) as server,
        contextlib.closing(GrpcCalls(server)) as calls,
        GrpcStream(server) as stream,
    ):
        for index in range(4):
            calls.send("model", tensors(1), sequence_id=1, sequence_start=index == 0)
            server.wait_for_pending("model", index + 1)
        calls.cancel(2)
        assert calls.is_cancelled(2) and calls.is_cancelled(3)
        server.wait_for_pending("model", 2)
        assert_unknown(stream, "model", 1)
        for index in range(4):
            stream.send("model", tensors(10), sequence_id=2, sequence_start=index == 0)
        sums = [total(stream.receive()[1]) for _ in range(4)]
        assert sums == [10, 20, 30, 40]
        assert [total(calls.wait(0)), total(calls.wait(1))] == [1, 2]
        # Its slot is free: two more sequences have slots in addition to the second one.
        for sequence in (3, 1):
            assert start(stream, "model", 5, sequence, sequence_end=True) == 5


# row: CAN-03
def test_cancelled_while_it_runs(server: Server, other: Grpc, calls: GrpcCalls) -> None:
    """The cancellation is too late: the state has changed, and the sequence continues."""
    model = "slow_direct"
    sequence = next(_ids)
    assert start(other, model, 1, sequence) == 1
    calls.send(model, tensors(10, SOME_ROUNDS), sequence_id=sequence)
    if not server.is_triton:
        wait_until(lambda: is_busy(server, model) or calls.is_finished(0), 60, "it runs")
    calls.cancel(0)
    calls.is_cancelled(0)  # It may also have ended just before.
    assert end(other, model, 1, sequence) == 12 or server.is_triton


@pytest.mark.galatea_only  # In Triton cancelled requests stay in the queue while it is held back.
def test_a_broken_stream(start_server: StartServer, tmp_path: pathlib.Path, strategy: str) -> None:
    """Its waiting requests are cancelled, and the next sequence gets the slot."""
    with held_server(start_server, tmp_path, strategy, waiting=4, slots=1) as server:
        broken = GrpcStream(server)
        for index in range(3):
            broken.send("model", tensors(1), sequence_id=1, sequence_start=index == 0)
        server.wait_for_pending("model", 3)
        broken.close(cancel=True)
        server.wait_for_pending("model", 0)
        with GrpcStream(server) as stream:
            assert_unknown(stream, "model", 1)
            for index in range(4):
                stream.send("model", tensors(10), sequence_id=2, sequence_start=index == 0)
            sums = [total(stream.receive()[1]) for _ in range(4)]
        assert sums == [10, 20, 30, 40]


def test_no_sequence_inherits_the_last_state(
    start_server: StartServer, tmp_path: pathlib.Path, strategy: str
) -> None:
    """A sequence that begins while another's last request runs doesn't get its state."""
    batching = sequences.Batching(STRATEGIES[strategy], max_batch_size=1, instance_count=2)
    write_example(tmp_path, "slow", sequences.slow_accumulator(batching))
    with (
        start_server(tmp_path) as server,
        contextlib.closing(Grpc(server.wait_until_ready())) as other,
        contextlib.closing(GrpcCalls(server)) as calls,
    ):
        # The first instance is free again when the second executes the last request.
        assert start(other, "slow", 5, "first") == 5
        assert start(other, "slow", 1000, "ends") == 1000
        assert end(other, "slow", 5, "first") == 10
        options = {"sequence_id": "ends", "sequence_end": True}
        calls.send("slow", tensors(1000, SOME_ROUNDS), **options)
        if not server.is_triton:
            # If it has already run, the test checks nothing, and does not fail.
            wait_until(lambda: is_busy(server, "slow") or calls.is_finished(0), 60, "it runs")
        assert start(other, "slow", 1, "begins") == 1
        assert total(calls.wait(0)) == 2000
        assert infer(other, "slow", 1, "begins") == 2
        assert end(other, "slow", 1, "begins") == 3


def test_a_lost_http_client(server: Server, other: Grpc, strategy: str) -> None:
    """When a connection closes, its queued request is removed."""
    model = f"sum_{strategy}"
    active, waiting = next(_ids), next(_ids)
    assert start(other, model, 1, active) == 1
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    parameters = {"sequence_id": waiting, "sequence_start": True}
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [5]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters})
    connection.request("POST", f"/v2/models/{model}/infer", body)
    server.wait_for_pending(model, 1)
    connection.close()
    if not server.is_triton:  # Triton notices when it would execute the request.
        server.wait_for_pending(model, 0)
    assert end(other, model, 1, active) == 2
    if not server.is_triton:
        assert_unknown(other, model, waiting)


def test_a_half_closed_stream_gets_its_responses(server: Server, strategy: str) -> None:
    """The client may close its sending half and still receives its responses."""
    model = f"slow_{strategy}"
    sequence = next(_ids)
    stream = GrpcStream(server)
    for step in range(5):
        stream.send(
            model,
            tensors(1, 200),
            request_id=str(step),
            sequence_id=sequence,
            sequence_start=step == 0,
            sequence_end=step == 4,
        )
    stream.close()
    responses = stream.receive_all(5)
    assert [total(responses[str(step)]) for step in range(5)] == [1, 2, 3, 4, 5]
