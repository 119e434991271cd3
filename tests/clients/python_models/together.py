"""Each request completes once the requested number of requests is running at the
same time."""

import asyncio

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.running = 0
        self.most = 0

    async def execute(self, requests):
        for request in requests:
            wanted = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            self.running += 1
            self.most = max(self.most, self.running)
            while self.most < wanted:
                await asyncio.sleep(0.005)  # sleep: polls for the other requests
            sender = request.get_response_sender()
            tensor = pb_utils.Tensor("OUT", numpy.array([self.most], numpy.int32))
            response = pb_utils.InferenceResponse([tensor])
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            self.running -= 1
