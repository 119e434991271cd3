"""Tests of response senders, used from any thread, decoupled or not."""

import struct

import pytest
from harness import CANCELLED, FREE, IS_READY, PAUSE, RESPONSE, RESUME, request
from test_execute import block
from test_failures import failure, model


def nothing(result):
    """Checks that `execute` returned None."""
    assert result["outcome"] == 1, result
    return [entry["key"] for entry in result["requests"]]


def test_decoupled_responses_from_a_thread(load):
    worker = load("""
        import threading
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    threading.Thread(
                        target=self.answer, args=(request.get_response_sender(),)).start()

            def answer(self, sender):
                for number in range(3):
                    sender.send(pb_utils.InferenceResponse(parameters={"n": number}))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """, decoupled=True)
    assert nothing(worker.execute(request(5, []))) == [5]
    seen = [worker.read_response() for _ in range(4)]
    assert [response and response["parameters"] for _, _, response in seen] == [
        '{"n": 0}', '{"n": 1}', '{"n": 2}', None]
    assert [(key, flags) for key, flags, _ in seen] == [(5, 0)] * 3 + [(5, 1)]


@pytest.mark.numpy
def test_long_responses_are_freed_by_the_server(load):
    worker = load("""
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                array = np.full(10000, requests[0].timeout(), np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]), 1)
    """, decoupled=True)
    places = []
    for value in (1, 2, 3):
        worker.execute(request(value, [], timeout=value))
        tensor = worker.read_response()[2]["tensors"]["OUT"]
        assert tensor.place == 2
        assert tensor.content == struct.pack("<i", value) * 10000
        places.append(tensor.offset)
        if value == 2:
            worker.send_b(FREE, struct.pack("<IQ", 1, places[0]))
            # The worker reads B whenever it can, so let it reply to something sent later.
            worker.execute(request(9, [], timeout=0))
            worker.read_response()
    assert places[0] != places[1]
    worker.execute(request(4, [], timeout=4))
    assert worker.read_response()[2]["tensors"]["OUT"].place == 2


@pytest.mark.numpy
def test_input_named_on_the_side_is_released_there(load):
    worker = load("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                tensor = pb_utils.Tensor("OUT", requests[0].inputs()[0].as_numpy())
                requests[0].get_response_sender().send(
                    pb_utils.InferenceResponse([tensor]), 1)
    """, decoupled=True)
    result = worker.execute(request(1, [block(worker, b"\1" * 32768)]))
    assert nothing(result) == [1] and result["released"] == []
    tensor = worker.read_response()[2]["tensors"]["OUT"]
    assert (tensor.place, tensor.offset) == (1, 4096)
    cursor = worker.expect_b(5)
    assert (cursor.take("I"), cursor.take("Q")) == (1, 4096)


def test_sender_of_a_model_that_is_not_decoupled(load):
    worker = load(model("""requests[0].get_response_sender().send(
                    pb_utils.InferenceResponse(parameters={"a": 1}), flags=1)
                return [None, pb_utils.InferenceResponse()]"""))
    result = worker.execute(request(1, []), request(2, []))
    assert result["outcome"] == 0
    assert [entry["response"] for entry in result["requests"]] == [
        None, {"parameters": "", "tensors": {}}]
    assert worker.read_response() == (1, 1, {"parameters": '{"a": 1}', "tensors": {}})


CHECKS = [
    (True, "sender.send(flags=1); sender.send(flags=1)",
     "Unable to send response. Response sender has been closed."),
    (True, "sender.send(response, flags=1); sender.send(response)",
     "Unable to send response. Response sender has been closed."),
    (True, "sender.send(response, flags=4)",
     "Unable to send response. Unsupported flag provided."),
    (True, "sender.send()",
     "Inference Response object must be provided when the response flags is set to zero."),
    (False, "sender.send(flags=1)",
     "Unable to send response. Non-decoupled model cannot send complete final before "
     "sending a response."),
    (False, "sender.send(response); sender.send(flags=1); sender.send(flags=1)",
     "Unable to send response. Response sender has been closed."),
    (False, "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], "
            "model_name='n').get_response_sender().send(response)",
     "Unable to send response. Response sender has no reference to the decoupled state of "
     "the model."),
]


@pytest.mark.parametrize("decoupled, code, text", CHECKS)
def test_checks(load, decoupled, code, text):
    worker = load(model(
        "sender = requests[0].get_response_sender(); "
        f"response = pb_utils.InferenceResponse(); {code}"), decoupled=decoupled)
    assert failure(worker).startswith(f"TritonModelException: {text}\n\nAt:\n")


def test_answered_twice(load):
    worker = load(model("""requests[0].get_response_sender().send(
                    pb_utils.InferenceResponse(), flags=1)
                return [pb_utils.InferenceResponse()]"""))
    assert failure(worker) == (
        "Unable to send response. Non-decoupled model cannot send more than one response.")


def test_sender_is_closed_by_the_result(load):
    worker = load("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            old = None

            def execute(self, requests):
                if self.old is not None:
                    self.old.get_response_sender().send(pb_utils.InferenceResponse())
                self.old = requests[0]
                return [pb_utils.InferenceResponse()]
    """)
    assert worker.execute(request(1, []))["outcome"] == 0
    assert "Response sender has been closed." in failure(worker, request(2, []))


@pytest.mark.parametrize("decoupled", [True, False])
def test_request_that_the_model_forgets_is_ended(load, decoupled):
    worker = load(model("return None"), decoupled=decoupled)
    assert nothing(worker.execute(request(1, []), request(2, []))) == [1, 2]
    ends = sorted(worker.read_response() for _ in range(2))
    assert ends == [(1, 1, None), (2, 1, None)]


def test_sender_dropped_between_responses(load):
    worker = load(model("""sender = requests[0].get_response_sender()
                sender.send(pb_utils.InferenceResponse())"""), decoupled=True)
    worker.execute(request(3, []))
    assert worker.read_response()[:2] == (3, 0)
    assert worker.read_response() == (3, 1, None)


def test_failure_closes_senders(load):
    worker = load("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            senders = []

            def execute(self, requests):
                for sender in self.senders:
                    sender.send(pb_utils.InferenceResponse())
                self.senders = [requests[0].get_response_sender()]
                raise ValueError("first")
    """, decoupled=True)
    assert "first" in failure(worker)
    assert "Response sender has been closed." in failure(worker)


def test_cancellation(load):
    worker = load("""
        import threading, time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                threading.Thread(target=self.wait, args=(requests[0], sender)).start()
                sender.send(pb_utils.InferenceResponse())

            def wait(self, request, sender):
                while not request.is_cancelled() or not sender.is_cancelled():
                    time.sleep(0.001)  # sleep: polls for the cancellation
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(
                    "stopped", pb_utils.TritonError.CANCELLED)), flags=1)
    """, decoupled=True)
    worker.execute(request(8, []))
    assert worker.read_response()[:2] == (8, 0)
    worker.send_b(CANCELLED, struct.pack("<Q", 8))
    assert worker.read_response() == (8, 1, {"code": 7, "message": "stopped"})


def responses_before_ready(worker):
    """The number of responses that arrive before the model's readiness, which is requested now."""
    worker.send_b(IS_READY, struct.pack("<Q", 1))
    count = 0
    while worker.read_b()[0] == RESPONSE:
        count += 1
    return count


@pytest.mark.parametrize("end", [RESUME, CANCELLED])
def test_sender_waits_while_the_client_is_slow(load, end):
    worker = load("""
        import threading
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                threading.Thread(
                    target=self.answer, args=(requests[0].get_response_sender(),)).start()

            def answer(self, sender):
                while True:
                    sender.send(pb_utils.InferenceResponse())
                    if sender.is_cancelled():
                        return

            def is_ready(self):
                return True
    """, decoupled=True)
    worker.execute(request(6, []))
    worker.send_b(PAUSE, struct.pack("<Q", 6))
    responses_before_ready(worker)
    # One may have been on the way when the worker learned of the pause.
    assert sum(responses_before_ready(worker) for _ in range(50)) <= 1
    worker.send_b(end, struct.pack("<Q", 6))
    assert worker.read_response()[:2] == (6, 0)


@pytest.mark.numpy
def test_sender_does_not_outrun_the_server(load):
    worker = load("""
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                tensor = pb_utils.Tensor("OUT", np.zeros(32 << 20, np.uint8))
                for _ in range(16):
                    sender.send(pb_utils.InferenceResponse([tensor]))

            def is_ready(self):
                return True
    """, decoupled=True)
    worker.send_requests(request(1, []))
    places = [worker.read_response()[2]["tensors"]["OUT"].offset for _ in range(9)]
    assert len(set(places)) == 9
    assert sum(responses_before_ready(worker) for _ in range(50)) == 0
    for _ in range(7):
        worker.send_b(FREE, struct.pack("<IQ", 1, places.pop(0)))
        places.append(worker.read_response()[2]["tensors"]["OUT"].offset)
    assert worker.result()["outcome"] == 1


def test_result_says_how_much_was_sent_before_it(load):
    worker = load(model("""sender = requests[0].get_response_sender()
                for _ in range(3):
                    sender.send(pb_utils.InferenceResponse())
                sender.send(flags=1)"""), decoupled=True)
    assert worker.execute(request(1, []))["sent"] == 4
    assert worker.execute(request(2, []))["sent"] == 8


def test_responses_of_many_threads_keep_their_order(load):
    worker = load("""
        import threading
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    threading.Thread(
                        target=self.answer, args=(request.get_response_sender(),)).start()

            def answer(self, sender):
                for number in range(200):
                    sender.send(pb_utils.InferenceResponse(parameters={"n": number}))
                sender.send(flags=1)
    """, decoupled=True)
    keys = list(range(1, 9))
    worker.execute(*[request(key, []) for key in keys])
    next_of = dict.fromkeys(keys, 0)
    for _ in range(len(keys) * 201):
        key, flags, response = worker.read_response()
        if flags:
            assert response is None and next_of[key] == 200
        else:
            assert response["parameters"] == '{"n": %d}' % next_of[key]
            next_of[key] += 1


TWICE = "Unable to send response. Non-decoupled model cannot send more than one response."


@pytest.mark.parametrize("end, text", [
    ("return [pb_utils.InferenceResponse(), pb_utils.InferenceResponse()]", TWICE),
    ("raise ValueError('the model fails')", "ValueError: the model fails"),
    ("requests[0].get_response_sender().send(pb_utils.InferenceResponse())",
     f"TritonModelException: {TWICE}"),
])
def test_what_was_sent_stays_when_the_execution_fails(load, end, text):
    worker = load(model(f"""requests[0].get_response_sender().send(
                    pb_utils.InferenceResponse(parameters={{"a": 1}}))
                {end}"""))
    result = worker.execute(request(1, []), request(2, []))
    assert result["outcome"] == 0
    first, second = [entry["response"] for entry in result["requests"]]
    assert first is None and second["code"] == 1
    assert second["message"].startswith("Failed to process the request(s) for model ")
    assert f"message: {text}" in second["message"]
    assert worker.read_response() == (1, 0, {"parameters": '{"a": 1}', "tensors": {}})
    assert worker.read_response() == (1, 1, None)
