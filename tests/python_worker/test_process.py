"""Tests of a worker's process: its start, its children, its end, and invalid input."""

import json
import os
import signal
import socket
import struct
import subprocess

import harness
import pytest
from harness import (ANSWER_SECONDS, CALL_REPLY, CANCELLED, EXECUTE, FREE, INITIALIZE,
                     REPLY, Tensor, fp32, request, text)
from server import wait_until
from test_execute import PASS
from test_failures import failure, model


def ended(worker):
    """The exit status of a worker that must end by itself."""
    return worker.process.wait(ANSWER_SECONDS)


def test_hello(start):
    worker = start()
    assert worker.hello["protocol"] == 1
    assert worker.hello["pid"] == worker.process.pid
    version = worker.hello["python"].split(".")
    assert len(version) == 3 and all(part.isdigit() for part in version)


def test_place_of_the_process(load):
    worker = load(model("""import os, sys, stat, __main__
                assert sys.argv == [""], sys.argv
                assert "" not in sys.path and os.getcwd() not in sys.path
                assert not hasattr(__main__, "__file__") and __main__.__spec__ is None
                assert os.fstat(0).st_rdev == os.stat("/dev/null").st_rdev
                import fcntl
                for name in os.listdir("/proc/self/fd"):
                    try:
                        kind = os.stat("/proc/self/fd/" + name).st_mode
                        flags = fcntl.fcntl(int(name), fcntl.F_GETFD)
                    except OSError:
                        continue
                    if stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind) and int(name) > 2:
                        assert flags & fcntl.FD_CLOEXEC, name
                return [pb_utils.InferenceResponse()]"""))
    result = worker.execute(request(1, []))
    assert result["outcome"] == 0, result["message"]


def test_own_frames_show_text_in_tracebacks(load):
    worker = load(model("""import inspect, traceback
                assert "Length of each dimension" in inspect.getsource(
                    pb_utils.Tensor.shape)
                try:
                    pb_utils.InferenceResponse([None])
                except pb_utils.TritonModelException:
                    assert "raise TritonModelException" in traceback.format_exc()
                return [pb_utils.InferenceResponse()]"""))
    result = worker.execute(request(1, []))
    assert result["outcome"] == 0, result["message"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_the_end_to_the_server(load, number):
    worker = load(PASS)
    worker.process.send_signal(number)
    assert worker.execute(request(1, [fp32("OUT", [1.0])]))["outcome"] == 0
    assert worker.finalize() == 0


def test_sigterm_ends_a_finalize_that_hangs(load, tmp_path):
    mark = tmp_path / "in finalize"
    worker = load(f"""
        import time

        class TritonPythonModel:
            def finalize(self):
                open({str(mark)!r}, "w").close()
                time.sleep(1000)  # sleep: hangs until the test ends it
    """)
    worker.send(harness.FINALIZE)
    wait_until(mark.exists, ANSWER_SECONDS, "the model is called")
    worker.process.terminate()
    assert ended(worker) == -signal.SIGTERM


def test_server_that_closes_the_sockets(load):
    worker = load(PASS)
    worker.a.shutdown(socket.SHUT_RDWR)
    assert ended(worker) == 1


def test_server_that_is_gone_while_the_model_hangs(load):
    # sleep: hangs until the worker ends
    worker = load(model("import time; time.sleep(1000)"))
    worker.send_requests(request(1, []))
    os.close(worker.lifeline)
    worker.b.shutdown(socket.SHUT_RDWR)
    assert ended(worker) in (-signal.SIGKILL, 1)


def test_lifeline_alone_is_enough(load, tmp_path):
    mark = tmp_path / "executing"
    worker = load(model(f"""open({str(mark)!r}, "w").close()
                sum(range(1 << 60))"""))
    worker.send_requests(request(1, []))
    wait_until(mark.exists, ANSWER_SECONDS, "the model is called")
    os.close(worker.lifeline)
    assert ended(worker) == -signal.SIGKILL


FORK = """
    import os
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
                return [pb_utils.InferenceResponse()]
            try:
                {code}
            except pb_utils.TritonModelException as error:
                assert "only the process of the model" in str(error)
                os._exit(0)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(2)
"""


@pytest.mark.parametrize("code", [
    "requests[0].get_response_sender().send(pb_utils.InferenceResponse())",
    "pb_utils.Logger.log_info('x')",
    "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], "
    "model_name='x').exec()",
    "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], "
    "model_name='x').exec(decoupled=True).cancel()",
    "pb_utils.load_model('x')",
])
def test_forked_child_cannot_speak(load, code):
    worker = load(FORK.format(code=code))
    result = worker.execute(request(1, []))
    assert result["outcome"] == 0, result["message"]
    worker.b.setblocking(False)
    with pytest.raises(BlockingIOError):
        worker.b.recv(1)


@pytest.mark.numpy
def test_forked_child_cannot_write_into_the_arena(load):
    worker = load(FORK.format(code="""import numpy as np
                tensor = pb_utils.Tensor("OUT", np.ones(10000))
                requests[0].get_response_sender().send(
                    pb_utils.InferenceResponse([tensor]))"""))
    result = worker.execute(request(1, []))
    assert result["outcome"] == 0, result["message"]
    assert worker.outputs[:8] == bytes(8)


def test_forked_child_that_returns(load):
    worker = load(model("""import os
                child = os.fork()
                if child:
                    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                return [pb_utils.InferenceResponse(
                    parameters={"me": os.getpid(), "status": status if child else -1})]"""))
    result = worker.execute(request(1, []))
    assert json.loads(result["requests"][0]["response"]["parameters"]) == {
        "me": worker.process.pid, "status": 1}
    assert worker.execute(request(2, []))["outcome"] == 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(load, method):
    worker = load(f"""
        import multiprocessing
        import triton_python_backend_utils as pb_utils

        def work(queue):
            error = pb_utils.TritonError("from the child")
            queue.put(error.message())

        class TritonPythonModel:
            def execute(self, requests):
                context = multiprocessing.get_context("{method}")
                queue = context.SimpleQueue()
                child = context.Process(target=work, args=(queue,))
                child.start()
                said = queue.get()
                child.join()
                return [pb_utils.InferenceResponse(parameters={{"said": said}})]
    """)
    result = worker.execute(request(1, []))
    assert result["outcome"] == 0, result["message"]
    assert result["requests"][0]["response"]["parameters"] == '{"said": "from the child"}'
    assert worker.finalize() == 0


@pytest.mark.parametrize("code, status", [
    ("import os; os._exit(9)", 9),
    ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
])
def test_crash(load, code, status):
    worker = load(model(code))
    worker.send_requests(request(1, []))
    with pytest.raises(EOFError):
        worker.result()
    assert ended(worker) == status


def frame(kind, payload=b""):
    return struct.pack("<IB", len(payload) + 1, kind) + payload


def tensor(shape=(1,), kind="FP32", content=bytes(4), **place):
    return request(1, [Tensor("IN", kind, shape, content, **place)])


def block_of(offset, length):
    return request(1, [Tensor("IN", "UINT8", [length], place=1, offset=offset,
                              length=length)])


def execution(*requests):
    return frame(EXECUTE, struct.pack("<I", len(requests)) + b"".join(requests))


NONSENSE_A = [
    b"\0\0\0\0", b"\xff\xff\xff\xff", frame(99), frame(EXECUTE),
    frame(EXECUTE, b"\xff\xff\xff\xff"), frame(EXECUTE, b"\0\0\0\0rest"),
    frame(CALL_REPLY, struct.pack("<QB", 5, 1)), frame(INITIALIZE, b"\4\0\0\0{"),
    frame(INITIALIZE, text("[]")), frame(harness.FINALIZE, b"x"),
    execution(tensor(shape=(2,))), execution(tensor(shape=(-1,))),
    execution(tensor(kind=15)), execution(tensor(kind=0)), execution(tensor(place=2)),
    execution(tensor(kind="BYTES", shape=(2,))), execution(tensor(shape=(1,) * 65)),
    execution(tensor(shape=(1 << 62, 1 << 62, 0), content=b"x")),
    execution(tensor())[:-1] + b"", execution(request(1, [], correlation="x"))[:-9] + b"",
    execution(block_of(1 << 32, 1)), execution(block_of((1 << 32) - 8, 16)),
    execution(block_of((1 << 64) - 8, 16)), execution(block_of(8, 1 << 33)),
    execution(request(1, []).replace(b"\0", b"\7", 99)),
]


@pytest.mark.parametrize("data", NONSENSE_A, ids=range(len(NONSENSE_A)))
def test_nonsense_on_a(load, data, tmp_path):
    worker = load(PASS, stderr=subprocess.PIPE)
    worker.a.sendall(data)
    worker.a.shutdown(socket.SHUT_WR)
    status = ended(worker)
    said = worker.process.stderr.read().decode()
    if status == 70:
        assert said.startswith("python worker: the server sent nonsense: ")
        assert said.count("\n") == 1, said
    else:  # a frame that isn't whole: the end of the socket ends the worker
        assert (status, said) == (1, "")
    assert status == 70 or data[:-1] in execution(tensor()) + execution(
        request(1, [], correlation="x"))


NONSENSE_B = [
    frame(99), frame(FREE, struct.pack("<IQ", 1, 4096)), frame(FREE, b"\xff\xff\xff\xff"),
    frame(FREE), frame(CANCELLED, b"x"), frame(REPLY, struct.pack("<QB", 1, 1)),
    frame(REPLY, struct.pack("<QB", 1, 1) + text("[]")),
    frame(harness.B_CALL_REPLY, struct.pack("<QB", 77, 1)), b"\0\0\0\0",
]


@pytest.mark.parametrize("data", NONSENSE_B, ids=range(len(NONSENSE_B)))
def test_nonsense_on_b(load, data):
    worker = load(PASS, stderr=subprocess.PIPE)
    worker.b.sendall(data)
    assert ended(worker) == 70
    said = worker.process.stderr.read().decode()
    assert said.startswith("python worker: the server sent nonsense: ")
    assert said.count("\n") == 1, said


def test_frames_in_pieces_and_together(load):
    worker = load(PASS)
    data = execution(request(1, [fp32("OUT", [1.0])]))
    for part in (data[:2], data[2:6], data[6:20], data[20:]):
        worker.a.sendall(part)
        worker.wait_until_read()
    assert worker.result()["outcome"] == 0
    worker.a.sendall(data + data + data[:7])
    assert worker.result()["outcome"] == worker.result()["outcome"] == 0
    worker.a.sendall(data[7:])
    assert worker.result()["outcome"] == 0
    many = [request(key, [fp32("OUT", [float(key)] * 4000)]) for key in range(20)]
    result = worker.execute(*many)
    assert [entry["key"] for entry in result["requests"]] == list(range(20))


@pytest.mark.numpy
def test_end_is_silent_whatever_the_model_left(load):
    worker = load("""
        import threading
        import numpy as np
        import triton_python_backend_utils as pb_utils
        kept = []

        class TritonPythonModel:
            def execute(self, requests):
                kept.extend(requests)
                kept.append(requests[0].inputs()[0].as_numpy())
                kept.append(requests[0].inputs()[0].to_dlpack())
                kept.append(kept)
                requests[0].get_response_sender().send(pb_utils.InferenceResponse())
    """, decoupled=True, stderr=subprocess.PIPE)
    block = Tensor("IN", "FP32", [8192], place=1, offset=4096, length=32768)
    assert worker.execute(request(1, [block]))["outcome"] == 1
    assert worker.finalize() == 0
    assert worker.process.stderr.read() == b""


def test_print_reaches_standard_output_at_once(load):
    worker = load(model("""import sys
                assert sys.stdout.line_buffering
                return [pb_utils.InferenceResponse()]"""))
    assert worker.execute(request(1, []))["outcome"] == 0


def test_failure_is_reported_once(load):
    assert "ZeroDivisionError" in failure(load(model("1 / 0")))
