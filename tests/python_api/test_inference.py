"""Tests of requests and responses: from one thread, from many threads, and in asyncio loops."""

from __future__ import annotations

import asyncio
import gc
import pathlib
import pickle
import queue
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import galatea
import numpy
import pytest
from conftest import Start, array, write_model
from server import wait_until


@pytest.mark.parametrize("kind", ["BOOL", "INT32", "FP16", "FP32"])
# row: DEP-05
def test_arrays_in_and_out(start: Start, kind: str) -> None:
    name = f"identity_{kind.lower()}"
    model = start(name).model(name)
    types = {"BOOL": numpy.bool_, "INT32": numpy.int32, "FP16": numpy.float16,
             "FP32": numpy.float32}
    given = numpy.arange(12).reshape(3, 4).astype(types[kind])
    views = {"whole": given, "transposed": given.T, "reversed": given[::-1], "other": given.astype(
        given.dtype.newbyteorder(">"))}
    for view in views.values():
        [response] = model.infer(inputs={"INPUT0": view}, request_id="mine")
        result = numpy.from_dlpack(response.outputs["OUTPUT0"])
        numpy.testing.assert_array_equal(result, view)
        assert result.dtype == types[kind]
        assert response.final and response.error is None
        assert (response.request_id, response.model.name, response.model.version) == (
            "mine", name, 1)


def test_lists_strings_and_empty_tensors(start: Start) -> None:
    server = start("identity_string", "identity_bool", "identity_fp32")
    model = server.model("identity_string")
    texts = [["hello", "", "grüße"]]
    inputs = (texts, numpy.array(texts), numpy.array(texts, object),
              galatea.Tensor.from_string_array(texts),
              galatea.Tensor.from_bytes_array([[b"hello", b"", "grüße".encode()]]))
    for given in inputs:
        [response] = model.infer(inputs={"INPUT0": given})
        assert response.outputs["OUTPUT0"].to_string_array().tolist() == texts
        assert response.outputs["OUTPUT0"].to_bytes_array().tolist() == [
            [text.encode() for text in texts[0]]]
        assert numpy.asarray(response.outputs["OUTPUT0"]).tolist()[0][0] == b"hello"
    [response] = model.infer(inputs={"INPUT0": galatea.Tensor.from_bytes_array([[b"\xff"]])})
    assert response.outputs["OUTPUT0"].to_bytes_array().tolist() == [[b"\xff"]]
    with pytest.raises(UnicodeDecodeError):
        response.outputs["OUTPUT0"].to_string_array()
    [response] = server.model("identity_bool").infer(inputs={"INPUT0": [[True, False]]})
    assert numpy.from_dlpack(response.outputs["OUTPUT0"]).tolist() == [[True, False]]
    empty = numpy.empty((1, 0), numpy.float32)
    [response] = server.model("identity_fp32").infer(inputs={"INPUT0": empty})
    assert numpy.from_dlpack(response.outputs["OUTPUT0"]).shape == (1, 0)


def test_outputs_are_the_programs_own(start: Start) -> None:
    model = start("identity_fp32").model("identity_fp32")
    given = array(1, 2)
    [response] = model.infer(inputs={"INPUT0": given})
    output = response.outputs["OUTPUT0"]
    assert output.data_ptr != given.ctypes.data and output.data_ptr % 64 == 0
    given[:] = 7
    numpy.testing.assert_array_equal(output, array(1, 2))
    # An output is an input of the next request.
    [response] = model.infer(inputs={"INPUT0": output})
    del output
    numpy.testing.assert_array_equal(response.outputs["OUTPUT0"], array(1, 2))


def test_a_request_object_is_sent_again(start: Start) -> None:
    model = start("add").model("add")
    request = model.create_request(request_id="again")
    request.inputs = {"A": array(1, 2), "B": array(3, 4)}
    request.requested_outputs = ["SUM"]
    for _ in range(3):
        [response] = model.infer(request)
        numpy.testing.assert_array_equal(response.outputs["SUM"], array(4, 6))
        assert response.request_id == "again"
    assert galatea.InferenceRequest(model).inputs == {}
    request.requested_outputs = ["OTHER"]
    with pytest.raises(galatea.InvalidArgumentError, match="OTHER"):
        model.infer(request)


def test_wrong_requests_are_refused(start: Start) -> None:
    server = start("add", "identity_string")
    model = server.model("add")
    good = {"A": array(1, 2), "B": array(3, 4)}
    with pytest.raises(galatea.InvalidArgumentError, match="expected 2 inputs but got 1"):
        model.infer(inputs={"A": array(1, 2)})
    with pytest.raises(galatea.InvalidArgumentError, match="FP64"):
        model.infer(inputs={"A": good["A"].astype(numpy.float64), "B": good["B"]})
    with pytest.raises(galatea.NotFoundError, match="absent"):
        server.model("absent").infer(inputs=good)
    with pytest.raises(galatea.NotFoundError):
        server.model("add", 9).infer(inputs=good)
    for value in ({"test": 1}, None, [1]):
        with pytest.raises(galatea.InvalidArgumentError, match="to Request Parameter"):
            model.infer(inputs=good, parameters={"invalid": value})
    for value in (object(), "text", {}, numpy.array([1j]), [object(), [1]]):
        with pytest.raises(galatea.InvalidArgumentError):
            model.infer(inputs={"A": value, "B": good["B"]})
    for place in ("unsupported", "gpu", "gpu:0", (galatea.MemoryType.GPU, 0), "cpu:x", 7):
        with pytest.raises(galatea.InvalidArgumentError):
            model.infer(inputs=good, output_memory_type=place)
    for wrong in ({"priority": -1}, {"timeout": 1 << 64}, {"correlation_id": -1},
                  {"parameters": {"a": 1 << 63}}):
        with pytest.raises(galatea.InvalidArgumentError):
            model.infer(inputs=good, **wrong)
    with pytest.raises(galatea.UnsupportedError, match="128"):
        model.infer(inputs=good, correlation_id="x" * 129)
    with pytest.raises(TypeError, match="priority"):
        model.infer(inputs=good, priority="high")
    with pytest.raises(galatea.InvalidArgumentError, match="queue.SimpleQueue"):
        model.infer(inputs=good, response_queue=asyncio.Queue())
    # Valid requests are still served.
    for place in ("cpu", galatea.MemoryType.CPU, (galatea.DLDeviceType.kDLCPU, 0)):
        [response] = model.infer(inputs=good, output_memory_type=place)
        numpy.testing.assert_array_equal(response.outputs["SUM"], array(4, 6))


def test_errors_are_raised_or_returned(start: Start) -> None:
    model = start("counter").model("counter")
    with pytest.raises(galatea.TritonError) as raised:
        list(model.infer(inputs={"COUNT": numpy.array([[-1]], numpy.int32)}))
    assert raised.value.code == "INVALID_ARG"
    assert isinstance(raised.value.args[1], galatea.InferenceResponse)
    # Another process gets the error without the response, which belongs to this process's server.
    other = pickle.loads(pickle.dumps(raised.value))
    assert (type(other), other.args) == (type(raised.value), raised.value.args[:1])
    responses = model.infer(
        inputs={"COUNT": numpy.array([[-1]], numpy.int32)}, raise_on_error=False)
    [response] = responses
    assert isinstance(response.error, galatea.InvalidArgumentError) and response.final


def test_a_decoupled_model_sends_many_responses(start: Start) -> None:
    model = start("counter").model("counter")
    responses = list(model.infer(inputs={"COUNT": numpy.array([[5]], numpy.int32)}))
    tokens = [int(numpy.asarray(r.outputs["TOKEN"])[0][0]) for r in responses if r.outputs]
    assert tokens == [0, 1, 2, 3, 4]
    assert [response.final for response in responses].index(True) == len(responses) - 1
    [end] = model.infer(inputs={"COUNT": numpy.array([[0]], numpy.int32)})
    assert end.final and not end.outputs and end.error is None


def test_waiting_holds_up_no_other_thread(start: Start) -> None:
    """A thread waits for a response that only another thread can complete."""
    model = start("counter").model("counter")
    responses = model.infer(
        inputs={"COUNT": numpy.array([[1 << 20]], numpy.int32)}, raise_on_error=False)
    next(responses)
    canceller = threading.Thread(target=responses.cancel)
    canceller.start()
    *_, last = responses
    canceller.join()
    assert last.final
    assert last.error is None or isinstance(last.error, galatea.CancelledError)


def test_loading_holds_up_no_other_thread(start: Start, tmp_path: pathlib.Path) -> None:
    """A model's load waits until another thread lets it continue."""
    began, gate = tmp_path / "began", tmp_path / "gate"
    version = tmp_path / "models/waiting/1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "python"')
    (version / "model.py").write_text(
        "import os, time\n"
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        f"        open({str(began)!r}, 'w').close()\n"
        f"        while not os.path.exists({str(gate)!r}):\n"
        "            time.sleep(0.01)  # sleep: polls until the test lets it go on\n"
        "    def execute(self, requests): return []\n"
    )
    server = start(model_repository=str(tmp_path / "models"))

    def let_go_on() -> None:
        wait_until(began.exists, 60, "the model is loading")
        gate.touch()

    opener = threading.Thread(target=let_go_on)
    opener.start()
    assert server.load("waiting").ready()
    opener.join()


def test_many_threads_get_their_own_answers(start: Start) -> None:
    server = start("add", "identity_string")

    def one(number: int) -> bool:
        model = server.model("add")
        a, b = array(number, number + 1), array(2 * number, 1)
        [added] = model.infer(inputs={"A": a, "B": b}, request_id=str(number))
        [text] = server.model("identity_string").infer(inputs={"INPUT0": [[f"text {number}"]]})
        numpy.testing.assert_array_equal(added.outputs["SUM"], a + b)
        return (text.outputs["OUTPUT0"].to_string_array()[0][0] == f"text {number}"
                and added.request_id == str(number))

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(one, range(1000)))


# row: DEP-05
def test_async_responses(start: Start) -> None:
    server = start("add", "counter")

    async def add(number: int) -> None:
        a, b = array(number, 1), array(1, number)
        async for response in server.model("add").async_infer(inputs={"A": a, "B": b}):
            numpy.testing.assert_array_equal(response.outputs["SUM"], a + b)
            assert response.final

    async def count(tokens: int) -> None:
        inputs = {"COUNT": numpy.array([[tokens]], numpy.int32)}
        seen = [
            int(numpy.asarray(response.outputs["TOKEN"])[0][0])
            async for response in server.model("counter").async_infer(inputs=inputs)
            if response.outputs
        ]
        assert seen == list(range(tokens))

    async def crowd() -> None:
        await asyncio.gather(*map(add, range(300)), *map(count, range(20)))

    asyncio.run(crowd())
    # Another loop, and several in threads.
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(asyncio.run, crowd()) for _ in range(4)]:
            done.result()


def test_async_errors_and_cancellation(start: Start) -> None:
    model = start("counter").model("counter")
    many = {"COUNT": numpy.array([[1 << 20]], numpy.int32)}

    async def errors() -> None:
        with pytest.raises(galatea.InvalidArgumentError):
            async for _ in model.async_infer(inputs={"COUNT": numpy.array([[-1]], numpy.int32)}):
                pass
        with pytest.raises(galatea.InvalidArgumentError, match="asyncio.Queue"):
            model.async_infer(inputs=many, response_queue=queue.SimpleQueue())

    async def cancelled() -> None:
        responses = model.async_infer(inputs=many, raise_on_error=False)
        await responses.__anext__()
        responses.cancel()
        last = [response async for response in responses][-1]
        assert last.final

    async def abandoned() -> None:
        """A waiting task is cancelled; the request continues, and no response is lost."""
        responses = model.async_infer(inputs={"COUNT": numpy.array([[50]], numpy.int32)})
        seen = 0
        while seen < 51:
            waiting = asyncio.ensure_future(responses.__anext__())
            await asyncio.sleep(0)
            if not waiting.done() and waiting.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            response = waiting.result() if waiting.done() and not waiting.cancelled() else \
                await responses.__anext__()
            seen += 1
            if response.final:
                break
        assert response.final

    for one in (errors, cancelled, abandoned):
        asyncio.run(one())


def test_response_queues(start: Start) -> None:
    """Responses arrive in a queue without iteration, and in the iterators as well."""
    model = start("add").model("add")
    inputs = {"A": array(1, 2), "B": array(3, 4)}
    both = queue.SimpleQueue()
    iterators = [model.infer(inputs=inputs, response_queue=both) for _ in range(2)]
    for _ in iterators:
        numpy.testing.assert_array_equal(both.get(timeout=60).outputs["SUM"], array(4, 6))
    for iterator in iterators:
        [response] = iterator
        numpy.testing.assert_array_equal(response.outputs["SUM"], array(4, 6))
    assert both.empty()

    async def in_a_loop() -> None:
        both: asyncio.Queue = asyncio.Queue()
        iterators = [model.async_infer(inputs=inputs, response_queue=both) for _ in range(2)]
        for _ in iterators:
            response = await both.get()
            numpy.testing.assert_array_equal(response.outputs["SUM"], array(4, 6))
        for iterator in iterators:
            assert len([response async for response in iterator]) == 1
        assert both.empty()

    asyncio.run(in_a_loop())


def test_inputs_live_as_long_as_their_request_and_no_longer(start: Start) -> None:
    class Owner(numpy.ndarray):
        """An array that supports weak references."""

    model = start("identity_fp32").model("identity_fp32")
    given = numpy.zeros((1, 1000), numpy.float32).view(Owner)
    seen = weakref.ref(given)
    responses = model.infer(inputs={"INPUT0": given})
    del given
    [response] = responses
    del responses
    gc.collect()
    # The server's reference is released when its module next acquires Python's lock.
    [_] = model.infer(inputs={"INPUT0": array(1)})
    gc.collect()
    assert seen() is None
    assert response.outputs["OUTPUT0"].size == 4000


def test_memory_stays_flat(start: Start) -> None:
    """Neither requests nor responses are kept. This counts objects, not bytes."""
    model = start("identity_fp32").model("identity_fp32")

    def some() -> int:
        for _ in range(200):
            for response in model.infer(inputs={"INPUT0": array(*range(100))}):
                numpy.from_dlpack(response.outputs["OUTPUT0"])
        gc.collect()
        return len(gc.get_objects())

    some()
    before = some()
    assert some() - before < 50


@pytest.mark.parametrize("correlation_id", [7, (1 << 64) - 1, "text"])
def test_sequences(
    start: Start, models: pathlib.Path, tmp_path: pathlib.Path, correlation_id: object
) -> None:
    version = write_model(tmp_path, "sequence", "max_batch_size: 2 sequence_batching { }")
    shutil.copy(models / "add/1/model.onnx", version)
    model = start("sequence", model_repository=str(tmp_path)).model("sequence")
    values = {"inputs": {"A": array(1, 2), "B": array(3, 4)}, "correlation_id": correlation_id}
    for flags in (galatea.RequestFlag.SEQUENCE_START, 0, galatea.RequestFlag.SEQUENCE_END):
        [response] = model.infer(flags=flags, **values)
        numpy.testing.assert_array_equal(response.outputs["SUM"], array(4, 6))
    with pytest.raises(galatea.InvalidArgumentError, match="START"):
        list(model.infer(**values))
