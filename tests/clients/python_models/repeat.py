"""Sends each element of its input as a response, as WAY selects."""

import threading

import numpy
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            way = pb_utils.get_input_tensor_by_name(request, "WAY").as_numpy().flat[0].decode()
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().tolist()
            sender = request.get_response_sender()
            if way == "later":
                thread = threading.Thread(target=send, args=(sender, values, way))
                self.threads.append(thread)
                thread.start()
            elif way == "raise":
                raise ValueError("the model raised")
            else:
                send(sender, values, way)
        return None

    def finalize(self):
        for thread in self.threads:
            thread.join()


def send(sender, values, way):
    for number, value in enumerate(values):
        flags = FINAL if way == "flag_with_last" and number + 1 == len(values) else 0
        tensor = pb_utils.Tensor("OUT", numpy.array([value], numpy.int32))
        sender.send(pb_utils.InferenceResponse([tensor]), flags=flags)
    if way == "error":
        error = pb_utils.TritonError("enough", pb_utils.TritonError.UNAVAILABLE)
        sender.send(pb_utils.InferenceResponse(error=error))
    if way != "flag_with_last":
        sender.send(flags=FINAL)
