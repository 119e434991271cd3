"""Fails as the input selects."""

import os

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        ways = [
            pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0].decode()
            for request in requests
        ]
        if "exception" in ways:
            raise ValueError("the model raised")
        if "model_exception" in ways:
            raise pb_utils.TritonModelException("the model raised its own")
        if "too_few" in ways:
            return []
        if "too_many" in ways:
            return [response("fine") for _ in range(len(requests) + 1)]
        if "no_list" in ways:
            return 7
        if "wrong_element" in ways:
            return ["text" for _ in requests]
        if "exit" in ways:
            os._exit(3)
        return [response(way) for way in ways]


def response(way):
    if way == "fine":
        fine = numpy.array([[b"fine"]], numpy.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", fine)])
    if way == "unknown_output":
        fine = numpy.array([[1]], numpy.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("NOBODY", fine)])
    if way == "plain":
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("a plain error"))
    code = getattr(pb_utils.TritonError, way)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"error {way}", code))
