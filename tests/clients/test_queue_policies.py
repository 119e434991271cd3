"""Tests of the dynamic batcher's queues: order, priorities, limits and deadlines.

TRITONSERVER_DELAY_SCHEDULER holds the scheduler back until N requests are waiting, so each test
knows the contents of the queue when the first batch is formed.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import make_models
import numpy
import pytest
from example_models import conformance
from example_models.repository import Example, write_example
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import Server, wait_until
from transports import TRANSPORTS, GrpcCalls, GrpcStream
from wire import Tap

NEVER = 1000
TIMEOUT_MICROSECONDS = 50_000


@contextlib.contextmanager
def held_server(
    start_server: StartServer, repository: pathlib.Path, settings: str, waiting: int
) -> Iterator[Server]:
    """A server with one model, which waits for this many requests and shows its batches."""
    example = conformance.onnx_whole_batch(f"dynamic_batching {{ {settings} }}")
    write_example(repository, "model", example)
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(waiting)}
    with start_server(repository, environment=environment) as running:
        yield running.wait_until_ready()


def tensor(value: int) -> dict[str, numpy.ndarray]:
    """A row that identifies its request."""
    return {"INPUT0": numpy.array([[value]], numpy.int32)}


def send(stream: GrpcStream, *options: dict[str, Any], first: int = 0) -> None:
    """Sends requests in order; their numbers serve as rows and IDs."""
    for number, one in enumerate(options, first):
        stream.send("model", tensor(number), request_id=str(number), **one)


def receive_batches(stream: GrpcStream, count: int) -> set[tuple[int, ...]]:
    """The batches in which this many requests were executed, with rows in order."""
    batches = set()
    for _ in range(count):
        number, outputs = stream.receive()
        (batch,) = outputs["OUTPUT0"].tolist()
        assert int(number) in batch
        batches.add(tuple(batch))
    return batches


def refusal(stream: GrpcStream) -> str:
    """The text of the next response, which is an error."""
    with pytest.raises(InferenceServerException) as caught:
        stream.receive()
    return caught.value.message()


def rejections(server: Server) -> int:
    """The number of requests that Triton counts as rejected."""
    pattern = r'^nv_inference_request_failure{(?=.*reason="REJECTED").*} (\d+)'
    (count,) = re.findall(pattern, server.metrics(), re.MULTILINE)
    return int(count)


def refused(server: Server) -> int:
    """The number of requests that found the queue full."""
    pattern = r'^galatea_inference_unexecuted_total{(?=.*reason="queue_full").*} (\d+)'
    (count,) = re.findall(pattern, server.metrics(), re.MULTILINE)
    return int(count)


def check_order(
    start_server: StartServer,
    repository: pathlib.Path,
    settings: str,
    priorities: Sequence[int],
    expected: Sequence[int],
) -> None:
    """Requests of these priorities are taken from the queue in the expected order."""
    with (
        held_server(start_server, repository, settings, len(priorities)) as server,
        GrpcStream(server) as stream,
    ):
        send(stream, *({"priority": priority} for priority in priorities))
        assert receive_batches(stream, len(priorities)) == {tuple(expected)}


# row: DYN-20
def test_first_come_first_served(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Without levels, a priority has no effect."""
    check_order(start_server, tmp_path, "", [3, 1, 2, 0, 1], [0, 1, 2, 3, 4])


# row: PPAR-05 DYN-07 DYN-08
def test_priorities(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Level 1 goes first; 0 and invalid levels mean the default; equal levels keep their order."""
    settings = "priority_levels: 3 default_priority_level: 2"
    given = [3, 0, 1, 4, 2, 3, 1, 2**40]
    check_order(start_server, tmp_path, settings, given, [2, 6, 1, 3, 4, 7, 0, 5])


@pytest.mark.galatea_only  # Triton doesn't stop while its scheduler is held back.
@pytest.mark.parametrize("kind", list(TRANSPORTS))
# row: DYN-09 DYN-10
def test_a_full_queue(start_server: StartServer, tmp_path: pathlib.Path, kind: str) -> None:
    """The next request is refused at once; those in the queue aren't affected."""
    settings = "default_queue_policy { max_queue_size: 2 }"
    with (
        held_server(start_server, tmp_path, settings, NEVER) as server,
        contextlib.closing(TRANSPORTS[kind](server)) as transport,
    ):
        stream = GrpcStream(server)
        send(stream, {}, {})
        server.wait_for_pending("model", 2)
        with pytest.raises(InferenceServerException) as caught:
            transport.infer("model", tensor(9))
        assert caught.value.status() in ("503", "StatusCode.UNAVAILABLE", None)
        assert "maximum queue size" in caught.value.message()
        assert server.pending("model") == 2
        # As in Triton, it is neither in the failures nor in the statistics.
        assert (refused(server), rejections(server)) == (1, 0)
        assert server.statistics("model")["inference_stats"]["fail"]["count"] == 0
        stream.close(cancel=True)
        server.wait_for_pending("model", 0)


@pytest.mark.galatea_only  # Triton checks no deadline while its scheduler is held back.
@pytest.mark.parametrize("kind", list(TRANSPORTS))
# row: PPAR-06 DYN-11
def test_a_deadline_in_the_queue(
    start_server: StartServer, tmp_path: pathlib.Path, kind: str
) -> None:
    """A request that waits too long is refused."""
    settings = (
        f"default_queue_policy {{ default_timeout_microseconds: {TIMEOUT_MICROSECONDS} "
        "timeout_action: REJECT }"
    )
    with (
        held_server(start_server, tmp_path, settings, NEVER) as server,
        contextlib.closing(TRANSPORTS[kind](server)) as transport,
    ):
        with pytest.raises(InferenceServerException) as caught:
            transport.infer("model", tensor(1))
        assert caught.value.status() in ("503", "StatusCode.UNAVAILABLE", None)
        assert "timeout expired" in caught.value.message()
        server.wait_for_pending("model", 0)


@pytest.mark.galatea_only  # Triton checks no deadline while its scheduler is held back.
# row: PPAR-06 DYN-14
def test_a_request_may_shorten_the_timeout(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A request may shorten it only if the policy allows that, and never lengthen it."""
    settings = (
        "priority_levels: 3 default_priority_level: 1 "
        "default_queue_policy { default_timeout_microseconds: 3600000000 } "
        "priority_queue_policy [ { key: 2 value { allow_timeout_override: true "
        "default_timeout_microseconds: 3600000000 } }, "
        "{ key: 3 value { allow_timeout_override: true } } ]"
    )
    with (
        held_server(start_server, tmp_path, settings, 5) as server,
        GrpcStream(server) as stream,
    ):
        short = {"timeout": TIMEOUT_MICROSECONDS}
        # Only the first of these may shorten an existing timeout.
        send(stream, {"priority": 2, **short}, {"priority": 2, "timeout": 2**62})
        send(stream, {"priority": 1, **short}, {"priority": 3, **short}, first=2)
        assert "timeout expired" in refusal(stream)
        server.wait_for_pending("model", 3)
        send(stream, {"priority": 1}, first=4)
        assert receive_batches(stream, 4) == {(2, 4, 1, 3)}


@pytest.mark.galatea_only  # Triton checks no deadline while its scheduler is held back.
# row: DYN-09 DYN-12
def test_late_requests_may_be_delayed(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """They move behind all others on their level, but are still executed."""
    settings = (
        "default_queue_policy { timeout_action: DELAY allow_timeout_override: true "
        "default_timeout_microseconds: 3600000000 }"
    )
    with (
        held_server(start_server, tmp_path, settings, waiting=4) as server,
        GrpcStream(server) as stream,
    ):
        short = {"timeout": TIMEOUT_MICROSECONDS}
        send(stream, short, {}, short)
        server.wait_for_pending("model", 3)

        def waited_us() -> int:
            (queue,) = server.scheduler("model")["queues"]
            return queue["oldest_age_us"]

        deadline_us = waited_us() + TIMEOUT_MICROSECONDS
        wait_until(lambda: waited_us() > deadline_us, 60, "two requests are late")
        send(stream, {}, first=3)
        assert receive_batches(stream, 4) == {(1, 3, 0, 2)}


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ("", {(0, 1, 2, 3, 4)}),
        ("preferred_batch_size: [ 2 ]", {(0, 1), (2, 3), (4,)}),
        ("preferred_batch_size: [ 2, 3 ]", {(0, 1, 2), (3, 4)}),
        ("preferred_batch_size: [ 6 ]", {(0, 1, 2, 3, 4)}),
        pytest.param(
            "preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 1000000",
            {(0, 1, 2), (3, 4)},
            marks=pytest.mark.galatea_only,  # Triton forms it too early.
        ),
    ],
)
# row: DYN-04 DYN-05
def test_preferred_sizes(
    start_server: StartServer, tmp_path: pathlib.Path, settings: str, batches: set[tuple[int, ...]]
) -> None:
    """The largest size that was reached is used; the remaining requests execute at once, or
    after the delay."""
    with held_server(start_server, tmp_path, settings, 5) as server:
        with GrpcStream(server) as stream:
            send(stream, *({} for _ in range(5)))
            assert receive_batches(stream, 5) == batches

        def all_are_counted() -> bool:
            return server.statistics("model")["inference_count"] == 5

        wait_until(all_are_counted, 60, "all requests are counted")
        assert server.statistics("model")["execution_count"] == len(batches)


def slow_model(settings: str) -> Example:
    """Two instances of the slow model, without batches of several requests."""
    example = make_models.TEST_MODELS["onnx_slow"]()
    config = (example.config or "").replace("max_batch_size: 8", "max_batch_size: 1")
    config = config.replace("onnx_slow", "model")
    config = config.replace("count: 1", "count: 2")
    return Example(config.replace("dynamic_batching { }", settings), example.versions)


# row: DYN-06
def test_preserve_ordering(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Responses are sent in the order of the requests, whichever instance is faster."""
    settings = "dynamic_batching { preserve_ordering: true }"
    write_example(tmp_path, "model", slow_model(settings))
    rounds = [300, 0, 0, 0, 100, 0, 50, 0, 0, 200, 0, 0]
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(len(rounds))}
    with (
        start_server(tmp_path, environment=environment) as server,
        contextlib.closing(Tap(server.wait_until_ready())) as tap,
        contextlib.closing(GrpcCalls(tap)) as calls,
    ):
        for index, number in enumerate(rounds, 1):
            calls.send("model", {"ROUNDS": numpy.array([[number]], numpy.int64)})
            if index < len(rounds):
                server.wait_for_pending("model", index)
        received = [calls.wait(index)["DONE"].tolist() for index in range(len(rounds))]
        assert received == [[[number]] for number in rounds]
        assert tap.responses == tap.requests


@pytest.mark.galatea_only  # Triton checks no deadline while its scheduler is held back.
def test_preserve_ordering_with_failures(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """A request that can't run is refused at once; the others keep their order."""
    settings = (
        "preserve_ordering: true default_queue_policy { allow_timeout_override: true "
        "default_timeout_microseconds: 3600000000 }"
    )
    with (
        held_server(start_server, tmp_path, settings, waiting=4) as server,
        contextlib.closing(Tap(server)) as tap,
        contextlib.closing(GrpcCalls(tap)) as calls,
    ):
        calls.send("model", tensor(0))
        server.wait_for_pending("model", 1)
        calls.send("model", tensor(1), timeout=TIMEOUT_MICROSECONDS)
        with pytest.raises(InferenceServerException, match="timeout expired"):
            calls.wait(1)
        calls.send("model", tensor(2))
        server.wait_for_pending("model", 2)
        calls.send("model", tensor(3))
        for number in (0, 2, 3):
            assert number in calls.wait(number)["OUTPUT0"]
        first, refused, *others = tap.requests
        assert tap.responses == [refused, first, *others]
