"""Passes a request on to the model `slow`, or returns the timeout that it sees."""

import json

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """See the module."""

    def initialize(self, args):
        """True if it returns timeouts."""
        self.tells = "tells" in json.loads(args["model_config"])["name"]

    def answer(self, request):
        """The response to a request."""
        if self.tells:
            row = numpy.array([[request.timeout()]], numpy.int64)
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", row)])
        row = pb_utils.Tensor("INPUT0", numpy.array([[7]], numpy.int32))
        call = pb_utils.InferenceRequest(
            model_name="slow", requested_output_names=["OUTPUT0"], inputs=[row])
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        number = response.output_tensors()[0].as_numpy().astype(numpy.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)])

    def execute(self, requests):
        """One response for each request."""
        return [self.answer(request) for request in requests]
