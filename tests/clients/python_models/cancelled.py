"""Waits until its request is cancelled, and records it in a file."""

import pathlib
import time

import numpy
import triton_python_backend_utils as pb_utils

SECONDS_MAX = 30


class TritonPythonModel:
    def initialize(self, args):
        self.decoupled = "decoupled" in args["model_name"]

    def execute(self, requests):
        return [self.wait(request) for request in requests]

    def wait(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy().flat[0].decode()
        file = pathlib.Path(text)
        file.write_text("began")
        sender = request.get_response_sender() if self.decoupled else None
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            if (sender or request).is_cancelled():
                file.write_text("cancelled")
                break
            time.sleep(0.01)  # sleep: polls for the cancellation
        else:
            file.write_text("waited too long")
        response = pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", numpy.array([1], numpy.int32))]
        )
        if sender is None:
            return response
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
