"""Tests of models that consist of a single function: their configurations, and calls of the
function."""

import struct

import harness
import pytest
from harness import CANCELLED, Tensor, request, strings

INT64, FP32, FP64, BYTES = 9, 11, 12, 13


def config(inputs=(), outputs=(), **more):
    return {"name": "m", "max_batch_size": 0, "input": list(inputs),
            "output": list(outputs), **more}


def tensor(name, datatype, dims, **more):
    return {"name": name, "data_type": "TYPE_" + datatype, "dims": dims, **more}


def complete(start, tmp_path, source, given=None):
    """The configuration that the worker completes, or the text of its refusal."""
    path = harness.write_model(tmp_path, source)
    answer = start().auto_complete(path, config=given or config())
    return answer[1] if answer[0] == "ok" else answer[2]


@pytest.fixture
def serve(start, tmp_path):
    """Starts a worker with a function, configured as the worker requests."""

    def begin(source):
        path = harness.write_model(tmp_path, source)
        worker = start()
        complete = config()
        answer = worker.auto_complete(path, config=complete)
        assert answer[0] == "ok", answer
        complete.update(answer[1])
        decoupled = complete.get("model_transaction_policy", {}).get("decoupled", False)
        worker.path = str(path)
        answer = worker.initialize(path, config=complete, decoupled=decoupled)
        assert answer[0] == "ok", answer
        worker.answer = answer[1]
        return worker

    return begin


def int64(name, values, shape=None):
    return Tensor(name, "INT64", shape or [len(values)],
                  struct.pack(f"<{len(values)}q", *values))


def texts(content):
    """Elements of BYTES content."""
    found, position = [], 0
    while position < len(content):
        size = struct.unpack_from("<I", content, position)[0]
        found.append(content[position + 4:position + 4 + size])
        position += 4 + size
    return found


def outputs(worker, *requests):
    """The shape and content of each request's outputs, or its error."""
    result = worker.execute(*requests)
    assert result["outcome"] == 0, result
    return [_of(one["response"]) for one in result["requests"]]


def _of(response):
    if "code" in response:
        return response["code"], response["message"]
    return {name: (one.kind, one.shape, one.content)
            for name, one in response["tensors"].items()}


def test_the_configuration_is_completed(start, tmp_path):
    assert complete(start, tmp_path, """
        from typing import List, NamedTuple

        class Result(NamedTuple):
            words: List[int]
            language: str

        def predict(text: List[str], limit: int = 3) -> Result: ...
    """) == {
        "input": [tensor("text", "STRING", [-1]), tensor("limit", "INT64", [1], optional=True)],
        "output": [tensor("words", "INT64", [-1]), tensor("language", "STRING", [1])],
    }


def test_batches_and_streams_are_configured(start, tmp_path):
    assert complete(start, tmp_path / "a", """
        MAX_BATCH_SIZE = 8

        def predict(x: list[int]) -> list[int]: ...
    """) == {"input": [tensor("x", "INT64", [1])], "output": [tensor("output", "INT64", [1])],
             "max_batch_size": 8, "dynamic_batching": {}}
    assert complete(start, tmp_path / "b", """
        from typing import Iterator

        def predict(x: int) -> Iterator[int]: ...
    """) == {"input": [tensor("x", "INT64", [1])], "output": [tensor("output", "INT64", [1])],
             "model_transaction_policy": {"decoupled": True}}


def test_a_class_comes_first(start, tmp_path):
    """Triton models may have a function with that name for their own use."""
    assert complete(start, tmp_path, """
        def predict(x): ...

        class TritonPythonModel: ...
    """) == {}


def test_a_file_with_neither(start, tmp_path):
    text = complete(start, tmp_path, "predict = 3")
    assert text.startswith("AttributeError: module '1.model' has no attribute "
                           "'TritonPythonModel'")


ONE = "def predict(x: list[int] = [1]) -> list[int]: ..."


@pytest.mark.parametrize("given, changed", [
    (config([tensor("x", "INT64", [4])]), {"output": [tensor("output", "INT64", [-1])]}),
    (config([tensor("x", "INVALID", [])]),
     {"input": [tensor("x", "INT64", [-1])], "output": [tensor("output", "INT64", [-1])]}),
    (config([tensor("x", "INT64", [4], optional=True)], [tensor("output", "INT64", [4])]), {}),
])
def test_a_configuration_that_says_less(start, tmp_path, given, changed):
    assert complete(start, tmp_path, ONE, given) == changed


@pytest.mark.parametrize("given, text", [
    (config([tensor("y", "INT64", [1])]),
     "the configuration has the input 'y', which predict lacks"),
    (config([], [tensor("y", "INT64", [1])]),
     "the configuration has the output 'y', which predict lacks"),
    (config([tensor("x", "FP32", [4])]),
     "the configuration has input 'x' with data_type TYPE_FP32, but its hint says TYPE_INT64"),
    (config([], [tensor("output", "INT64", [4, 4])]),
     "the configuration has output 'output' with dims [4, 4], but its hint says [-1]"),
    (config([], max_batch_size=4),
     "the configuration has max_batch_size 4, but MAX_BATCH_SIZE in the file is 0"),
    (config(model_transaction_policy={"decoupled": True}),
     "the configuration is decoupled, but predict doesn't yield"),
])
def test_a_configuration_that_says_something_else(start, tmp_path, given, text):
    assert complete(start, tmp_path, ONE, given) == f"model.py:1: {text}"


def test_optional_needs_a_default(start, tmp_path):
    given = config([tensor("x", "INT64", [1], optional=True)])
    assert complete(start, tmp_path, "def predict(x: int) -> int: ...", given) == (
        "model.py:1: the configuration has input 'x' with optional: true, but the parameter "
        "has no default")


@pytest.mark.parametrize("size", ["-1", "'8'", "True"])
def test_sizes_of_batches_that_are_none(start, tmp_path, size):
    text = complete(start, tmp_path, f"MAX_BATCH_SIZE = {size}\n{ONE}")
    assert text == (f"model.py: MAX_BATCH_SIZE is {size}, but it is a number of rows, or 0 for "
                    "no batches")


def test_without_completion_the_configuration_must_say_it_all(start, tmp_path):
    path = harness.write_model(tmp_path, ONE)
    given = config([tensor("x", "INT64", [-1])])
    assert start().initialize(path, config=given) == (
        "failed", 1, "model.py:1: the configuration has no such output as the hints say, and "
        "the server doesn't complete it")
    given["output"] = [tensor("output", "INT64", [-1])]
    assert start().initialize(path, config=given)[0] == "ok"


def test_values_of_python(serve):
    worker = serve("""
        import sys

        def predict(a: bool, b: int, c: float, d: str, e: bytes) -> list[str]:
            assert "numpy" not in sys.modules
            return [repr(one) for one in (a, b, c, d, e)]
    """)
    inputs = [Tensor("a", "BOOL", [1], b"\1"), int64("b", [-5]),
              Tensor("c", "FP64", [1], struct.pack("<d", 2.5)), strings("d", ["ä"]),
              strings("e", [b"\xff"])]
    (found,) = outputs(worker, request(1, inputs))
    kind, shape, content = found["output"]
    assert (kind, shape) == (BYTES, [5])
    assert texts(content) == [b"True", b"-5", b"2.5", "'ä'".encode(), b"b'\\xff'"]


@pytest.mark.parametrize("place", [0, 1])
def test_lists(serve, place):
    """Short ones are sent in the frame, and long ones are in the arena."""
    worker = serve("def predict(x: list[int]) -> list[int]:\n    return x[::-1]")
    values = list(range(5 if place == 0 else 5000))
    tensor = int64("x", values)
    if place == 1:
        worker.inputs[:len(tensor.content)] = tensor.content
        tensor.place, tensor.offset = 1, 0
    (found,) = outputs(worker, request(1, [tensor]))
    assert found["output"] == (INT64, [len(values)],
                               struct.pack(f"<{len(values)}q", *values[::-1]))


def test_defaults(serve):
    worker = serve("def predict(x: int, y: int = 40) -> int:\n    return x + y")
    first, second = (outputs(worker, request(1, inputs))[0]["output"] for inputs in
                     ([int64("x", [2])], [int64("x", [2]), int64("y", [3])]))
    assert (first, second) == ((INT64, [1], struct.pack("<q", 42)),
                               (INT64, [1], struct.pack("<q", 5)))


@pytest.mark.parametrize("kind, value", [
    ("TypedDict", "{'a': x, 'b': [str(x)]}"), ("NamedTuple", "Result(x, [str(x)])")])
def test_named_outputs(serve, kind, value):
    worker = serve(f"""
        from typing import NamedTuple, TypedDict

        class Result({kind}):
            a: int
            b: list[str]

        def predict(x: int) -> Result:
            return {value}
    """)
    (found,) = outputs(worker, request(1, [int64("x", [7])]))
    assert found == {"a": (INT64, [1], struct.pack("<q", 7)),
                     "b": (BYTES, [1], b"\1\0\0\0007")}


@pytest.mark.parametrize("hint, value, text", [
    ("int", "None", "predict gave None for output 'output'"),
    ("int", "'3'", "predict gave what is no int for output 'output': 'str' object cannot be "
                   "interpreted as an integer"),
    ("int", "1 << 63", "predict gave what is no int for output 'output': "),
    ("bool", "1", "predict gave what is no bool for output 'output': 1 is a int"),
    ("float", "'1'", "predict gave what is no float for output 'output': '1' is a str"),
    ("str", "b''", "predict gave what is no str for output 'output': b'' is a bytes"),
    ("bytes", "''", "predict gave what is no bytes for output 'output': '' is a str"),
    ("list[int]", "3", "predict gave a int for output 'output', whose hint is a list of int"),
    ("list[str]", "'a'", "predict gave a str for output 'output', whose hint is a list of str"),
    ("Annotated[list[int], (2,)]", "[1]",
     "predict gave the shape [1] for output 'output', whose hint says [2]"),
    ("D", "{}", "predict gave no output 'a'"),
])
def test_results_that_the_hint_does_not_allow(serve, hint, value, text):
    worker = serve("from typing import *\nclass D(TypedDict):\n    a: int\n\n"
                   f"def predict(x: int) -> {hint}:\n    return {value}\n")
    ((code, message),) = outputs(worker, request(1, [int64("x", [7])]))
    begin = "Failed to process the request(s) for model 'm_0_0', message: "
    assert code == 1 and message.startswith(begin + text), message


def test_exceptions_name_the_line(serve):
    worker = serve("def predict(x: int) -> int:\n    return [][x]\n")
    found = outputs(worker, request(1, [int64("x", [0])]))
    assert found == [(1, "Failed to process the request(s) for model 'm_0_0', message: "
                         "IndexError: list index out of range\n\nAt:\n  "
                         f"{worker.path}(2): predict\n")]


def test_text_that_is_not_utf8(serve):
    worker = serve("def predict(x: str) -> str:\n    return x\n")
    ((code, message),) = outputs(worker, request(1, [strings("x", [b"\xff"])]))
    assert code == 3
    assert message.startswith("input 'x' is not UTF-8: 'utf-8' codec can't decode byte 0xff")


def test_the_file_may_have_the_other_methods_too(serve, tmp_path):
    worker = serve(f"""
        def initialize(args):
            global name
            name = args["model_name"]

        def is_ready():
            return False

        def finalize():
            open({str(tmp_path / "done")!r}, "w").close()

        def predict(x: str) -> str:
            return x + name
    """)
    assert worker.answer["is_ready"] is True
    assert worker.is_ready() is False
    (found,) = outputs(worker, request(1, [strings("x", ["a"])]))
    assert texts(found["output"][2]) == [b"am"]
    assert worker.finalize() == 0
    assert (tmp_path / "done").exists()


# Batches.

BATCH = """
    MAX_BATCH_SIZE = 8
    calls = 0

    def predict(x: list[int], y: list[str] = ()) -> list[str]:
        global calls
        calls += 1
        assert 0 not in x
        return [f"{calls} {one}" for one in x] if not y else y
"""


def rows(values):
    return int64("x", values, [len(values), 1])


def test_requests_that_fit_share_a_call(serve):
    worker = serve(BATCH)
    other = Tensor("y", "BYTES", [1, 1], b"\1\0\0\0y")
    found = outputs(worker, request(1, [rows([1, 2])]), request(2, [rows([3]), other]),
                    request(3, [rows([4])]))
    assert [(one["output"][1], texts(one["output"][2])) for one in found] == [
        ([2, 1], [b"1 1", b"1 2"]), ([1, 1], [b"y"]), ([1, 1], [b"1 4"])]


def test_a_failing_call_costs_its_own_requests(serve):
    worker = serve(BATCH)
    other = Tensor("y", "BYTES", [1, 1], b"\1\0\0\0y")
    found = outputs(worker, request(1, [rows([0])]), request(2, [rows([3]), other]),
                    request(3, [rows([4]), Tensor("y", "BYTES", [1, 1], b"\1\0\0\0\xff")]))
    assert found[0][0] == 1 and "AssertionError" in found[0][1]
    assert texts(found[1]["output"][2]) == [b"y"]
    assert found[2][0] == 3 and found[2][1].startswith("input 'y' is not UTF-8")


def test_a_result_with_the_wrong_number_of_rows(serve):
    worker = serve("MAX_BATCH_SIZE = 8\ndef predict(x: list[int]) -> list[int]:\n"
                   "    return [1]\n")
    found = outputs(worker, request(1, [rows([1, 2])]))
    assert found[0][1].endswith("predict gave 1 rows for output 'output', but the batch has 2")


@pytest.mark.numpy
def test_arrays_in_batches(serve):
    worker = serve("""
        import numpy as np
        from numpy.typing import NDArray
        from typing import Annotated

        MAX_BATCH_SIZE = 8
        calls = 0

        def predict(x: NDArray[np.float32]) -> Annotated[NDArray[np.float64], (-1, 2)]:
            global calls
            calls += 1
            return np.stack([x.sum(1), np.full(len(x), calls)], 1)
    """)
    found = outputs(worker, request(1, [harness.fp32("x", [1, 2], [1, 2])]),
                    request(2, [harness.fp32("x", [5], [1, 1])]),
                    request(3, [harness.fp32("x", [1, 2, 3, 4], [2, 2])]))
    assert [one["output"] for one in found] == [
        (FP64, [1, 2], struct.pack("<2d", 3, 1)), (FP64, [1, 2], struct.pack("<2d", 5, 2)),
        (FP64, [2, 2], struct.pack("<4d", 3, 1, 7, 1))]


# Arrays.

@pytest.mark.numpy
@pytest.mark.parametrize("value, expected", [
    ("x", (FP32, [2], struct.pack("<2f", 1, 2))),
    ("x.astype(np.float64) * 2", (FP32, [2], struct.pack("<2f", 2, 4))),
    ("[1, 2, 3]", (FP32, [3], struct.pack("<3f", 1, 2, 3))),
    ("x + 1j", "predict gave complex64 for output 'output', whose hint is float32"),
    ("[[1, 2]]", "predict gave the shape [1, 2] for output 'output', whose hint says [-1]"),
    ("[[1], 2]", "predict gave what is no array for output 'output': "),
])
def test_arrays(serve, value, expected):
    worker = serve(f"""
        import numpy as np
        from numpy.typing import NDArray

        def predict(x: NDArray[np.float32]) -> NDArray[np.float32]:
            return {value}
    """)
    (found,) = outputs(worker, request(1, [harness.fp32("x", [1, 2])]))
    if isinstance(expected, str):
        assert expected in found[1], found
    else:
        assert found["output"] == expected


@pytest.mark.numpy
def test_arrays_of_bytes(serve):
    worker = serve("""
        import numpy as np
        from numpy.typing import NDArray

        def predict(x: NDArray[np.object_]) -> NDArray[np.object_]:
            assert x.tolist() == [b"a", b"bc"]
            return ["d", b"e"]
    """)
    (found,) = outputs(worker, request(1, [strings("x", ["a", "bc"])]))
    assert texts(found["output"][2]) == [b"d", b"e"]


# Streams and coroutines.

STREAM = """
    from typing import Iterator

    def predict(x: int) -> Iterator[int]:
        try:
            for one in range(x):
                yield one
            if x == 2:
                raise ValueError("two")
        finally:
            print("closed", x, flush=True)
"""


def answers(worker, count):
    return [worker.read_response() for _ in range(count)]


def test_each_value_that_is_yielded_is_a_response(serve):
    worker = serve(STREAM)
    result = worker.execute(request(1, [int64("x", [3])]))
    assert result["outcome"] == 1
    found = answers(worker, 4)
    assert [flags for _, flags, _ in found] == [0, 0, 0, 1]
    assert [struct.unpack("<q", one["tensors"]["output"].content)[0]
            for _, _, one in found[:3]] == [0, 1, 2]
    assert found[3][2] is None


def test_an_exception_ends_a_stream(serve):
    worker = serve(STREAM)
    worker.execute(request(1, [int64("x", [2])]))
    found = answers(worker, 3)
    assert [flags for _, flags, _ in found] == [0, 0, 1]
    assert "ValueError: two" in found[2][2]["message"]


def test_a_stream_ends_when_its_client_has_left(serve):
    worker = serve("""
        import sys
        from typing import Iterator

        def predict(x: int) -> Iterator[int]:
            while True:
                yield x
    """)
    worker.send_requests(request(1, [int64("x", [3])]))
    assert worker.read_response()[1] == 0
    worker.send_b(CANCELLED, struct.pack("<Q", 1))
    while worker.read_response()[1] == 0:
        pass
    assert worker.result()["outcome"] == 1


def test_coroutines_run_at_the_same_time(serve):
    """The first request waits for the second, which comes in a later execution."""
    worker = serve("""
        import asyncio

        waiting = {}

        async def predict(x: int) -> int:
            event = waiting.setdefault("event", asyncio.Event())
            if x:
                event.set()
            else:
                await event.wait()
            return x
    """)
    assert worker.execute(request(1, [int64("x", [0])]))["outcome"] == 1
    assert worker.execute(request(2, [int64("x", [1])]))["outcome"] == 1
    found = answers(worker, 2)
    assert sorted((key, flags) for key, flags, _ in found) == [(1, 1), (2, 1)]


def test_an_exception_of_a_coroutine(serve):
    worker = serve("async def predict(x: int) -> int:\n    return 1 // x\n")
    worker.execute(request(1, [int64("x", [0])]))
    key, flags, response = worker.read_response()
    assert (key, flags) == (1, 1)
    assert f"\n\nAt:\n  {worker.path}(2): predict\n" in response["message"]


def test_coroutines_that_yield(serve):
    worker = serve("""
        from typing import AsyncIterator

        async def predict(x: int) -> AsyncIterator[int]:
            for one in range(x):
                yield one
            if x == 1:
                raise ValueError("one")
    """)
    worker.execute(request(1, [int64("x", [2])]))
    found = answers(worker, 3)
    assert [(flags, one is None) for _, flags, one in found] == [(0, False), (0, False), (1, True)]
    worker.execute(request(2, [int64("x", [1])]))
    found = answers(worker, 2)
    assert found[1][1] == 1 and "ValueError: one" in found[1][2]["message"]


def test_a_coroutine_with_batches(serve):
    worker = serve("""
        MAX_BATCH_SIZE = 8

        async def predict(x: list[int]) -> list[int]:
            return [-one for one in x]
    """)
    (found,) = outputs(worker, request(1, [rows([1, 2])]))
    assert found["output"] == (INT64, [2, 1], struct.pack("<2q", -1, -2))


def test_class_and_function_models_give_the_same_text(serve, start, tmp_path):
    """An exception in `predict` is reported like one in `execute`."""
    worker = serve("def predict(x: int) -> int:\n    raise ValueError(x)\n")
    ((_, message),) = outputs(worker, request(1, [int64("x", [1])]))
    path = harness.write_model(tmp_path / "class", """
        class TritonPythonModel:
            def execute(self, requests):
                raise ValueError(1)
    """)
    other = start()
    assert other.initialize(path)[0] == "ok"
    expected = other.execute(request(1, []))["message"].split("At:")[0]
    assert message.split("At:")[0] == expected


