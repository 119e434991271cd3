"""A backend with the same inputs and outputs as vLLM's, whose model repeats the words of its
prompt.

With `stream`, each word is a response; otherwise, there is one text. Some words in the prompt are
commands: `!fail` ends with an error, `!wait` waits until the request is cancelled, and `!pair`
sends two texts.
"""

import json
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# The time for which a request waits to be cancelled.
SECONDS_MAX = 60

INPUTS = [
    ("text_input", "TYPE_STRING"),
    ("stream", "TYPE_BOOL"),
    ("sampling_parameters", "TYPE_STRING"),
    ("exclude_input_in_output", "TYPE_BOOL"),
    ("return_logprobs", "TYPE_BOOL"),
    ("return_num_input_tokens", "TYPE_BOOL"),
    ("return_num_output_tokens", "TYPE_BOOL"),
    ("embedding_request", "TYPE_STRING"),
]
OUTPUTS = [
    ("text_output", "TYPE_STRING"),
    ("logprobs", "TYPE_STRING"),
    ("num_input_tokens", "TYPE_UINT32"),
    ("num_output_tokens", "TYPE_UINT32"),
]


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        for name, kind in INPUTS:
            config.add_input({"name": name, "data_type": kind, "dims": [1], "optional": True})
        for name, kind in OUTPUTS:
            config.add_output({"name": name, "data_type": kind, "dims": [-1]})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        folder = pathlib.Path(args["model_repository"])
        self.seen = folder / "seen.jsonl"

    def execute(self, requests):
        for request in requests:
            self.serve(request)
        return None

    def serve(self, request):
        sender = request.get_response_sender()
        embedding = value(request, "embedding_request")
        if embedding is not None:
            text = json.dumps([0.5, -1.25])
            count = len(str(json.loads(embedding)["input"]).split(" "))
            sender.send(response(request, text, count, 0, []), flags=FINAL)
            return
        prompt = value(request, "text_input").decode()
        sampling = value(request, "sampling_parameters")
        if sampling is not None:
            with self.seen.open("a") as file:
                file.write(sampling.decode() + "\n")
        words = prompt.split(" ")
        count = len(words)
        if "!wait" in words:
            sender.send(response(request, "waiting", count, 1, ["waiting"]))
            until = time.monotonic() + SECONDS_MAX
            while not request.is_cancelled() and time.monotonic() < until:
                time.sleep(0.01)  # sleep: polls for the cancellation
            with self.seen.open("a") as file:
                file.write(json.dumps({"cancelled": request.is_cancelled()}) + "\n")
            sender.send(flags=FINAL)
            return
        if "!fail" in words:
            before = words[: words.index("!fail")]
            for word in before:
                sender.send(response(request, word, count, 1, [word]))
            error = pb_utils.InferenceResponse(error=pb_utils.TritonError("the engine failed"))
            sender.send(error, flags=FINAL)
            return
        if "!three" in words:
            for word in words:
                sender.send(response(request, word, count, 1, [word]))
            sender.send(flags=FINAL)
            return
        if not value(request, "stream"):
            sender.send(response(request, prompt, count, count, words), flags=FINAL)
            return
        for index, word in enumerate(words):
            flags = FINAL if index == count - 1 else 0
            sender.send(response(request, word, count, 1, [word]), flags=flags)


def value(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)[0]


def response(request, text, count, generated, words):
    tensors = [pb_utils.Tensor("text_output", np.array([text.encode()], np.object_))]
    if value(request, "return_num_input_tokens"):
        tensors.append(pb_utils.Tensor("num_input_tokens", np.array([count], np.uint32)))
    if value(request, "return_num_output_tokens"):
        tensors.append(pb_utils.Tensor("num_output_tokens", np.array([generated], np.uint32)))
    if value(request, "return_logprobs"):
        places = [
            {
                str(index): {"logprob": -0.5, "rank": 1, "decoded_token": word},
                "99": {"logprob": -1.5, "rank": 2, "decoded_token": "x"},
            }
            for index, word in enumerate(words)
        ]
        text = json.dumps(places).encode()
        tensors.append(pb_utils.Tensor("logprobs", np.array([text], np.object_)))
    return pb_utils.InferenceResponse(tensors)
