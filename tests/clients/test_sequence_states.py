"""Tests of implicit state: every partial result of every kind of state, over every protocol."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import make_models
import numpy
import pytest
from example_models import sequences

from conftest import StartServer
from server import Server
from transports import TRANSPORTS, GrpcStream, Transport

DATATYPES: dict[str, Any] = {"int32": numpy.int32, "fp32": numpy.float32, "bytes": numpy.object_}
STRATEGIES = list(sequences.STRATEGIES)
INITIAL_STATES = ["zero", "file", "unspecified"]

_ids = itertools.count(1)


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the stateful models."""
    repository = tmp_path_factory.mktemp("states")
    make_models.write_models(repository, make_models.STATEFUL_MODELS)
    with start_server(repository) as running:
        yield running.wait_until_ready()


def values(datatype: str) -> list[Any]:
    """The inputs of a sequence."""
    return ["a", "", "bc", "ü", "d" * 300] if datatype == "bytes" else [1, -20, 300, 0, 5]


def first(datatype: str, initial: str) -> Any:
    """The initial value of the sum."""
    if initial == "file":
        return sequences.INITIAL_TEXT if datatype == "bytes" else sequences.INITIAL_NUMBER
    return "" if datatype == "bytes" else 0


def tensor(value: Any, datatype: str = "int32", batched: bool = True) -> dict[str, numpy.ndarray]:
    """The input of an accumulator."""
    content = value.encode() if isinstance(value, str) else value
    array = numpy.array([content], DATATYPES[datatype])
    return {"INPUT": array[None] if batched else array}


def number(outputs: dict[str, numpy.ndarray], name: str = "OUTPUT") -> Any:
    """The only element of an output."""
    element = outputs[name].reshape(-1).tolist()
    assert len(element) == 1, outputs
    return element[0].decode() if isinstance(element[0], bytes) else element[0]


def partial_sums(
    transport: Transport, model: str, datatype: str, sequence: Any, batched: bool = True
) -> list[Any]:
    """Sends a whole sequence, and returns its partial sums."""
    given = values(datatype)
    received = []
    for index, value in enumerate(given):
        outputs = transport.infer(
            model,
            tensor(value, datatype, batched),
            sequence_id=sequence,
            sequence_start=index == 0,
            sequence_end=index == len(given) - 1,
        )
        received.append(number(outputs))
    return received


def expected_sums(datatype: str, initial: str) -> list[Any]:
    """The expected responses."""
    return list(itertools.accumulate(values(datatype), initial=first(datatype, initial)))[1:]


def skip_if_triton_lacks_it(is_triton: bool, datatype: str, initial: str) -> None:
    """Skips states of strings from a file, which Triton doesn't support."""
    if is_triton and (datatype, initial) == ("bytes", "file"):
        pytest.skip("Triton fills the state with zeros, or ends")


@pytest.mark.parametrize("initial", INITIAL_STATES)
@pytest.mark.parametrize("datatype", list(DATATYPES))
@pytest.mark.parametrize("strategy", STRATEGIES)
# row: PPAR-07 BEK-06 IMP-01
def test_partial_sums(
    server: Server, transport: Transport, strategy: str, datatype: str, initial: str
) -> None:
    """Each sequence has its own state; a second one starts again, with either kind of ID."""
    skip_if_triton_lacks_it(server.is_triton, datatype, initial)
    model = f"accumulate_{strategy}_{datatype}_{initial}"
    for sequence in (next(_ids), f"sequence {next(_ids)}"):
        received = partial_sums(transport, model, datatype, sequence)
        assert received == expected_sums(datatype, initial)


@pytest.mark.parametrize("strategy", STRATEGIES)
# row: BEK-02
def test_interleaved_sequences(transport: Transport, strategy: str) -> None:
    """Interleaved sequences use all slots of two instances."""
    model = f"accumulate_{strategy}_int32_file"
    ids = [next(_ids) for _ in range(8)]
    for step in range(5):
        for place, sequence in enumerate(ids):
            outputs = transport.infer(
                model,
                tensor(10 * place + step),
                sequence_id=sequence,
                sequence_start=step == 0,
                sequence_end=step == 4,
            )
            total = sum(10 * place + earlier for earlier in range(step + 1))
            assert number(outputs) == sequences.INITIAL_NUMBER + total


LENGTHS = [3, 2, 4, 1, 2]


@pytest.fixture(scope="module")
def held_server(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The same models, which execute nothing before all requests of LENGTHS wait."""
    repository = tmp_path_factory.mktemp("held_states")
    models = {
        **make_models.STATEFUL_MODELS,
        "history_direct": lambda: sequences.history(sequences.Batching()),
    }
    make_models.write_models(repository, models)
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(sum(LENGTHS))}
    with start_server(repository, environment=environment) as running:
        yield running.wait_until_ready()


def in_batches(server: Server, model: str, given: list[list[Any]]) -> list[list[Any]]:
    """Sends sequences whose requests run together, and returns everything that each one received.

    `given` contains the values of each sequence. Some are longer than others, so a batch also has
    padding rows.
    """
    datatype = next((one for one in DATATYPES if f"_{one}_" in model), "int32")
    longest = max(len(one) for one in given)
    turns = [(step, place) for step in range(longest) for place in range(len(given))]
    sent = []
    with GrpcStream(server) as stream:
        for step, place in turns:
            if step < len(given[place]):
                stream.send(
                    model,
                    tensor(given[place][step], datatype),
                    request_id=f"{place}",
                    sequence_id=place + 1,
                    sequence_start=step == 0,
                    sequence_end=step == len(given[place]) - 1,
                )
                sent.append(place)
        received: list[list[Any]] = [[] for _ in given]
        for _ in sent:
            place, outputs = stream.receive()
            (array,) = (outputs[name] for name in ("OUTPUT", "SEEN_NEXT") if name in outputs)
            elements = array.reshape(-1).tolist()
            received[int(place)].append(elements[0].decode() if datatype == "bytes" else elements)
    return received


@pytest.mark.parametrize("initial", INITIAL_STATES)
@pytest.mark.parametrize("datatype", list(DATATYPES))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_states_of_a_batch(
    held_server: Server, strategy: str, datatype: str, initial: str
) -> None:
    """Rows of a batch, some of them padding, have separate states."""
    skip_if_triton_lacks_it(held_server.is_triton, datatype, initial)
    if held_server.is_triton and strategy == "oldest":
        pytest.skip("its variable counts only the next request of each sequence")
    model = f"accumulate_{strategy}_{datatype}_{initial}"
    start = first(datatype, initial)
    if datatype == "bytes":
        given: list[list[Any]] = [
            [f"{place}.{step};" for step in range(length)] for place, length in enumerate(LENGTHS)
        ]
        expected = [list(itertools.accumulate(one, initial=start))[1:] for one in given]
    else:
        given = [[10**place] * length for place, length in enumerate(LENGTHS)]
        expected = [
            [[total] for total in itertools.accumulate(one, initial=start)][1:] for one in given
        ]
    assert in_batches(held_server, model, given) == expected
    statistics = held_server.statistics(model)
    assert statistics["execution_count"] < sum(LENGTHS)


# row: IMP-08
def test_one_buffer_in_a_batch(held_server: Server) -> None:
    """The model writes each row's state in place."""
    given = [[10**place] * length for place, length in enumerate(LENGTHS)]
    given.pop()  # Four slots, so the fifth sequence would be in the backlog.
    given[0] += given[0][:1] * 2
    expected = [[[total] for total in itertools.accumulate(one)] for one in given]
    assert in_batches(held_server, "accumulate_same_buffer", given) == expected


@pytest.mark.galatea_only  # Triton refuses to batch states of different sizes.
@pytest.mark.parametrize("model", ["history_batched", "history_direct"])
def test_states_of_different_sizes(held_server: Server, model: str) -> None:
    """Requests whose states differ in size get the same responses as without batching."""
    given = [[1] * 3, [2] * 2, [3] * 6, [4]]
    seen = in_batches(held_server, model, given)
    assert seen == [[[0, *one[: step + 1]] for step in range(len(one))] for one in given]


# row: PPAR-08
def test_start_and_end_on_one_request(transport: Transport) -> None:
    """A sequence of one request; the ID may be used again at once."""
    for _ in range(3):
        outputs = transport.infer(
            "accumulate_direct_int32_zero",
            tensor(7),
            sequence_id=4711,
            sequence_start=True,
            sequence_end=True,
        )
        assert number(outputs) == 7


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("initial", INITIAL_STATES)
# row: SEQ-04
def test_start_on_a_live_sequence(transport: Transport, strategy: str, initial: str) -> None:
    """The sequence starts again and continues."""
    model = f"accumulate_{strategy}_int32_{initial}"
    sequence = next(_ids)
    begin = first("int32", initial)

    def infer(value: int, **flags: bool) -> Any:
        return number(transport.infer(model, tensor(value), sequence_id=sequence, **flags))

    assert infer(1, sequence_start=True) == begin + 1
    assert infer(2) == begin + 3
    assert infer(10, sequence_start=True) == begin + 10
    assert infer(20, sequence_end=True) == begin + 30


def test_numbers_and_strings_are_different_ids(transport: Transport) -> None:
    """The number 5 and the text "5" are two sequences."""
    model = "accumulate_direct_int32_zero"
    sequence = next(_ids)
    for step in range(3):
        flags = {"sequence_start": step == 0, "sequence_end": step == 2}
        by_number = transport.infer(model, tensor(1), sequence_id=sequence, **flags)
        by_text = transport.infer(model, tensor(10), sequence_id=str(sequence), **flags)
        assert (number(by_number), number(by_text)) == (step + 1, 10 * (step + 1))


def test_the_largest_ids(transport: Transport) -> None:
    """The largest numbers of the client's fields, and 128 characters."""
    for sequence in (2**63 - 1, "x" * 128):
        received = partial_sums(transport, "accumulate_oldest_int32_zero", "int32", sequence)
        assert received == expected_sums("int32", "zero")


def test_the_largest_number_over_http(server: Server) -> None:
    """JSON has room for all 64 bits."""
    with contextlib.closing(TRANSPORTS["http"](server)) as transport:
        received = partial_sums(transport, "accumulate_direct_int32_zero", "int32", 2**64 - 1)
    assert received == expected_sums("int32", "zero")


@pytest.mark.parametrize("model", ["accumulate_same_buffer", "accumulate_without_batches"])
# row: IMP-08
def test_other_accumulators(transport: Transport, model: str) -> None:
    """A state with one buffer, and a model without a batch dimension."""
    batched = model != "accumulate_without_batches"
    for _ in range(2):
        received = partial_sums(transport, model, "int32", next(_ids), batched)
        assert received == expected_sums("int32", "zero")


@pytest.mark.parametrize("model", ["history", "history_batched"])
# row: IMP-07
def test_a_state_that_grows(transport: Transport, model: str) -> None:
    """A state with a variable size, which is also an output."""
    sequence = next(_ids)
    for step in range(4):
        outputs = transport.infer(
            model,
            tensor(step + 1, batched=model != "history"),
            sequence_id=sequence,
            sequence_start=step == 0,
            sequence_end=step == 3,
        )
        assert list(outputs) == ["SEEN_NEXT"]
        assert outputs["SEEN_NEXT"].reshape(-1).tolist() == list(range(step + 2))


# row: IMP-01
def test_two_states(transport: Transport) -> None:
    """One is hidden, and the other is also an output."""
    sequence = next(_ids)
    for step in range(3):
        outputs = transport.infer(
            "two_states",
            tensor(step),
            sequence_id=sequence,
            sequence_start=step == 0,
            sequence_end=step == 2,
        )
        assert sorted(outputs) == ["OUTPUT", "TRACE_NEXT"]
        assert number(outputs) == sequences.INITIAL_NUMBER + sum(range(step + 1))
        assert number(outputs, "TRACE_NEXT") == "".join(f"{earlier}," for earlier in range(step + 1))


def test_a_state_can_be_the_only_output(transport: Transport) -> None:
    """The state advances, whether the client requests another output or only the state."""
    sequence = next(_ids)
    wanted = [["OUTPUT"], ["TRACE_NEXT"], ["OUTPUT", "TRACE_NEXT"]]
    for step, names in enumerate(wanted):
        outputs = transport.infer(
            "two_states",
            tensor(step),
            sequence_id=sequence,
            sequence_start=step == 0,
            sequence_end=step == 2,
            outputs=names,
        )
        assert sorted(outputs) == sorted(names)
    assert number(outputs, "TRACE_NEXT") == "0,1,2,"


# row: IMP-02
def test_states_are_not_in_the_metadata(server: Server) -> None:
    """The metadata lists the state only if it is also an output."""
    hidden = server.get("/v2/models/accumulate_direct_int32_unspecified").json()
    assert [one["name"] for one in hidden["inputs"]] == ["INPUT"]
    assert [one["name"] for one in hidden["outputs"]] == ["OUTPUT"]
    shown = server.get("/v2/models/two_states").json()
    assert [one["name"] for one in shown["inputs"]] == ["INPUT"]
    assert sorted(one["name"] for one in shown["outputs"]) == ["OUTPUT", "TRACE_NEXT"]


# row: IMP-05
def test_initial_state_files_are_read_once(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The state is the file's content at load time."""
    name = "accumulate_direct_int32_file"
    make_models.write_models(tmp_path, make_models.STATEFUL_MODELS, [name])
    with start_server(tmp_path) as running:
        running.wait_until_ready()
        (tmp_path / name / "initial_state" / "start.bin").unlink()
        with contextlib.closing(TRANSPORTS["http"](running)) as transport:
            received = partial_sums(transport, name, "int32", 1)
    assert received == expected_sums("int32", "file")
