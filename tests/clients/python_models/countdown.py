"""An iterative sequence: the input is the number of executions."""

import json

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.executions = {}

    def execute(self, requests):
        responses = [self.step(request) for request in requests]
        return None if self.decoupled else responses

    def step(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        key = request.request_id()
        executions = self.executions.pop(key, 0) + 1
        left = int(values.flat[0]) - executions
        value = left if self.decoupled else executions
        tensor = pb_utils.Tensor("OUT", numpy.full(values.shape, value, numpy.int32))
        response = pb_utils.InferenceResponse([tensor])
        if left > 0:
            self.executions[key] = executions
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        final = 0 if left > 0 else pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if self.decoupled:
            request.get_response_sender().send(response, flags=final)
        return None if left > 0 or self.decoupled else response
