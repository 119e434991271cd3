"""Responds with outputs that don't match its configuration, as the input selects."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = request.inputs()[0].as_numpy()
        lead = values.shape[:-1]
        good = pb.Tensor("OUT", np.zeros((*lead, 2), np.float32))
        more = pb.Tensor("MORE", np.ones((*lead, 1), np.int32))
        return pb.InferenceResponse({
            "good": [good, more],
            "type": [pb.Tensor("OUT", np.zeros((*lead, 2), np.int64)), more],
            "text": [pb.Tensor("OUT", np.full((*lead, 2), b"x", np.object_)), more],
            "shape": [pb.Tensor("OUT", np.zeros((*lead, 3), np.float32)), more],
            "rank": [pb.Tensor("OUT", np.zeros((2, 3, 4), np.float32)), more],
            "scalar": [pb.Tensor("OUT", np.array(1.5, np.float32)), more],
            "rows": [pb.Tensor("OUT", np.zeros((3, 2), np.float32)), more],
            "name": [good, more, pb.Tensor("ODD", np.zeros(1, np.float32))],
            "missing": [good],
            "none": [],
            "twice": [good, good, more],
        }[values.flat[0].decode()])
