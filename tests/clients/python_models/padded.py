"""Joins the requests of a batch, which works only if their shapes are equal.

With the parameter `element_ms`, each element in the batch takes this many milliseconds."""

import json
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        element_ms = parameters.get("element_ms", {"string_value": "0"})["string_value"]
        self.element_seconds = float(element_ms) / 1000

    def execute(self, requests):
        def joined(name):
            tensors = [pb_utils.get_input_tensor_by_name(one, name) for one in requests]
            return numpy.concatenate([tensor.as_numpy() for tensor in tensors])

        ids, mask = joined("ids"), joined("mask")
        # Most of the cost is fixed, so batching pays off.
        # sleep: the cost of an execution
        time.sleep(0.01 + ids.size * self.element_seconds)
        sums = (ids * mask).sum(axis=1, keepdims=True)
        raw = ids.sum(axis=1, keepdims=True)
        responses, first = [], 0
        for request in requests:
            rows = len(pb_utils.get_input_tensor_by_name(request, "ids").as_numpy())
            own = slice(first, first + rows)
            first += rows
            outputs = [
                pb_utils.Tensor("sum", sums[own]),
                pb_utils.Tensor("raw", raw[own]),
                pb_utils.Tensor("states", 2 * ids[own]),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
