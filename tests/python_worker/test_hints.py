"""Tests of a function's hints: what they specify about inputs and outputs, and how they are
refused."""

import sys
import textwrap

import pytest
from harness import WORKER

sys.path.append(str(WORKER))

from galatea_worker import hints  # noqa: E402

NUMPY = "import numpy as np\nfrom numpy.typing import NDArray\n"
TYPING = ("from typing import *\nfrom collections.abc import *\n"
          "from dataclasses import dataclass\n")


def read(tmp_path, source, batching=False):
    """The signature of `predict` in a file."""
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent(source))
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return hints.read(names["predict"], batching, str(path))


def parameter(tmp_path, hint, batching=False):
    """The form, data type and dimensions of a parameter with a hint."""
    signature = read(tmp_path, f"{TYPING}def predict(x: {hint}) -> list[int]: ...", batching)
    (one,) = signature.inputs
    return one.form, one.datatype, one.dims(batching), one.optional


def array(tmp_path, hint, batching=False):
    (one,) = read(tmp_path, f"{TYPING}{NUMPY}def predict(x: {hint}) -> list[int]: ...",
                  batching).inputs
    assert one.form == "array"
    return one.datatype, one.dims(batching)


def refusal(tmp_path, source, batching=False):
    with pytest.raises(hints.HintError) as caught:
        read(tmp_path, source, batching)
    return str(caught.value)


@pytest.mark.parametrize("hint, expected", [
    ("bool", ("one", 1, [1], False)),
    ("int", ("one", 9, [1], False)),
    ("float", ("one", 12, [1], False)),
    ("str", ("one", 13, [1], False)),
    ("bytes", ("one", 13, [1], False)),
    ("list[str]", ("list", 13, [-1], False)),
    ("List[int]", ("list", 9, [-1], False)),
    ("Sequence[bool]", ("list", 1, [-1], False)),
    ("Annotated[list[float], (3,)]", ("list", 12, [3], False)),
    ("Annotated[int, 'a note']", ("one", 9, [1], False)),
    ("int = 3", ("one", 9, [1], True)),
    ("Optional[list[str]] = None", ("list", 13, [-1], True)),
    ("'list[str]'", ("list", 13, [-1], False)),
])
def test_hints_of_python(tmp_path, hint, expected):
    assert parameter(tmp_path, hint) == expected


def test_a_list_has_an_element_for_each_row(tmp_path):
    assert parameter(tmp_path, "list[str]", True) == ("list", 13, [1], False)


@pytest.mark.skipif(sys.version_info < (3, 10), reason="`|` between types is of Python 3.10")
def test_none_may_be_written_with_a_bar(tmp_path):
    assert parameter(tmp_path, "list[str] | None = None") == ("list", 13, [-1], True)


@pytest.mark.numpy
@pytest.mark.parametrize("hint, datatype, dims, rows", [
    ("NDArray[np.float32]", 11, [-1], [-1]),
    ("NDArray[np.bool_]", 1, [-1], [-1]),
    ("NDArray[np.uint8]", 2, [-1], [-1]),
    ("NDArray[np.object_]", 13, [-1], [-1]),
    ("NDArray[np.bytes_]", 13, [-1], [-1]),
    ("Annotated[np.ndarray, np.float16]", 10, [-1], [-1]),
    ("Annotated[np.ndarray, np.dtype('int8')]", 6, [-1], [-1]),
    ("Annotated[NDArray[np.float32], (-1, 4)]", 11, [-1, 4], [4]),
    ("Annotated[np.ndarray, np.int32, (-1, 3, 5)]", 8, [-1, 3, 5], [3, 5]),
    ("np.ndarray[tuple[int, Literal[4]], np.dtype[np.int64]]", 9, [-1, 4], [4]),
    ("np.ndarray[Any, np.dtype[np.int64]]", 9, [-1], [-1]),
])
def test_hints_of_arrays(tmp_path, hint, datatype, dims, rows):
    assert array(tmp_path, hint) == (datatype, dims)
    assert array(tmp_path, hint, True) == (datatype, rows)


@pytest.mark.parametrize("source, expected", [
    ("-> list[float]: ...", [("output", "list", 12)]),
    ("-> 'str': ...", [("output", "one", 13)]),
    ("-> D: ...", [("a", "one", 9), ("b", "list", 13)]),
    ("-> T: ...", [("a", "one", 9), ("b", "list", 13)]),
    ("-> C: ...", [("a", "one", 9), ("b", "list", 13)]),
])
def test_outputs(tmp_path, source, expected):
    signature = read(tmp_path, TYPING + """
class D(TypedDict):
    a: int
    b: list[str]

class T(NamedTuple):
    a: int
    b: list[str]

@dataclass
class C:
    a: int
    b: list[str]

def predict(x: int) """ + source)
    assert [(one.name, one.form, one.datatype) for one in signature.outputs] == expected
    assert signature.has_fields == (len(expected) == 2)


@pytest.mark.parametrize("source, is_stream, is_async", [
    ("def predict(x: int) -> int: ...", False, False),
    ("async def predict(x: int) -> int: ...", False, True),
    ("def predict(x: int) -> Iterator[int]: yield x", True, False),
    ("def predict(x: int) -> Iterable[int]: return [x]", True, False),
    ("def predict(x: int) -> Generator[int, None, None]: yield x", True, False),
    ("async def predict(x: int) -> AsyncIterator[int]: yield x", True, True),
    ("async def predict(x: int) -> AsyncGenerator[int, None]: yield x", True, True),
])
def test_how_responses_come(tmp_path, source, is_stream, is_async):
    signature = read(tmp_path, TYPING + source)
    assert (signature.is_stream, signature.is_async) == (is_stream, is_async)
    assert [one.name for one in signature.outputs] == ["output"]


@pytest.mark.parametrize("source, text", [
    ("def predict(\n    a: int,\n    x,\n) -> int: ...",
     "model.py:3: parameter `x` has no type hint; write for example `x: list[str]`"),
    ("@(lambda function: function)\ndef predict(\n    x: set\n) -> int: ...",
     "model.py:3: parameter `x` has the hint set, which is not bool, int, float, str, bytes, "
     "a list of one of them, or NDArray[np.float32]"),
    ("def predict(x: list) -> int: ...",
     "model.py:1: parameter `x` has the hint list, which is not bool, int, float, str, bytes, "
     "a list of one of them, or NDArray[np.float32]"),
    ("def predict(*x: int) -> int: ...",
     "model.py:1: parameter `x` stands for many: inputs need a name each"),
    ("def predict(**x: int) -> int: ...",
     "model.py:1: parameter `x` stands for many: inputs need a name each"),
    ("def predict(x: int, /) -> int: ...",
     "model.py:1: parameter `x` has no name for callers: take the / out of the parameters"),
    ("from typing import *\ndef predict(x: Optional[int]) -> int: ...",
     "model.py:2: parameter `x` may be None and so needs a default: write `= None`"),
    ("def predict(x: 'Nothing') -> int: ...",
     "model.py:1: parameter `x` has the hint Nothing, which can't be read: NameError: name "
     "'Nothing' is not defined"),
    ("def predict() -> int: ...",
     "model.py:1: predict has no parameters, but a model needs an input"),
    ("def predict(\n    x: int\n): ...",
     "model.py:1: predict has no type hint for what it returns; write for example "
     "`-> list[float]`"),
    ("def predict(\n    x: int\n) -> None: ...",
     "model.py:3: the result of predict has the hint None, which is not bool, int, float, "
     "str, bytes, a list of one of them, or NDArray[np.float32]"),
    ("def predict(x: int) -> tuple[int, int]: ...",
     "model.py:1: the result of predict has the hint tuple[int, int], which is not bool, "
     "int, float, str, bytes, a list of one of them, or NDArray[np.float32]"),
    ("def predict(x: int) -> int: yield x",
     "model.py:1: predict yields, so its hint must be Iterator[...], not int"),
    ("async def predict(x: int) -> int: yield x",
     "model.py:1: predict yields, so its hint must be AsyncIterator[...], not int"),
    ("from typing import *\nasync def predict(x: int) -> Iterator[int]: yield x",
     "model.py:2: an `async def` that yields has the hint AsyncIterator[...], any other "
     "function that yields Iterator[...]"),
    ("from typing import *\nasync def predict(x: int) -> AsyncIterator[int]: return x",
     "model.py:2: an `async def` that yields has the hint AsyncIterator[...], any other "
     "function that yields Iterator[...]"),
    ("from typing import *\nclass D(TypedDict):\n    a: set\ndef predict(x: int) -> D: ...",
     "model.py:4: output `a` of D has the hint set, which is not bool, int, float, str, "
     "bytes, a list of one of them, or NDArray[np.float32]"),
    ("from typing import *\nclass D(TypedDict):\n    pass\ndef predict(x: int) -> D: ...",
     "model.py:4: D names no output"),
    ("from typing import *\ndef predict(x: Annotated[list[int], (0,)]) -> int: ...",
     "model.py:2: parameter `x` has the shape (0,), but a shape is a tuple of numbers such as "
     "(-1, 4), where -1 is any length"),
    ("from typing import *\ndef predict(x: Annotated[list[int], ()]) -> int: ...",
     "model.py:2: parameter `x` has an empty shape, but a shape has one dimension or more"),
    ("from typing import *\ndef predict(x: Annotated[list[int], (2, 2)]) -> int: ...",
     "model.py:2: parameter `x` is a list and so has one dimension"),
])
def test_refusals(tmp_path, source, text):
    assert refusal(tmp_path, source) == text


@pytest.mark.numpy
@pytest.mark.parametrize("hint", ["np.ndarray", "NDArray[Any]", "NDArray[np.complex64]",
                                  "NDArray[np.floating]", "NDArray[np.str_]"])
def test_arrays_without_a_data_type(tmp_path, hint):
    source = f"{TYPING}{NUMPY}def predict(x: {hint}) -> int: ..."
    assert refusal(tmp_path, source) == (
        "model.py:6: parameter `x` is an array without one of Triton's data types; write for "
        "example NDArray[np.float32]")


@pytest.mark.parametrize("source, text", [
    ("def predict(x: str) -> list[int]: ...",
     "model.py:1: parameter `x` is one value, but MAX_BATCH_SIZE asks for batches: write "
     "list[str]"),
    ("def predict(x: list[int]) -> int: ...",
     "model.py:1: the result of predict is one value, but MAX_BATCH_SIZE asks for batches: "
     "write list[int]"),
    ("def predict(x: list[int] = []) -> list[int]: ...",
     "model.py:1: all parameters of predict have defaults, but with MAX_BATCH_SIZE one input "
     "must be in every request"),
    ("from typing import *\ndef predict(x: Annotated[list[int], (4,)]) -> list[int]: ...",
     "model.py:2: parameter `x` is a list with a shape, but with MAX_BATCH_SIZE a list has an "
     "element for each row"),
    ("from typing import *\ndef predict(x: list[int]) -> Iterator[list[int]]: yield x",
     "model.py:2: a function that yields answers one request at a time: leave MAX_BATCH_SIZE "
     "out"),
])
def test_refusals_of_batches(tmp_path, source, text):
    assert refusal(tmp_path, source, batching=True) == text


@pytest.mark.numpy
@pytest.mark.parametrize("shape", ["(4,)", "(2, 4)"])
def test_the_first_dimension_is_the_batch(tmp_path, shape):
    source = f"{TYPING}{NUMPY}def predict(\n x: Annotated[NDArray[np.int8], {shape}]) -> " \
             "list[int]: ..."
    assert refusal(tmp_path, source, batching=True) == (
        "model.py:7: parameter `x` has a shape whose first dimension is not the batch: with "
        "MAX_BATCH_SIZE write for example (-1, 4)")
