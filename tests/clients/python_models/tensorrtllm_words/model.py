"""A model with the inputs of TensorRT-LLM's ensembles, which repeats its prompt.

Like the engine, it keeps the tensors of an adapter under the number of its task, and fails if a
request names a task that it lacks. The word `!fail` in a prompt fails the request before the
tensors are kept.
"""

import json
import pathlib

import numpy as np
import triton_python_backend_utils as pb_utils

INPUTS = [
    ("text_input", "TYPE_STRING", [1]),
    ("stream", "TYPE_BOOL", [1]),
    ("max_tokens", "TYPE_INT32", [1]),
    ("temperature", "TYPE_FP32", [1]),
    ("lora_task_id", "TYPE_UINT64", [1]),
    ("lora_weights", "TYPE_FP16", [-1, -1]),
    ("lora_config", "TYPE_INT32", [-1, 3]),
]


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        for name, kind, dims in INPUTS:
            config.add_input({"name": name, "data_type": kind, "dims": dims, "optional": True})
        config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]})
        config.set_max_batch_size(4)
        return config

    def initialize(self, args):
        self.seen = pathlib.Path(args["model_repository"]) / "seen.jsonl"
        self.tasks = {}

    def execute(self, requests):
        return [self.serve(request) for request in requests]

    def serve(self, request):
        given = {
            name: tensor.as_numpy()
            for name, _, _ in INPUTS
            if (tensor := pb_utils.get_input_tensor_by_name(request, name)) is not None
        }
        with self.seen.open("a") as file:
            shown = {
                name: [str(array.dtype), list(array.shape), array.reshape(-1).tolist()]
                for name, array in given.items()
                if name.startswith("lora_")
            }
            file.write(json.dumps(shown) + "\n")
        prompt = given["text_input"].reshape(-1)[0].decode()
        if "!fail" in prompt:
            return failed("the engine failed")
        if "lora_task_id" in given:
            task = int(given["lora_task_id"].reshape(-1)[0])
            if "lora_weights" in given:
                self.tasks[task] = (given["lora_weights"], given["lora_config"])
            if task not in self.tasks:
                return failed(f"LoRA task {task} not found in cache")
            prompt = f"{float(self.tasks[task][0].sum())} {prompt}"
        text = pb_utils.Tensor("text_output", np.array([[prompt.encode()]], np.object_))
        return pb_utils.InferenceResponse([text])


def failed(message):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
