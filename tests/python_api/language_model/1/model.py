"""Produces words that depend on the prompt, the seed and the temperature, in the requested
number."""

import random

import numpy
import triton_python_backend_utils as pb_utils

WORDS = ("one", "two", "three", "four", "five", "six", "seven")


def value(request, name, default):
    """The only element of an input, or the default."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def response(text, prompt_tokens, tokens):
    """A piece of text with its token counts."""
    return pb_utils.InferenceResponse([
        pb_utils.Tensor("text_output", numpy.array([[text]], object)),
        pb_utils.Tensor("num_input_tokens", numpy.array([[prompt_tokens]], numpy.int32)),
        pb_utils.Tensor("num_output_tokens", numpy.array([[tokens]], numpy.int32)),
    ])


class TritonPythonModel:
    """Sends a response for each word on a stream, or one response for all words."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for one in self.responses(request):
                sender.send(one)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def responses(self, request):
        """The responses to a request."""
        prompt = value(request, "text_input", b"").decode()
        seed = (prompt, int(value(request, "seed", 0)), float(value(request, "temperature", 1)))
        drawn = random.Random(repr(seed))
        words = [f" {drawn.choice(WORDS)}" for _ in range(value(request, "max_tokens", 16))]
        prompt_tokens = len(prompt.split())
        if value(request, "stream", False):
            return [response(word, prompt_tokens, 1) for word in words]
        text = "".join(words)
        if not value(request, "exclude_input_in_output", True):
            text = prompt + text
        return [response(text, prompt_tokens, len(words))]
