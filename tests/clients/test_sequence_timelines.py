"""Tests of the batches of requests, their rows, and their controls.

The two variables that hold the scheduler back make the batches the same in every run: nothing is
executed until N requests are waiting in slots, and in the backlog. docs/schedulers.md draws these
timelines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from example_models import sequences
from example_models.repository import write_example

from conftest import StartServer
from server import Server, wait_until
from transports import GrpcCalls, GrpcStream
from wire import Tap

NO, YES = sequences.FALSE_TRUE["int32"]


@dataclasses.dataclass(frozen=True)
class SequenceRequest:
    """A request of a sequence; its input has `length` elements."""

    sequence: int
    start: bool
    end: bool
    length: int = 1


@dataclasses.dataclass(frozen=True)
class ObservedRow:
    """One row of a batch, as the model received it."""

    sequence: int
    start: bool
    end: bool
    ready: bool = True


PADDING = ObservedRow(0, start=False, end=False, ready=False)

Batch = tuple[ObservedRow, ...]


def row(text: str) -> ObservedRow:
    """Reads "7", "7S" (starts), "7E" (ends), "7SE" and "-" (padding)."""
    if text == "-":
        return PADDING
    return ObservedRow(int(text.rstrip("SE")), start="S" in text, end="E" in text)


def batches(*texts: str) -> list[Batch]:
    """Reads batches such as "1S 2SE"."""
    return [tuple(row(part) for part in text.split()) for text in texts]


def interleaved(lengths: Sequence[int]) -> list[SequenceRequest]:
    """The interleaved requests of whole sequences 1, 2, 3 ..."""
    return [
        SequenceRequest(sequence, start=step == 0, end=step == length - 1)
        for step in range(max(lengths))
        for sequence, length in enumerate(lengths, 1)
        if step < length
    ]


def control_value(value: Any) -> bool:
    """A control's value."""
    assert value in (NO, YES), value
    return value == YES


def observed_batch(outputs: dict[str, numpy.ndarray]) -> Batch:
    """The batch that a response describes."""
    columns = [outputs[name][0].tolist() for name in ("CORRIDS", "STARTS", "ENDS", "READYS")]
    return tuple(
        ObservedRow(identity, control_value(start), control_value(end), control_value(ready))
        for identity, start, end, ready in zip(*columns, strict=True)
    )


def send_all(server: Server, requests: Sequence[SequenceRequest]) -> list[Batch]:
    """Sends the requests in order on one stream; returns each one's batch.

    Checks that each request is in the row of its batch that the model reports.
    """
    with GrpcStream(server) as stream:
        for index, sent in enumerate(requests):
            stream.send(
                "model",
                {"INPUT": numpy.full((1, sent.length), index, numpy.int32)},
                request_id=str(index),
                sequence_id=sent.sequence,
                sequence_start=sent.start,
                sequence_end=sent.end,
            )
        received = stream.receive_all(len(requests))
    seen = []
    for index, sent in enumerate(requests):
        outputs = received[str(index)]
        assert outputs["OUTPUT"].tolist() == [[index] * sent.length]
        batch = observed_batch(outputs)
        assert batch[int(outputs["ROW"][0, 0])] == ObservedRow(sent.sequence, sent.start, sent.end)
        seen.append(batch)
    return seen


def run(
    start_server: StartServer,
    repository: pathlib.Path,
    batching: sequences.Batching,
    requests: Sequence[SequenceRequest],
    waiting: int,
    backlog: int = 0,
) -> tuple[list[Batch], dict[str, Any]]:
    """Serves a model that shows its batches; returns what each request saw, and the statistics."""
    write_example(repository, "model", sequences.controls("int32", "uint64", batching))
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(waiting)}
    if backlog:
        environment["TRITONSERVER_BACKLOG_DELAY_SCHEDULER"] = str(backlog)
    with start_server(repository, environment=environment) as server:
        server.wait_until_ready()
        seen = send_all(server, requests)

        def all_are_counted() -> bool:
            # Triton sends the response before it counts the request.
            return server.statistics("model")["inference_count"] >= len(requests)

        wait_until(all_are_counted, 60, "all requests are counted")
        return seen, server.statistics("model")


def check(
    outcome: tuple[list[Batch], dict[str, Any]],
    requests: Sequence[SequenceRequest],
    expected: list[Batch],
) -> None:
    """Each request ran in one of the expected batches, in order; statistics count them."""
    seen, statistics = outcome
    wanted: dict[int, list[Batch]] = {}
    for batch in expected:
        for one in batch:
            wanted.setdefault(one.sequence, []).append(batch)
    wanted.pop(PADDING.sequence, None)
    got: dict[int, list[Batch]] = {}
    for sent, batch in zip(requests, seen, strict=True):
        got.setdefault(sent.sequence, []).append(batch)
    assert got == wanted
    assert statistics["inference_count"] == len(requests)
    assert statistics["execution_count"] == len(expected)
    sizes = {one["batch_size"]: one["compute_infer"]["count"] for one in statistics["batch_stats"]}
    lengths = [len(batch) for batch in expected]
    assert sizes == {size: lengths.count(size) for size in set(lengths)}
    assert statistics["inference_stats"]["success"]["count"] == len(requests)
    assert statistics["inference_stats"]["compute_infer"]["count"] == len(requests)


@pytest.mark.galatea_only  # Triton's instances do not start at the same moment.
# row: SEQ-03 SEQ-06 SEQ-08 SEQ-16
def test_direct_two_instances_of_two_slots(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Sequences 1 and 3 share an instance, 2 and 4 the other; 5 and 6 take over slots."""
    requests = interleaved([3, 1, 1, 3, 2, 2])
    batching = sequences.Batching(sequences.DIRECT, max_batch_size=2, instance_count=2)
    outcome = run(start_server, tmp_path, batching, requests, waiting=8, backlog=4)
    first_instance = batches("1S 3SE", "1 5S", "1E 5E")
    second_instance = batches("2SE 4S", "6S 4", "6E 4E")
    check(outcome, requests, first_instance + second_instance)


# row: SEQ-07
def test_direct_slots_pass_to_the_backlog(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A slot is handed over with the request that ends its sequence."""
    requests = interleaved([3, 1, 2, 2, 1])
    batching = sequences.Batching(sequences.DIRECT, max_batch_size=3)
    outcome = run(start_server, tmp_path, batching, requests, waiting=6, backlog=3)
    check(outcome, requests, batches("1S 2SE 3S", "1 4S 3E", "1E 4E 5SE"))


# row: SEQ-15
def test_direct_padding(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Slots below the highest ready one are padded; those above are left out."""
    requests = interleaved([3, 1, 2])
    batching = sequences.Batching(sequences.DIRECT, max_batch_size=4)
    outcome = run(start_server, tmp_path, batching, requests, waiting=6)
    check(outcome, requests, batches("1S 2SE 3S", "1 - 3E", "1E"))


# row: SEQ-25
def test_direct_inputs_of_different_shapes(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A request that doesn't fit the batch's shape waits, and its slot is padded."""
    requests = [
        SequenceRequest(1, start=True, end=False, length=1),
        SequenceRequest(2, start=True, end=False, length=2),
        SequenceRequest(3, start=True, end=True, length=1),
        SequenceRequest(1, start=False, end=True, length=2),
        SequenceRequest(2, start=False, end=True, length=2),
    ]
    batching = sequences.Batching(sequences.DIRECT, max_batch_size=3)
    outcome = run(start_server, tmp_path, batching, requests, waiting=5)
    expected = batches("1S - 3SE", "1E 2S", "- 2E")
    check(outcome, requests, expected)


@pytest.mark.galatea_only  # Triton's variable counts only the next request of each sequence.
# row: SEQ-19 SEQ-29
def test_oldest_four_candidates(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The oldest pending requests make the batch; a fifth sequence waits for a place."""
    strategy = "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2 ] }"
    requests = interleaved([3, 2, 2, 1, 1])
    batching = sequences.Batching(strategy, max_batch_size=4)
    outcome = run(start_server, tmp_path, batching, requests, waiting=8, backlog=1)
    expected = batches("1S 2S", "3S 4SE", "1 2E", "5SE 3E", "1E")
    check(outcome, requests, expected)


@pytest.mark.galatea_only  # Triton's variable counts only the next request of each sequence.
# row: SEQ-20
def test_oldest_never_batches_a_sequence_with_itself(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A batch has at most one request of a sequence."""
    requests = interleaved([4, 2])
    batching = sequences.Batching("oldest { max_candidate_sequences: 2 }", max_batch_size=4)
    outcome = run(start_server, tmp_path, batching, requests, waiting=6)
    check(outcome, requests, batches("1S 2S", "1 2E", "1", "1E"))


# row: SEQ-17 SEQ-18
def test_direct_waits_for_slots(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """With both settings, a batch waits until enough slots are ready, here both."""
    strategy = "direct { max_queue_delay_microseconds: 60000000 minimum_slot_utilization: 1 }"
    requests = interleaved([2, 2])
    batching = sequences.Batching(strategy, max_batch_size=2)
    outcome = run(start_server, tmp_path, batching, requests, waiting=0)
    check(outcome, requests, batches("1S 2S", "1E 2E"))


@pytest.mark.parametrize(
    "strategy",
    [
        "direct { max_queue_delay_microseconds: 60000000 }",
        "direct { minimum_slot_utilization: 1 }",
        "direct { max_queue_delay_microseconds: 50000 minimum_slot_utilization: 1 }",
        "oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 50000 }",
        "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2 ] }",
    ],
)
# row: SEQ-16 SEQ-17 SEQ-21
def test_lone_requests_complete(
    start_server: StartServer, tmp_path: pathlib.Path, strategy: str
) -> None:
    """One setting alone has no effect, a delay ends, and a preferred size is not required."""
    requests = interleaved([2])
    outcome = run(start_server, tmp_path, sequences.Batching(strategy), requests, waiting=0)
    check(outcome, requests, batches("1S", "1E"))


# row: SEQ-21
def test_oldest_executes_at_a_preferred_size(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A preferred size ends the delay."""
    strategy = (
        "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2 ] "
        "max_queue_delay_microseconds: 60000000 }"
    )
    requests = interleaved([2, 2])
    outcome = run(start_server, tmp_path, sequences.Batching(strategy), requests, waiting=0)
    check(outcome, requests, batches("1S 2S", "1E 2E"))


@pytest.mark.galatea_only  # Triton preserves the order per instance.
# row: SEQ-22
def test_oldest_preserve_ordering(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Responses leave in the order of the requests, across sequences and instances."""
    strategy = "oldest { max_candidate_sequences: 2 preserve_ordering: true }"
    batching = sequences.Batching(strategy, max_batch_size=1, instance_count=2)
    write_example(tmp_path, "model", sequences.slow_accumulator(batching))
    # Sequences 1 and 2 are on an instance each, and the first is slow.
    sent = [(1, 300), (2, 0), (1, 100), (2, 0)]
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(len(sent))}
    with (
        start_server(tmp_path, environment=environment) as server,
        contextlib.closing(Tap(server.wait_until_ready())) as tap,
        contextlib.closing(GrpcCalls(tap)) as calls,
    ):
        for index, (sequence, rounds) in enumerate(sent):
            tensors = {"INPUT": numpy.array([[sequence]], numpy.int32)}
            tensors["ROUNDS"] = numpy.array([[rounds]], numpy.int64)
            flags = {"sequence_start": index < 2, "sequence_end": index >= 2}
            server.wait_for_pending("model", index)
            calls.send("model", tensors, sequence_id=sequence, **flags)
        sums = [int(calls.wait(index)["OUTPUT"][0, 0]) for index in range(len(sent))]
        assert sums == [1, 2, 2, 4]
        assert tap.responses == tap.requests
