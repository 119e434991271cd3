"""Tests of calls to other models."""

import signal
import struct

import pytest
from harness import (B_CALL, B_CALL_REPLY, CALL, CALL_REPLY, CANCEL_CALL, CANCELLED,
                     Tensor, fp32, request, text)
from test_failures import failure, model

MAKE = """pb_utils.InferenceRequest(
        model_name="other", requested_output_names=["OUT"], inputs=inputs"""


def read_call(worker, cursor):
    """The fields of a CALL."""
    call = {"id": cursor.take("Q"), "stream": cursor.take("B"), "parent": cursor.take("Q"),
            "model": cursor.text(), "version": cursor.take("q"), "request_id": cursor.text()}
    kind = cursor.take("B")
    call["correlation"] = {0: lambda: 0, 1: lambda: cursor.take("Q"),
                           2: cursor.text}[kind]()
    call["flags"], call["timeout"], call["priority"] = cursor.take("IQQ")
    call["memory"] = cursor.take("B")
    if call["memory"] == 2:
        call["gpu"] = cursor.take("q")
    call["parameters"] = cursor.text()
    call["outputs"] = [cursor.text() for _ in range(cursor.take("I"))]
    call["inputs"] = {tensor.name: tensor for tensor in worker.tensors(cursor)}
    cursor.end()
    return call


def reply(call, flags=3, tensors=(), parameters="", error=None, empty=False):
    """The payload of a CALL_REPLY."""
    head = struct.pack("<QB", call, flags)
    if empty:
        return head
    if error:
        return head + struct.pack("<BB", 2, error[0]) + text(error[1])
    return head + b"\1" + text(parameters) + struct.pack("<I", len(tensors)) + b"".join(
        tensor.encode() for tensor in tensors)


SYNC = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                call = pb_utils.InferenceRequest(
                    model_name="other", model_version=3, request_id="mine",
                    correlation_id=77, flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
                    timeout=5, parameters={"p": 1}, requested_output_names=["OUT"],
                    trace=request.trace(), inputs=request.inputs(),
                    preferred_memory=pb_utils.PreferredMemory(
                        pb_utils.TRITONSERVER_MEMORY_CPU))
                answer = call.exec()
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
                assert answer.parameters() == '{"r":2}'
                responses.append(pb_utils.InferenceResponse(
                    [pb_utils.get_output_tensor_by_name(answer, "OUT")]))
            return responses
"""


def test_texts_may_be_bytes(load):
    """They have the form of elements of BYTES tensors, from which models take the names of
    other models."""
    worker = load(model("""call = pb_utils.InferenceRequest(
                    model_name=b"other", request_id=b"mine", inputs=[],
                    requested_output_names=[b"OUT", bytearray(b"\\xff")])
                assert call._model_name == "other" and call.request_id() == "mine"
                assert call.requested_output_names() == {"OUT", "\\ufffd"}
                error = pb_utils.TritonError(b"bad \\xc3\\xa4")
                assert error.message() == "bad \\u00e4"
                pb_utils.Logger.log_info(b"talk")
                return [pb_utils.InferenceResponse(error=call.exec().error())]"""))
    worker.send_requests(request(1, []))
    call = read_call(worker, worker.expect(CALL))
    assert (call["model"], call["outputs"]) == ("other", ["OUT", "\ufffd"])
    worker.send(CALL_REPLY, reply(call["id"], error=(2, "no such model")))
    assert worker.result()["requests"][0]["response"]["message"] == "no such model"


def test_the_names_of_outputs_are_a_list(load):
    worker = load(model("""pb_utils.InferenceRequest(
                    model_name="other", requested_output_names="OUT", inputs=[])"""))
    assert failure(worker).startswith(
        "TypeError: __init__(): incompatible constructor arguments. ")


def test_from_the_thread_that_executes(load):
    worker = load(SYNC)
    worker.send_requests(request(31, [fp32("IN", [2.0])], trace=""))
    call = read_call(worker, worker.expect(CALL))
    number = call.pop("id")
    assert call.pop("inputs")["IN"].content == struct.pack("<f", 2)
    assert call == {
        "stream": 0, "parent": 31, "model": "other", "version": 3, "request_id": "mine",
        "correlation": 77, "flags": 1, "timeout": 5, "priority": 0, "memory": 1,
        "parameters": '{"p": 1}', "outputs": ["OUT"]}
    worker.send(CALL_REPLY, reply(number, 3, [fp32("OUT", [9.0])], '{"r":2}'))
    result = worker.result()
    assert result["requests"][0]["response"]["tensors"]["OUT"].content == struct.pack("<f", 9)


@pytest.mark.parametrize("memory, sent", [
    ("pb_utils.TRITONSERVER_MEMORY_GPU", {"memory": 2, "gpu": 0}),
    ("pb_utils.TRITONSERVER_MEMORY_GPU, 3", {"memory": 2, "gpu": 3}),
    ("pb_utils.TRITONSERVER_MEMORY_CPU, 3", {"memory": 1}),
])
# row: BLS-04
def test_memory_that_is_preferred_for_responses(load, memory, sent):
    worker = load(model(f"""pb_utils.InferenceRequest(
                    model_name="other", requested_output_names=["OUT"], inputs=[],
                    preferred_memory=pb_utils.PreferredMemory({memory})).exec()"""))
    worker.send_requests(request(1, []))
    call = read_call(worker, worker.expect(CALL))
    assert {name: call[name] for name in ("memory", "gpu") if name in call} == sent
    worker.send(CALL_REPLY, reply(call["id"], error=(2, "no such model")))


def test_error_of_the_called_model(load):
    worker = load(SYNC)
    worker.send_requests(request(1, []))
    call = read_call(worker, worker.expect(CALL))
    worker.send(CALL_REPLY, reply(call["id"], 3, error=(4, "it is away")))
    result = worker.result()
    assert result["outcome"] == 2 and "TritonModelException: it is away" in result["message"]


def test_reply_in_a_block_is_released_with_the_result(load):
    worker = load(SYNC)
    worker.send_requests(request(1, []))
    call = read_call(worker, worker.expect(CALL))
    tensor = Tensor("OUT", "FP32", [8192], place=1, offset=8192, length=32768)
    worker.send(CALL_REPLY, reply(call["id"], 3, [tensor], '{"r":2}'))
    result = worker.result()
    output = result["requests"][0]["response"]["tensors"]["OUT"]
    assert (output.place, output.offset) == (1, 8192) and result["released"] == [8192]


@pytest.mark.numpy
def test_long_inputs_go_through_the_output_arena(load):
    worker = load(model(
        f"""inputs = [pb_utils.Tensor("IN", np.ones(10000, np.int32))]
                for _ in range(2):
                    {MAKE}).exec()
                return [pb_utils.InferenceResponse()]""", "import numpy as np"))
    worker.send_requests(request(1, []))
    offsets = []
    for _ in range(2):
        call = read_call(worker, worker.expect(CALL))
        tensor = call["inputs"]["IN"]
        assert tensor.place == 2 and tensor.content == b"\1\0\0\0" * 10000
        offsets.append(tensor.offset)
        worker.send(CALL_REPLY, reply(call["id"]))
    assert offsets[0] == offsets[1]
    assert worker.result()["outcome"] == 0


def test_from_other_threads(load):
    worker = load(model(f"""import threading
                inputs = []
                def call():
                    answers.append({MAKE}).exec().parameters())
                answers = []
                threads = [threading.Thread(target=call) for _ in range(3)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
                return [pb_utils.InferenceResponse(
                    parameters={{"a": ",".join(sorted(answers))}})]"""))
    worker.send_requests(request(1, []))
    calls = [read_call(worker, worker.expect_b(B_CALL)) for _ in range(3)]
    assert len({call["id"] for call in calls}) == 3
    for place, call in enumerate(reversed(calls)):
        worker.send_b(B_CALL_REPLY, reply(call["id"], 3, parameters=f'"{place}"'))
    assert worker.result()["requests"][0]["response"]["parameters"] == (
        '{"a": "\\"0\\",\\"1\\",\\"2\\""}')


def test_async_calls_run_at_once(load):
    worker = load(f"""
        import asyncio
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            async def execute(self, requests):
                inputs = []
                calls = [{MAKE}).async_exec() for _ in range(3)]
                answers = await asyncio.gather(*calls)
                return [pb_utils.InferenceResponse(parameters={{
                    "a": "".join(answer.parameters() for answer in answers)}})]
    """.replace("\n        model_name", " model_name"))
    worker.send_requests(request(1, []))
    calls = [read_call(worker, worker.expect_b(B_CALL)) for _ in range(3)]
    for place, call in reversed(list(enumerate(calls))):
        worker.send_b(B_CALL_REPLY, reply(call["id"], 3, parameters=str(place)))
    assert worker.result()["requests"][0]["response"]["parameters"] == '{"a": "012"}'


STREAM = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            call = pb_utils.InferenceRequest(
                model_name="other", requested_output_names=["OUT"], inputs=[])
            responses = call.exec(decoupled=True)
            first = [response.parameters() for response in responses]
            again = [response.parameters() for response in responses]
            assert first == again and len(first) == 3, first
            return [pb_utils.InferenceResponse(parameters={"a": "".join(first)})]
"""


@pytest.mark.parametrize("last_has_response", [True, False])
def test_stream(load, last_has_response):
    worker = load(STREAM)
    worker.send_requests(request(1, []))
    call = read_call(worker, worker.expect_b(B_CALL))
    assert call["stream"] == 1
    worker.send_b(B_CALL_REPLY, reply(call["id"], 2, parameters="x"))
    worker.send_b(B_CALL_REPLY, reply(call["id"], 2, parameters="y"))
    if last_has_response:
        worker.send_b(B_CALL_REPLY, reply(call["id"], 3, parameters="z"))
    else:
        worker.send_b(B_CALL_REPLY, reply(call["id"], 1, empty=True))
    parameters = worker.result()["requests"][0]["response"]["parameters"]
    assert parameters == ('{"a": "xyz"}' if last_has_response else '{"a": "xy{}"}')


def test_cancel_of_a_stream(load):
    worker = load("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                responses = pb_utils.InferenceRequest(
                    model_name="other", requested_output_names=[], inputs=[]).exec(
                        decoupled=True)
                next(responses)
                responses.cancel()
                error = next(responses).error()
                assert error.code() == pb_utils.TritonError.CANCELLED
                responses.cancel()
                return [pb_utils.InferenceResponse()]
    """)
    worker.send_requests(request(1, []))
    call = read_call(worker, worker.expect_b(B_CALL))
    worker.send_b(B_CALL_REPLY, reply(call["id"], 2))
    assert worker.expect_b(CANCEL_CALL).take("Q") == call["id"]
    worker.send_b(B_CALL_REPLY, reply(call["id"], 3, error=(7, "cancelled")))
    assert worker.result()["outcome"] == 0


def test_async_stream(load):
    worker = load("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            async def execute(self, requests):
                call = pb_utils.InferenceRequest(
                    model_name="other", requested_output_names=[], inputs=[])
                responses = await call.async_exec(decoupled=True)
                answers = "".join(response.parameters() for response in responses)
                return [pb_utils.InferenceResponse(parameters={"a": answers})]
    """)
    worker.send_requests(request(1, []))
    call = read_call(worker, worker.expect_b(B_CALL))
    worker.send_b(B_CALL_REPLY, reply(call["id"], 2, parameters="x"))
    worker.send_b(B_CALL_REPLY, reply(call["id"], 3, parameters="y"))
    assert worker.result()["requests"][0]["response"]["parameters"] == '{"a": "xy"}'


def test_empty_reply_is_an_error(load):
    worker = load(SYNC)
    worker.send_requests(request(1, []))
    call = read_call(worker, worker.expect(CALL))
    worker.send(CALL_REPLY, reply(call["id"], 1, empty=True))
    assert "Unexpected empty response." in worker.result()["message"]


def test_async_exec_needs_a_loop(load):
    assert "RuntimeError: no running event loop" in failure(
        load(model(f"inputs = []; {MAKE}).async_exec()")))


def test_only_in_execute(start, tmp_path):
    import harness
    path = harness.write_model(tmp_path, """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.InferenceRequest(
                    model_name="other", requested_output_names=[], inputs=[]).exec()
    """)
    answer = start().initialize(path)
    assert answer[0] == "failed"
    assert answer[2].startswith("TritonModelException: BLS is only supported during the "
                                "'execute' function.\n\nAt:\n")


def test_interrupted_call_does_not_upset_the_next(load):
    worker = load("""
        import signal
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                def alarm(*_):
                    raise TimeoutError("too long")
                call = pb_utils.InferenceRequest(
                    model_name="other", requested_output_names=[], inputs=[])
                signal.signal(signal.SIGALRM, alarm)
                return [pb_utils.InferenceResponse(
                    parameters={"a": call.exec().parameters()})]
    """)
    worker.send_requests(request(1, []))
    late = read_call(worker, worker.expect(CALL))
    worker.process.send_signal(signal.SIGALRM)
    assert "TimeoutError: too long" in worker.result()["message"]
    worker.send_requests(request(2, []))
    call = read_call(worker, worker.expect(CALL))
    worker.send(CALL_REPLY, reply(late["id"], 3, parameters="late"))
    worker.send(CALL_REPLY, reply(call["id"], 3, parameters="right"))
    assert worker.result()["requests"][0]["response"]["parameters"] == '{"a": "right"}'


@pytest.mark.numpy
def test_late_reply_says_nothing_about_the_last_result(load):
    worker = load("""
        import signal, threading, time
        import numpy as np
        import triton_python_backend_utils as pb_utils
        LONG = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(10000))])

        class TritonPythonModel:
            def execute(self, requests):
                if requests[0].request_id() == "call":
                    signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
                    pb_utils.InferenceRequest(
                        model_name="other", requested_output_names=[], inputs=[]).exec()
                if requests[0].request_id() == "wait":
                    sender = requests[0].get_response_sender()
                    threading.Thread(target=self.answer, args=(sender,)).start()
                    return None
                return [LONG]

            def answer(self, sender):
                while not sender.is_cancelled():
                    time.sleep(0.001)  # sleep: polls for the cancellation
                sender.send(LONG, flags=1)
    """)
    worker.send_requests(request(1, [], id="call"))
    late = read_call(worker, worker.expect(CALL))
    worker.process.send_signal(signal.SIGALRM)
    assert worker.result()["outcome"] == 2
    assert worker.execute(request(2, [], id="wait"))["outcome"] == 1
    place = worker.execute(request(3, []))["requests"][0]["response"]["tensors"]["OUT"]
    worker.send(CALL_REPLY, reply(late["id"]))
    worker.wait_until_read()  # it has nothing to say to it
    worker.send_b(CANCELLED, struct.pack("<Q", 2))
    assert worker.read_response()[2]["tensors"]["OUT"].offset != place.offset


def test_reply_to_a_call_that_was_never_made(load):
    worker = load(SYNC)
    worker.send_requests(request(1, []))
    call = read_call(worker, worker.expect(CALL))
    worker.send(CALL_REPLY, reply(call["id"] + 1))
    assert worker.process.wait(30) == 70


def test_parameters_that_no_integer_of_64_bits_holds(load):
    """As in Triton, they are refused where they are sent, and nowhere else."""
    worker = load(f"""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                inputs = []
                call = {MAKE}, parameters={{"large": 1 << 63, "small": 1}})
                assert call.parameters() == '{{"large": 9223372036854775808, "small": 1}}'
                message = call.exec().error().message()
                return [
                    pb_utils.InferenceResponse(parameters={{"message": message}}),
                    pb_utils.InferenceResponse(parameters={{"large": -(1 << 63) - 1}}),
                    pb_utils.InferenceResponse(parameters={{"a": (1 << 63) - 1, "b": -(1 << 63)}}),
                ]
    """)
    refused, failed, passed = [
        one["response"]
        for one in worker.execute(*(request(key, []) for key in (1, 2, 3)))["requests"]]
    text = "Unsupported value type on parameters"
    assert text in refused["parameters"]
    assert "Model other - Error when running inference: " in refused["parameters"]
    assert failed == {"code": 1, "message": text}
    assert passed["parameters"] == '{"a": 9223372036854775807, "b": -9223372036854775808}'
