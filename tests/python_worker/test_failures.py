"""Tests of models that fail, or return something that they must not."""

import pytest
from harness import fp32, request

PREFIX = "Failed to process the request(s) for model 'm_0_0', message: "


def failure(worker, *requests):
    """The message with which an execution fails."""
    result = worker.execute(*(requests or [request(1, [])]))
    assert result["outcome"] == 2 and result["code"] == 1, result
    assert result["message"].startswith(PREFIX)
    return result["message"][len(PREFIX):]


def model(body, head=""):
    """A model whose `execute` has the given body."""
    return f"""
        import triton_python_backend_utils as pb_utils
        {head}

        class TritonPythonModel:
            def execute(self, requests):
                {body}
    """


def test_exception_names_the_frames_of_the_model(load):
    worker = load("""
        class TritonPythonModel:
            def execute(self, requests):
                self.deeper(requests)

            def deeper(self, requests):
                raise ValueError("bad day")
    """)
    expected = (f"ValueError: bad day\n\nAt:\n  {worker.path}(7): deeper\n"
                f"  {worker.path}(4): execute\n")
    assert failure(worker) == expected
    assert failure(worker) == expected


@pytest.mark.parametrize("statement, text", [
    ("sys.exit(3)", "SystemExit: 3"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt: <EMPTY MESSAGE>"),
    ("raise pb_utils.TritonModelException('mine')", "TritonModelException: mine"),
    ("assert False", "AssertionError: <EMPTY MESSAGE>"),
    ("{}['k']", "KeyError: 'k'"),
])
# row: PY-06
def test_exception_of_each_kind_and_the_worker_goes_on(load, statement, text):
    worker = load(model(f"""if requests[0].request_id():
                    {statement}
                return [pb_utils.InferenceResponse()]""", "import sys"))
    line = 8
    assert failure(worker, request(1, [], id="x")) == (
        f"{text}\n\nAt:\n  {worker.path}({line}): execute\n")
    assert worker.execute(request(2, []))["outcome"] == 0
    assert worker.finalize() == 0


@pytest.mark.parametrize("value, text", [
    ("(1,)", "Expected a list in the execute return, found type '<class 'tuple'>'."),
    ("'text'", "Expected a list in the execute return, found type '<class 'str'>'."),
    ("[]", "Number of InferenceResponse objects do not match the number of "
           "InferenceRequest objects. InferenceRequest(s) size is:1, and "
           "InferenceResponse(s) size is:0\n"),
    ("[pb_utils.InferenceResponse()] * 2",
     "Number of InferenceResponse objects do not match the number of InferenceRequest "
     "objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n"),
    ("[1]", "Expected an 'InferenceResponse' object in the execute function return list, "
            "found type '<class 'int'>'."),
])
def test_wrong_return(load, value, text):
    assert failure(load(model(f"return {value}"))) == text


def test_list_in_decoupled_mode(load):
    worker = load(model("return [pb_utils.InferenceResponse()]"), decoupled=True)
    assert failure(worker) == (
        "Python model 'm_0_0' is using the decoupled mode and the execute function must "
        "return None.")


def test_model_without_execute(load):
    worker = load("""
        class TritonPythonModel:
            pass
    """)
    assert failure(worker) == (
        f"Python model {worker.path} does not implement `execute` method.")


@pytest.mark.parametrize("expression, text", [
    ("pb_utils.InferenceResponse([None])",
     "Output tensor for inference response should not be empty."),
    ("pb_utils.InferenceResponse(parameters={1: 2})",
     "Expect parameters keys to have type str, found type <class 'int'>"),
    ("pb_utils.InferenceResponse(parameters={'k': 1.5})",
     "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
    ("pb_utils.InferenceRequest(inputs=[None], requested_output_names=[], "
     "model_name='n', request_id='i')",
     "Input tensor for request with id 'i' and model name 'n' should not be empty."),
    ("pb_utils.InferenceRequest(inputs=[], requested_output_names=['A', ''], "
     "model_name='n')",
     "Requested output name for request with id '' and model name 'n' should not be "
     "empty."),
    ("pb_utils.InferenceRequest(correlation_id=1.5, inputs=[], "
     "requested_output_names=[], model_name='n')",
     "Correlation ID must be integer or string"),
])
def test_misuse(load, expression, text):
    worker = load(model(expression))
    assert failure(worker).startswith(f"TritonModelException: {text}\n\nAt:\n")


@pytest.mark.numpy
@pytest.mark.parametrize("expression, text", [
    ("pb_utils.Tensor('', np.ones(1))", "Tensor name cannot be an empty string."),
    ("pb_utils.Tensor('a', np.ones(1, np.complex64))", "NumPy dtype is not supported."),
    ("pb_utils.Tensor('a', np.array(['text']))", "NumPy dtype is not supported."),
    ("pb_utils.Tensor('a', np.ones(1, '>f4'))", "NumPy dtype is not supported."),
])
def test_misuse_of_tensors(load, expression, text):
    worker = load(model(expression, "import numpy as np"))
    assert failure(worker) == (
        f"TritonModelException: {text}\n\nAt:\n  {worker.path}(7): execute\n")


@pytest.mark.numpy
def test_tensor_of_a_list_is_a_type_error(load):
    assert failure(load(model("pb_utils.Tensor('a', [1])"))).startswith(
        "TypeError: __init__(): incompatible constructor arguments.")


@pytest.mark.numpy
def test_responses_that_are_too_long_for_a_frame(load):
    worker = load(model("""count = requests[0].timeout()
                big = pb_utils.Tensor("OUT", np.zeros(16384, np.uint8))
                return [pb_utils.InferenceResponse([big] * count)]""", "import numpy as np"))
    assert "are longer than 67108864 bytes" in failure(worker, request(1, [], timeout=4100))
    assert worker.execute(request(2, [], timeout=1))["outcome"] == 0


def test_rescheduling(load):
    worker = load(model("""for request in requests:
                    request.set_release_flags(
                        pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None] * len(requests)"""))
    result = worker.execute(request(1, []), request(2, []))
    assert result["outcome"] == 0
    assert result["requests"] == [{"key": key, "flags": 2, "response": None}
                                  for key in (1, 2)]
    # Nothing is reported about their end, and the next execution gets a reply as usual.
    worker.execute(request(1, []))


def test_response_for_a_rescheduled_request(load):
    worker = load(model("""requests[0].set_release_flags(2)
                return [pb_utils.InferenceResponse()]"""))
    assert failure(worker) == (
        "Expected a None object in the execute function return list for reschduled "
        "request, found type '<class 'c_python_backend_utils.InferenceResponse'>'.")


def test_bf16_has_no_numpy_array(load):
    import harness
    worker = load(model("requests[0].inputs()[0].as_numpy()"))
    text = "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and " \
           "from_dlpack() instead."
    message = failure(worker, request(1, [harness.Tensor("IN", "BF16", [2], bytes(4))]))
    assert text in message or "No module named 'numpy'" in message


def test_inputs_are_released_after_a_failure(load):
    worker = load(model("held = requests[0].inputs()[0]; raise ValueError('no')"))
    import harness
    block = harness.Tensor("IN", "FP32", [8192], place=1, offset=4096, length=32768)
    result = worker.execute(request(1, [block, fp32("X", [1.0])]))
    assert result["outcome"] == 2 and result["released"] == [4096]
