"""Follows the input, which asks for things that no model should do."""

import ctypes
import os
import signal
import sys

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        way = values.flat[0].decode()
        done = getattr(self, way)(request)
        return done if done is not None else response(str(os.getpid()))

    def pid(self, request):
        pass

    def kill(self, request):
        os.kill(os.getpid(), signal.SIGKILL)

    def segfault(self, request):
        ctypes.string_at(0)

    def leave(self, request):
        os._exit(7)

    def system_exit(self, request):
        sys.exit("the model leaves")

    def loop(self, request):
        while True:
            pass

    def garbage(self, request):
        for number in range(3, 64):
            try:
                os.write(number, b"\xff" * 64)
            except OSError:
                continue

    def wrong_type(self, request):
        return response(numpy.array([1], numpy.int32))

    def wrong_shape(self, request):
        return response(numpy.full((2, 3, 4), b"x", numpy.object_))

    def wrong_device(self, request):
        class OnGpu:
            def __dlpack_device__(self):
                return (2, 0)

            def __dlpack__(self, stream=None):
                raise AssertionError("no test asks for it")

        tensor = pb_utils.Tensor.from_dlpack("OUT", OnGpu())
        return pb_utils.InferenceResponse([tensor])

    def scribble(self, request):
        with open("/proc/self/maps") as lines:
            starts = [int(line.split("-")[0], 16) for line in lines if "galatea" in line]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            for start in starts:
                memory.seek(start)
                memory.write(b"\xff" * 65536)
        return response(str(len(starts)))

    def both(self, request):
        sender = request.get_response_sender()
        sender.send(response("sent"), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return response("returned")

    def sent_twice(self, request):
        sender = request.get_response_sender()
        sender.send(response("first"))
        sender.send(response("second"))

    def after_final(self, request):
        sender = request.get_response_sender()
        sender.send(response("first"), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        try:
            sender.send(response("second"))
        except Exception as error:
            pb_utils.Logger.log_info(f"after the final response: {error}")

    def fork(self, request):
        child = os.fork()
        if child == 0:
            try:
                pb_utils.Logger.log_error("the child speaks")
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    def spawn(self, request):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pause()
            os._exit(0)
        self.child = child
        return response(str(child))

    def leave_on_signal(self, request):
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(9))


def response(value):
    if isinstance(value, str):
        value = numpy.array([value.encode()], numpy.object_)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])
