"""Text in front of a model that generates tokens.

The model named by the parameter `decoder` takes token IDs and sends one token in each response. This
model tokenizes a prompt, calls the decoder, and sends the text of the tokens as they come. The
tokenizer is `tokenizer.json` in the model's directory, for the package `tokenizers`; without that
file, a token is a byte.
"""

import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# The number of texts that are generated at once; further ones wait.
STREAMS_MAX = 64
# What a decoder of a byte-level vocabulary returns for an incomplete character.
INCOMPLETE = "\ufffd"
# The most tokens of a character. More are no character but bytes that no text has.
CHARACTER_TOKENS_MAX = 4


class BytesAsTokens:
    """The tokenizer without a file."""

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


class FileTokenizer:
    """The tokenizer in a file."""

    def __init__(self, path):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(path))

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens):
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


class Text:
    """The text of a sequence's tokens, in pieces that may be sent."""

    def __init__(self, tokenizer, end_tokens, stop_words):
        self.tokenizer = tokenizer
        self.end_tokens = end_tokens
        self.stop_words = stop_words
        # The tokens of an incomplete character, which may consist of several.
        self.pending = []
        # Text that may turn out to be the beginning of a stop word.
        self.held = ""
        # The tokens since the last piece.
        self.tokens = 0
        self.is_stopped = False

    def add(self, token):
        """Adds a token, and returns the next piece; empty if more tokens are needed."""
        self.tokens += 1
        if token in self.end_tokens:
            return ""
        self.pending.append(token)
        piece = self.tokenizer.decode(self.pending)
        if piece.endswith(INCOMPLETE) and len(self.pending) < CHARACTER_TOKENS_MAX:
            return ""
        self.pending.clear()
        self.held += piece
        found = [self.held.find(word) for word in self.stop_words if word in self.held]
        if found:
            self.is_stopped = True
            return self.held[: min(found)]
        kept = max((overlap(self.held, word) for word in self.stop_words), default=0)
        piece, self.held = self.held[: len(self.held) - kept], self.held[len(self.held) - kept :]
        return piece

    def rest(self):
        """The piece after the last token."""
        return self.held + self.tokenizer.decode(self.pending)

    def count(self):
        """The number of tokens since the last call."""
        count, self.tokens = self.tokens, 0
        return count


def overlap(text, word):
    """The length of the longest end of the text that begins the word."""
    lengths = range(min(len(text), len(word)), 0, -1)
    return next((length for length in lengths if text.endswith(word[:length])), 0)


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        value = lambda name: parameters[name]["string_value"]  # noqa: E731
        self.decoder = value("decoder")
        self.prompt_tokens_max = int(value("prompt_tokens_max"))
        self.end_tokens = {int(token) for token in value("end_tokens").split(",")}
        path = pathlib.Path(args["model_repository"]) / "tokenizer.json"
        self.tokenizer = FileTokenizer(path) if path.exists() else BytesAsTokens()
        self.threads = ThreadPoolExecutor(STREAMS_MAX)

    def execute(self, requests):
        for request in requests:
            self.threads.submit(self.serve, request, request.get_response_sender())
        return None

    def finalize(self):
        self.threads.shutdown()

    def serve(self, request, sender):
        """Generates one text."""
        try:
            self.generate(request, sender)
        except Exception as error:
            if not sender.is_cancelled():
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        finally:
            sender.send(flags=FINAL)

    def generate(self, request, sender):
        text = first(request, "text_input", b"").decode()
        prompt = self.tokenizer.encode(text)
        if not 0 < len(prompt) <= self.prompt_tokens_max:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens; 1 to {self.prompt_tokens_max} are possible"
            )
        counted = first(request, "return_num_output_tokens", False)
        responses = pb_utils.InferenceRequest(
            model_name=self.decoder,
            requested_output_names=["TOKEN"],
            inputs=[
                pb_utils.Tensor("PROMPT", np.array([prompt], np.int64)),
                row("MAX_TOKENS", first(request, "max_tokens", 16), np.int32),
                row("TEMPERATURE", first(request, "temperature", 0.0), np.float32),
                row("TOP_P", first(request, "top_p", 1.0), np.float32),
                row("SEED", int(first(request, "seed", 0)) % 2**63, np.int64),
            ],
        ).exec(decoupled=True)
        stop_words = [word.decode() for word in every(request, "stop_words") if word]
        text = Text(self.tokenizer, self.end_tokens, stop_words)
        for response in responses:
            if response.has_error():
                raise RuntimeError(response.error().message())
            tensor = pb_utils.get_output_tensor_by_name(response, "TOKEN")
            if tensor is None:
                continue
            piece = text.add(int(tensor.as_numpy()[0, 0]))
            if piece:
                sender.send(self.response(piece, len(prompt), text.count() if counted else None))
            if text.is_stopped or sender.is_cancelled():
                responses.cancel()
                return
        rest = text.rest()
        if rest or text.tokens:
            sender.send(self.response(rest, len(prompt), text.count() if counted else None))

    def response(self, text, prompt_tokens, output_tokens):
        tensors = [pb_utils.Tensor("text_output", np.array([text.encode()], np.object_))]
        if output_tokens is not None:
            for name, count in (
                ("num_input_tokens", prompt_tokens),
                ("num_output_tokens", output_tokens),
            ):
                tensors.append(pb_utils.Tensor(name, np.array([count], np.uint32)))
        return pb_utils.InferenceResponse(tensors)


def first(request, name, default):
    """The first element of an input, or the default if the request has no such input."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def every(request, name):
    """All elements of an input."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return [] if tensor is None else tensor.as_numpy().reshape(-1)


def row(name, value, kind):
    """A tensor of one row with one element."""
    return pb_utils.Tensor(name, np.array([[value]], kind))
