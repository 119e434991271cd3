"""Tests of the control tensors that a model sees, in every data type, over every protocol."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import make_models
import numpy
import pytest
from example_models import sequences
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from server import Server
from transports import Transport

NUMBERS = ["int32_uint64", "fp32_int64", "bool_uint32", "int32_int32"]
STRINGS = "fp32_string"
STRATEGIES = list(sequences.STRATEGIES)
DATATYPES: dict[str, Any] = {
    "int32": numpy.int32,
    "fp32": numpy.float32,
    "bool": numpy.bool_,
    "uint64": numpy.uint64,
    "int64": numpy.int64,
    "uint32": numpy.uint32,
    "string": numpy.object_,
}
#: Triton always passes 128 bytes to the model, even for shorter texts.
STRINGS_FAIL = pytest.mark.galatea_only

_ids = itertools.count(1)


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the models that show their controls."""
    repository = tmp_path_factory.mktemp("controls")
    names = [name for name in make_models.STATEFUL_MODELS if name.startswith("controls_")]
    make_models.write_models(repository, make_models.STATEFUL_MODELS, names)
    with start_server(repository) as running:
        yield running.wait_until_ready()


def tensor(*values: int) -> dict[str, numpy.ndarray]:
    """The input of the models."""
    return {"INPUT": numpy.array([values], numpy.int32)}


def only(outputs: dict[str, numpy.ndarray], name: str, datatype: str) -> Any:
    """The only element of an output of this type; strings are returned as text."""
    array = outputs[name]
    assert array.dtype == DATATYPES[datatype]
    (element,) = array.reshape(-1).tolist()
    return element.decode() if isinstance(element, bytes) else element


def check_sequence(transport: Transport, model: str, kinds: str, given: Any, seen: Any) -> None:
    """Sends three requests with the ID `given`; the model sees the ID `seen`."""
    truth, identity = kinds.split("_")
    no, yes = sequences.FALSE_TRUE[truth]
    for step in range(3):
        start, end = step == 0, step == 2
        outputs = transport.infer(
            model,
            tensor(step),
            sequence_id=given,
            sequence_start=start,
            sequence_end=end,
        )
        assert outputs["OUTPUT"].tolist() == [[step]]
        assert only(outputs, "STARTS", truth) == (yes if start else no)
        assert only(outputs, "ENDS", truth) == (yes if end else no)
        assert only(outputs, "READYS", truth) == yes
        assert only(outputs, "CORRIDS", identity) == seen
        assert outputs["STARTS"].shape == outputs["CORRIDS"].shape == (1, 1)


@pytest.mark.parametrize("kinds", NUMBERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
# row: SEQ-10 SEQ-11 SEQ-12 SEQ-13
def test_all_four_controls(transport: Transport, strategy: str, kinds: str) -> None:
    """START, END, READY and CORRID with every pair of values and every type of number."""
    for _ in range(2):
        sequence = next(_ids)
        check_sequence(transport, f"controls_{strategy}_{kinds}", kinds, sequence, sequence)


@STRINGS_FAIL
@pytest.mark.parametrize("strategy", STRATEGIES)
# row: SEQ-13
def test_string_ids(transport: Transport, strategy: str) -> None:
    """A text is passed to the model unchanged."""
    for sequence in ("a", "Zürich, 8001", "y" * 128):
        check_sequence(transport, f"controls_{strategy}_{STRINGS}", STRINGS, sequence, sequence)


@pytest.mark.parametrize(
    ("kinds", "given", "seen"),
    [
        ("int32_uint64", 2**63 - 1, 2**63 - 1),
        ("fp32_int64", 2**63 - 1, 2**63 - 1),
        ("bool_uint32", (5 << 32) + 9, 9),
        ("bool_uint32", 2**32 - 1, 2**32 - 1),
        ("int32_int32", 2**32 - 2, -2),
        ("int32_int32", (7 << 32) + 11, 11),
    ],
)
# row: SEQ-13
def test_numbers_that_need_more_bits(
    transport: Transport, kinds: str, given: int, seen: int
) -> None:
    """A type of 32 bits holds the lower half."""
    check_sequence(transport, f"controls_direct_{kinds}", kinds, given, seen)


def test_ids_with_equal_lower_halves(transport: Transport) -> None:
    """The model can't distinguish them, but the server does."""
    ids = [(1 << 32) + 77, (2 << 32) + 77]
    for step in range(3):
        for sequence in ids:
            outputs = transport.infer(
                "controls_oldest_bool_uint32",
                tensor(step),
                sequence_id=sequence,
                sequence_start=step == 0,
                sequence_end=step == 2,
            )
            assert only(outputs, "CORRIDS", "uint32") == 77


# row: SEQ-14
def test_without_a_batch_dimension(transport: Transport) -> None:
    """Controls are vectors of one element."""
    sequence = next(_ids)
    for step in range(3):
        outputs = transport.infer(
            "controls_without_batches",
            {"INPUT": numpy.array([step], numpy.int32)},
            sequence_id=sequence,
            sequence_start=step == 0,
            sequence_end=step == 2,
        )
        shown = {name: array.tolist() for name, array in outputs.items()}
        assert shown == {
            "OUTPUT": [step],
            "STARTS": [int(step == 0)],
            "ENDS": [int(step == 2)],
            "READYS": [1],
            "CORRIDS": [sequence],
        }


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_inputs_of_any_length(transport: Transport, strategy: str) -> None:
    """The requests of one sequence may differ in shape."""
    sequence = next(_ids)
    for step, length in enumerate((1, 3, 2)):
        outputs = transport.infer(
            f"controls_{strategy}_int32_uint64",
            tensor(*range(length)),
            sequence_id=sequence,
            sequence_start=step == 0,
            sequence_end=step == 2,
        )
        assert outputs["OUTPUT"].tolist() == [list(range(length))]


@pytest.mark.galatea_only  # Triton passes four letters as a number.
@pytest.mark.parametrize("kinds", NUMBERS)
# row: SEQ-13
def test_a_text_id_for_a_model_with_numeric_ids(transport: Transport, kinds: str) -> None:
    """The request is refused, and the sequence doesn't exist afterwards."""
    for start in (True, False):
        with pytest.raises(InferenceServerException) as caught:
            transport.infer(
                f"controls_direct_{kinds}", tensor(1), sequence_id="text", sequence_start=start
            )
        assert "CORRID" in caught.value.message()
        assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT", None)


@STRINGS_FAIL
def test_a_numeric_id_for_a_model_with_text_ids(transport: Transport) -> None:
    """The request is refused."""
    with pytest.raises(InferenceServerException) as caught:
        transport.infer(
            f"controls_direct_{STRINGS}", tensor(1), sequence_id=5, sequence_start=True
        )
    assert "CORRID" in caught.value.message()
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT", None)


# row: SEQ-09
def test_controls_are_not_in_the_metadata(server: Server) -> None:
    """Metadata lists neither controls nor generated inputs."""
    metadata = server.get("/v2/models/controls_direct_int32_uint64").json()
    assert [one["name"] for one in metadata["inputs"]] == ["INPUT"]
