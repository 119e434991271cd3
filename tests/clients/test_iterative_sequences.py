"""Tests of requests that are executed repeatedly until their backend completes them.

The backend `token_counter` produces a token in each execution, and reports how many requests shared
the execution. Batching is continuous if requests join and leave between executions.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from example_models import iterative
from example_models.repository import write_example
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import Server, wait_until
from transports import TRANSPORTS, GrpcStream, Transport

pytestmark = pytest.mark.galatea_only  # The backend is our own.

STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 4 }"}
STATES = ["state", "memory"]
#: How long an execution lasts where a test needs time between two of them.
DELAY_MICROSECONDS = 2_000
ENDLESS = 1_000_000


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """There are decoupled and single-response models, with states that the server or the backend
    keeps."""
    repository = tmp_path_factory.mktemp("iterative")
    for name, make in iterative.MODELS.items():
        write_example(repository, name, make())
    for name, strategy in STRATEGIES.items():
        slow = iterative.token_counter(True, strategy, 2, DELAY_MICROSECONDS)
        write_example(repository, f"slow_{name}", slow)
        idle = DELAY_MICROSECONDS // 2
        late = iterative.token_counter(
            True, strategy, 2, DELAY_MICROSECONDS, idle_microseconds=idle
        )
        write_example(repository, f"late_{name}", late)
    with start_server(repository) as running:
        yield running.wait_until_ready()


@pytest.fixture(params=list(STRATEGIES))
def strategy(request: pytest.FixtureRequest) -> str:
    """Both strategies."""
    return request.param


def count(number: int) -> dict[str, numpy.ndarray]:
    """The only input."""
    return {"COUNT": numpy.array([[number]], numpy.int32)}


def tokens(stream: GrpcStream, requests: dict[str, int]) -> dict[str, list[int]]:
    """Receives all responses of requests for this many tokens each."""
    received: dict[str, list[int]] = {name: [] for name in requests}
    for _ in range(sum(requests.values())):
        name, outputs = stream.receive()
        (token,) = outputs["TOKEN"].reshape(-1).tolist()
        received[name].append(token)
    return received


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("number", [0, 1, 7, 300])
# row: ITER-01 ITER-05
def test_one_response(transport: Transport, strategy: str, state: str, number: int) -> None:
    """Without decoupling, the client gets one response with all tokens, and no sequence."""
    outputs = transport.infer(f"tokens_{strategy}_single_{state}", count(number))
    assert outputs["TOKEN"].reshape(-1).tolist() == list(range(number))


@pytest.mark.parametrize("state", STATES)
# row: ITER-05
def test_a_response_for_each_iteration(stream: GrpcStream, strategy: str, state: str) -> None:
    """A decoupled model sends a response in each execution."""
    stream.send(f"tokens_{strategy}_decoupled_{state}", count(50), request_id="a")
    assert tokens(stream, {"a": 50}) == {"a": list(range(50))}


def test_an_empty_final_response_can_be_requested(stream: GrpcStream, strategy: str) -> None:
    """A request without tokens gets an empty final response if the client requests it."""
    model = f"tokens_{strategy}_decoupled_memory"
    for name in ("a", "b"):
        stream.send(model, count(0), request_id=name, enable_empty_final_response=True)
        assert stream.receive() == (name, {})
    stream.send(model, count(2), request_id="c", enable_empty_final_response=True)
    assert tokens(stream, {"c": 2}) == {"c": [0, 1]}


@pytest.mark.parametrize("state", STATES)
def test_many_requests_at_once(stream: GrpcStream, strategy: str, state: str) -> None:
    """More requests than slots, of different lengths, each get their own tokens."""
    model = f"tokens_{strategy}_decoupled_{state}"
    requests = {str(number): number for number in (1, 60, 3, 0, 25, 7, 40, 2, 9, 30, 11, 5)}
    for name, number in requests.items():
        stream.send(model, count(number), request_id=name)
    expected = {name: list(range(number)) for name, number in requests.items()}
    assert tokens(stream, requests) == expected


# row: ITER-05
def test_an_iteration_after_the_idle_time_fails(stream: GrpcStream, strategy: str) -> None:
    """The first token arrives; after that, the sequence no longer exists, as in Triton."""
    stream.send(f"late_{strategy}", count(5), request_id="a")
    assert tokens(stream, {"a": 1}) == {"a": [0]}
    with pytest.raises(InferenceServerException, match="must specify the START flag on the first"):
        stream.receive()
    # One execution has no idle time.
    stream.send(f"late_{strategy}", count(1), request_id="b")
    assert tokens(stream, {"b": 1}) == {"b": [0]}


# row: ITER-07
def test_states_are_shown(stream: GrpcStream, strategy: str) -> None:
    """The implicit state of an iteration, listed as an output."""
    stream.send(f"tokens_{strategy}_decoupled_state", count(5))
    steps = [stream.receive()[1]["STEPS_NEXT"].reshape(-1).tolist() for _ in range(5)]
    assert steps == [[1], [2], [3], [4], [5]]


# row: ITER-03
def test_sequence_parameters_mean_nothing(stream: GrpcStream, strategy: str) -> None:
    """Each request is a separate sequence, regardless of its parameters."""
    model = f"tokens_{strategy}_decoupled_state"
    for name in ("a", "b"):
        stream.send(model, count(20), request_id=name, sequence_id=7, sequence_start=True)
    expected = {"a": list(range(20)), "b": list(range(20))}
    assert tokens(stream, {"a": 20, "b": 20}) == expected


# row: ITER-04
def test_continuous_batching(
    start_server: StartServer, tmp_path: pathlib.Path, strategy: str
) -> None:
    """Three requests of 2, 4 and 6 tokens: the batch shrinks as they leave.

    A fourth request waits for a slot, and joins as soon as the first one leaves.
    """
    text = STRATEGIES[strategy].replace("sequences: 4", "sequences: 3")
    write_example(tmp_path, "model", iterative.token_counter(True, text, max_batch_size=3))
    environment = {
        "TRITONSERVER_DELAY_SCHEDULER": "3",
        "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "1",
    }
    with (
        start_server(tmp_path, environment=environment) as server,
        GrpcStream(server.wait_until_ready()) as stream,
    ):
        requests = {"two": 2, "four": 4, "six": 6, "late": 3}
        for name, number in requests.items():
            stream.send("model", count(number), request_id=name)
        live: dict[str, list[int]] = {name: [] for name in requests}
        for _ in range(sum(requests.values())):
            name, outputs = stream.receive()
            live[name] += outputs["LIVE"].reshape(-1).tolist()
        # Executions 1 to 6; "late" takes part from the third to the fifth.
        assert live == {
            "two": [3, 3],
            "four": [3, 3, 3, 3],
            "six": [3, 3, 3, 3, 2, 1],
            "late": [3, 3, 2],
        }
        wait_until(
            lambda: server.statistics("model")["execution_count"] == 6, 60, "all is counted"
        )


# row: ITER-04
def test_new_requests_join(server: Server, strategy: str) -> None:
    """A short request completes while an endless one continues."""
    model = f"slow_{strategy}"
    endless, short = GrpcStream(server), GrpcStream(server)
    endless.send(model, count(ENDLESS), request_id="endless")
    endless.receive()
    short.send(model, count(5), request_id="short")
    responses = [short.receive()[1] for _ in range(5)]
    assert [one["TOKEN"].reshape(-1).tolist() for one in responses] == [[0], [1], [2], [3], [4]]
    assert [one["LIVE"].reshape(-1).tolist() for one in responses] == [[2]] * 5
    endless.close(cancel=True)
    short.close()


# row: ITER-06
def test_cancelled_between_iterations(server: Server, strategy: str) -> None:
    """Other requests get the slots of cancelled requests."""
    model = f"slow_{strategy}"
    lost = GrpcStream(server)
    slot_count = 2 if strategy == "direct" else 4
    for name in range(slot_count):
        lost.send(model, count(ENDLESS), request_id=str(name))
    wait_until(lambda: free_slots(server, model) == 0, 60, "all slots are taken")
    with GrpcStream(server) as stream:
        stream.send(model, count(3), request_id="waiting")
        wait_until(lambda: len(backlog(server, model)) == 1, 60, "one request waits")
        lost.close(cancel=True)
        assert tokens(stream, {"waiting": 3}) == {"waiting": [0, 1, 2]}
    wait_until(lambda: free_slots(server, model) == slot_count, 60, "all slots are free")


def free_slots(server: Server, model: str) -> int:
    """Slots without a sequence, from the status page."""
    return server.scheduler(model)["sequences"]["free_slots"]


def backlog(server: Server, model: str) -> list[Any]:
    """Sequences without a slot, from the status page."""
    return server.scheduler(model)["sequences"]["backlog"]


@pytest.mark.parametrize("number", [-1, 2**21])
def test_bad_requests(server: Server, stream: GrpcStream, strategy: str, number: int) -> None:
    """The backend refuses them; other requests continue."""
    model = f"tokens_{strategy}_decoupled_state"
    stream.send(model, count(30), request_id="good")
    stream.send(model, count(number), request_id="bad")
    good, refused = [], 0
    while len(good) < 30 or not refused:
        try:
            good += stream.receive()[1]["TOKEN"].reshape(-1).tolist()
        except InferenceServerException as error:
            assert "COUNT" in error.message()
            refused += 1
    assert (good, refused) == (list(range(30)), 1)
    wait_until(lambda: free_slots(server, model) == 4, 60, "all slots are free")


def test_batches_are_refused(stream: GrpcStream, strategy: str) -> None:
    """As for every sequence model."""
    stream.send(f"tokens_{strategy}_decoupled_state", {"COUNT": numpy.ones((2, 1), numpy.int32)})
    with pytest.raises(InferenceServerException, match="batch-size 1"):
        stream.receive()


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_decoupled_models_need_a_stream(server: Server, strategy: str, kind: str) -> None:
    """Protocols with one response per request refuse decoupled models."""
    with contextlib.closing(TRANSPORTS[kind](server)) as transport:
        with pytest.raises(InferenceServerException, match="decoupled"):
            transport.infer(f"tokens_{strategy}_decoupled_state", count(2))


def test_statistics_count_each_iteration(server: Server, stream: GrpcStream) -> None:
    """Each iteration counts as an execution, each request as one success."""
    model = "tokens_oldest_single_memory"
    before = server.statistics(model)
    stream.send(model, count(6))
    stream.receive()
    after = server.statistics(model)
    assert after["execution_count"] - before["execution_count"] == 6
    grown = after["inference_stats"]["success"]["count"]
    assert grown - before["inference_stats"]["success"]["count"] == 1
