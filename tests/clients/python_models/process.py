"""Returns its process ID, after waiting if the request specifies seconds."""

import os
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            # sleep: requests choose how long they execute
            time.sleep(float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0]))
        tensor = pb_utils.Tensor("OUT", numpy.array([[os.getpid()]], numpy.int32))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
