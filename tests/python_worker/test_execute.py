"""Tests of requests and results."""

import struct

import pytest
from harness import ANSWER_SECONDS, Tensor, floats, fp32, request, strings
from server import wait_until

IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                responses.append(pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", array)]))
            return responses
"""

# Returns its input tensors unchanged, without creating arrays from them.
PASS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
ANY_OUTPUT = {"name": "m", "output": [{"name": "IN"}, {"name": "OUT"}]}


def outputs(result):
    """The output tensors of each request in a result."""
    assert result["outcome"] == 0, result
    return [entry["response"]["tensors"] for entry in result["requests"]]


def block(worker, content, kind="FP32", shape=None, offset=4096, name="IN"):
    """A tensor that is in the input arena."""
    worker.inputs[offset:offset + len(content)] = content
    return Tensor(name, kind, shape or [len(content) // 4], place=1, offset=offset,
                  length=len(content))


@pytest.mark.numpy
def test_identity_of_inline_tensors(load):
    worker = load(IDENTITY)
    assert worker.hello["pid"] == worker.process.pid
    assert worker.answer == {"is_ready": False, "numpy": False, "async": False}
    result = worker.execute(
        request(7, [fp32("IN", [1.5, 2.5])]), request(9, [fp32("IN", [4.0])]))
    assert [r["key"] for r in result["requests"]] == [7, 9]
    assert [r["flags"] for r in result["requests"]] == [1, 1]
    assert result["released"] == []
    first, second = [tensors["OUT"] for tensors in outputs(result)]
    assert (floats(first), floats(second)) == ([1.5, 2.5], [4.0])
    assert (first.shape, second.shape, first.kind) == ([2], [1], 11)
    assert worker.finalize() == 0


def test_tensors_pass_without_numpy(load):
    worker = load(PASS, config=ANY_OUTPUT)
    result = worker.execute(request(1, [fp32("IN", [3.0])]),
                            request(2, [strings("IN", ["a", "bc"])]))
    first, second = [tensors["IN"] for tensors in outputs(result)]
    assert floats(first) == [3.0]
    assert second.content == b"\1\0\0\0a\2\0\0\0bc" and second.kind == 13
    result = worker.execute(request(3, [block(worker, bytes(65536))]))
    assert outputs(result)[0]["IN"].place == 1 and result["released"] == [4096]


@pytest.mark.numpy
def test_identity_of_a_block_is_not_copied(load):
    worker = load(IDENTITY)
    content = struct.pack("<8192f", *range(8192))
    result = worker.execute(request(1, [block(worker, content)]))
    output = outputs(result)[0]["OUT"]
    assert (output.place, output.offset, output.content) == (1, 4096, content)
    assert result["released"] == [4096]


@pytest.mark.numpy
def test_long_output_goes_into_the_output_arena(load):
    worker = load("""
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                array = np.arange(9000, dtype=np.int32).reshape(90, 100).T
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
                        for _ in requests]
    """)
    seen = []
    for key in (1, 2):
        result = worker.execute(request(key, []), request(10 + key, []))
        one, two = [tensors["OUT"] for tensors in outputs(result)]
        assert one.place == two.place == 2 and one.offset != two.offset
        assert one.shape == [100, 90] and one.kind == 8
        values = struct.unpack("<9000i", one.content)
        assert values[:3] == (0, 100, 200) and values[-1] == 8999
        seen.append({one.offset, two.offset})
    # The blocks of the first result were free again when the second was created.
    assert seen[0] == seen[1]


@pytest.mark.numpy
def test_input_that_the_model_keeps_is_released_when_it_lets_go(load):
    worker = load("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            kept = None

            def execute(self, requests):
                for request in requests:
                    array = request.inputs()[0].as_numpy()
                    self.kept = array[1:][::2].reshape(-1)[:5]
                return [pb_utils.InferenceResponse() for _ in requests]
    """)
    result = worker.execute(request(1, [block(worker, bytes(32768), offset=8192)]))
    assert result["released"] == []
    result = worker.execute(request(2, [fp32("IN", [1.0])]))
    assert result["released"] == [8192]


@pytest.mark.numpy
def test_input_named_in_a_result_is_not_released_before_it_was_read(load, tmp_path):
    sent, gone = tmp_path / "sent", tmp_path / "gone"
    worker = load(f"""
        import pathlib
        import threading
        import time
        import triton_python_backend_utils as pb_utils

        def forget(keeper):
            while not pathlib.Path({str(sent)!r}).exists():
                time.sleep(0.001)  # sleep: polls until the test lets it go on
            keeper.clear()
            pathlib.Path({str(gone)!r}).touch()

        class TritonPythonModel:
            def execute(self, requests):
                tensor = requests[0].inputs()[0]
                keeper = [tensor.as_numpy()]
                threading.Thread(target=forget, args=(keeper,)).start()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", keeper[0])])]
    """)
    result = worker.execute(request(1, [block(worker, bytes(32768))]))
    assert outputs(result)[0]["OUT"].place == 1 and result["released"] == []
    # Once the model has dropped it, nothing may arrive on B.
    sent.touch()
    wait_until(gone.exists, ANSWER_SECONDS, "the model has dropped it")
    result = worker.execute(request(2, [fp32("IN", [1.0])]))
    assert result["released"] == [4096]


@pytest.mark.numpy
def test_part_of_a_block_is_not_copied_either(load):
    worker = load(IDENTITY.replace('.as_numpy()', '.as_numpy()[4096:]'))
    content = struct.pack("<16384f", *range(16384))
    result = worker.execute(request(1, [block(worker, content)]))
    output = outputs(result)[0]["OUT"]
    assert (output.place, output.offset) == (1, 4096 + 16384)
    assert output.content == content[16384:] and result["released"] == [4096]


@pytest.mark.numpy
def test_input_released_between_executions_comes_on_the_side(load, tmp_path):
    sent = tmp_path / "sent"
    worker = load(f"""
        import pathlib
        import threading
        import time
        import triton_python_backend_utils as pb_utils

        def forget(keeper):
            while not pathlib.Path({str(sent)!r}).exists():
                time.sleep(0.001)  # sleep: polls until the test lets it go on
            keeper.clear()

        class TritonPythonModel:
            def execute(self, requests):
                keeper = [requests[0].inputs()[0].as_numpy()]
                threading.Thread(target=forget, args=(keeper,)).start()
                return [pb_utils.InferenceResponse()]
    """)
    assert worker.execute(request(1, [block(worker, bytes(32768))]))["released"] == []
    sent.touch()
    cursor = worker.expect_b(5)
    assert (cursor.take("I"), cursor.take("Q")) == (1, 4096)


@pytest.mark.numpy
def test_bytes_tensors(load):
    worker = load("""
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                array = requests[0].inputs()[0].as_numpy()
                assert array.dtype == np.object_ and array.tolist() == [b"a", b"\\xff"]
                outputs = [
                    pb_utils.Tensor("OUT", np.array(["\\u00e9", b"\\xfe", 7], np.object_)),
                    pb_utils.Tensor("IN", np.array([[b"xy"], [b"z"]]))]
                return [pb_utils.InferenceResponse(outputs)]
    """, config=ANY_OUTPUT)
    tensors = outputs(worker.execute(request(1, [strings("IN", [b"a", b"\xff"])])))[0]
    assert tensors["OUT"].content == (
        b"\2\0\0\0\xc3\xa9\1\0\0\0\xfe\1\0\0\0" + b"7")
    assert tensors["IN"].content == b"\2\0\0\0xy\1\0\0\0z"
    assert tensors["IN"].shape == [2, 1] and tensors["IN"].kind == 13


@pytest.mark.numpy
def test_inputs_are_writable_and_have_their_types(load):
    worker = load("""
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                outputs = []
                for tensor in requests[0].inputs():
                    array = tensor.as_numpy()
                    assert tensor.as_numpy() is array and tensor.is_cpu()
                    array[...] = array + array
                    outputs.append(tensor)
                return [pb_utils.InferenceResponse(outputs)]
    """, config={"output": [{"name": name} for name in "ABCD"]})
    tensors = outputs(worker.execute(request(1, [
        Tensor("A", "INT64", [1, 2], struct.pack("<2q", 4, -5)),
        Tensor("B", "FP16", [2], struct.pack("<2e", 0.5, 2)),
        Tensor("C", "FP64", [], struct.pack("<d", 1.25)),
        Tensor("D", "BOOL", [0], b"")])))[0]
    assert struct.unpack("<2q", tensors["A"].content) == (8, -10)
    assert struct.unpack("<2e", tensors["B"].content) == (1, 4)
    assert struct.unpack("<d", tensors["C"].content) == (2.5,)
    assert tensors["C"].shape == [] and tensors["D"].shape == [0]


def test_requested_outputs_prune_the_response(load):
    worker = load(PASS, config=ANY_OUTPUT)
    inputs = [fp32("IN", [1.0]), fp32("OUT", [2.0]), fp32("OTHER", [3.0])]
    result = worker.execute(request(1, inputs, outputs=["OUT"]), request(2, inputs))
    assert [sorted(tensors) for tensors in outputs(result)] == [["OUT"], ["IN", "OUT"]]


# row: PY-05
def test_fields_of_a_request(load):
    worker = load("""
        import json
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                seen = []
                for r in requests:
                    seen.append([
                        r.request_id(), r.correlation_id(), r.flags(), r.timeout(),
                        json.loads(r.parameters()), sorted(r.requested_output_names()),
                        [t.name() for t in r.inputs()], [t.shape() for t in r.inputs()],
                        r.is_cancelled(), r._model_name, r._model_version,
                        r.trace().get_context()])
                raise pb_utils.TritonModelException(json.dumps(seen))
    """)
    result = worker.execute(
        request(1, [fp32("IN", [1.0])], id="r1", correlation=2**63, flags=3, timeout=99,
                parameters='{"a":1}', outputs=["OUT"]),
        request(2, [], correlation="seq", trace='{"traceparent":"00"}'))
    text = result["message"].split("TritonModelException: ")[1].split("\n")[0]
    import json
    assert json.loads(text) == [
        ["r1", 2**63, 3, 99, {"a": 1}, ["OUT"], ["IN"], [[1]], False, "m", 1, None],
        ["", "seq", 0, 0, {}, ["OUT"], [], [], False, "m", 1, '{"traceparent":"00"}']]


def test_error_and_parameters_of_a_response(load):
    worker = load("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                error = pb_utils.TritonError("no file", pb_utils.TritonError.NOT_FOUND)
                assert error.code() == pb_utils.TritonError.NOT_FOUND
                return [
                    pb_utils.InferenceResponse(error=error),
                    pb_utils.InferenceResponse(error=pb_utils.TritonError("internal")),
                    pb_utils.InferenceResponse(parameters={"k": "v", "n": 3, "b": True})]
    """)
    result = worker.execute(*[request(key, []) for key in (1, 2, 3)])
    first, second, third = [entry["response"] for entry in result["requests"]]
    assert first == {"code": 2, "message": "no file"}
    assert second == {"code": 1, "message": "internal"}
    assert third == {"parameters": '{"k": "v", "n": 3, "b": true}', "tensors": {}}


@pytest.mark.numpy
def test_full_arena_fails_the_request_only(load):
    worker = load("""
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                tensors = [pb_utils.Tensor("OUT", np.ones(size, np.uint8))
                           for size in (20000, requests[0].timeout())]
                return [pb_utils.InferenceResponse(tensors)]
    """, arena_bytes=1 << 20)
    result = worker.execute(request(1, [], timeout=2 << 20))
    assert result["outcome"] == 2
    assert "no room for a tensor of 2097152 bytes" in result["message"]
    # There is only enough room for both if the first tensor's block is free again.
    output = outputs(worker.execute(request(2, [], timeout=248 * 4096)))[0]["OUT"]
    assert output.content == b"\1" * 248 * 4096
