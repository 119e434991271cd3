"""Returns the Python view of the model and the request as JSON."""

import json

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        return [self.describe(request, len(requests)) for request in requests]

    def describe(self, request, batch):
        seen = {
            "args": {name: self.args[name] for name in self.args if name != "model_config"},
            "config": self.config,
            "input_config": pb_utils.get_input_config_by_name(self.config, "IN"),
            "output_config": pb_utils.get_output_config_by_name(self.config, "OUT"),
            "type": str(pb_utils.triton_string_to_numpy("TYPE_FP32")),
            "decoupled": pb_utils.using_decoupled_model_transaction_policy(self.config),
            "inputs": [[one.name(), one.as_numpy().tolist()] for one in request.inputs()],
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "outputs": sorted(request.requested_output_names()),
            "cancelled": request.is_cancelled(),
            "trace": request.trace().get_context(),
        }
        text = numpy.array([json.dumps(seen).encode()], numpy.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])
