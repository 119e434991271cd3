"""Sends the requested number of responses of a megabyte, and records each in a file."""

import pathlib

import numpy
import triton_python_backend_utils as pb_utils

MEGABYTE = numpy.zeros(1 << 20, numpy.uint8)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            file = pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy()[0].decode()
            sender = request.get_response_sender()
            for number in range(count):
                pathlib.Path(file).write_text(str(number))
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", MEGABYTE)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            pathlib.Path(file).write_text("done")
