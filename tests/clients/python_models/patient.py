"""Becomes ready when a file says so, and executes once another file exists."""

import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def path(self, name):
        return os.path.join(self.folder, name)

    def is_ready(self):
        with open(self.path("answer")) as file:
            answer = file.read()
        if answer == "raise":
            raise ValueError("unwell")
        if answer == "hang":
            time.sleep(3600)  # sleep: hangs until the server ends the worker
        return {"yes": True, "no": False}.get(answer, answer)

    def execute(self, requests):
        while not os.path.exists(self.path("go")):
            time.sleep(0.001)  # sleep: polls until the test lets it go on
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(one, "IN").as_numpy())]
            )
            for one in requests
        ]
