"""The responses to one request."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from galatea_worker.errors import format_exception
from galatea_worker.response import InferenceResponse, TritonError, response_with
from galatea_worker.sender import RESPONSE_COMPLETE_FINAL

from . import sampling, tensors
from .sampling import Refusal

#: Codes of errors by llama.cpp's numbers; all others are INTERNAL.
_CODES = {400: TritonError.INVALID_ARG, 404: TritonError.NOT_FOUND, 501: TritonError.UNSUPPORTED,
          503: TritonError.UNAVAILABLE}


class TextReply:
    """A text: a response for each part of it, or one with all of it."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._is_stream = self._wants_prompt_count = self._wants_count = False
        self._parts: List[str] = []
        self._reason = ""
        self._error: Any = None
        self._is_cancelled = False
        #: The tokens that responses have stated.
        self._stated = 0
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0

    def run(self, engine: Any, inputs: Dict[str, Any], parameters: str, first_token: str) -> None:
        """Generates the text and sends it."""
        prompt = inputs.get("text_input")
        if not isinstance(prompt, str):
            raise Refusal("the input 'text_input' is missing")
        self._is_stream = inputs.get("stream", False)
        self._wants_prompt_count = inputs.get("return_num_input_tokens", False)
        self._wants_count = inputs.get("return_num_output_tokens", False)
        if not inputs.get("exclude_input_in_output", True):
            self._parts.append(prompt)
        # llama.cpp adds the first token, which templates write too.
        if first_token and prompt.startswith(first_token):
            prompt = prompt[len(first_token):]
        body = sampling.convert(_given(inputs, parameters), engine.context)
        body.update(prompt=prompt, stream=True, return_progress=True,
                    stream_options={"include_usage": True})
        if self._sender.is_cancelled():
            self._is_cancelled = True
        else:
            engine.complete(body, self._take)
        self._end()

    def _take(self, event: bytes) -> bool:
        """Handles an event of llama.cpp, which ignores exceptions. Returns true to end the text."""
        if self._sender.is_cancelled():
            self._is_cancelled = True
            return True
        try:
            return self._handle(event)
        except Exception as error:
            self._error = format_exception(error)
            return True

    def _handle(self, event: bytes) -> bool:
        document = json.loads(event)
        choices = document.get("choices")
        if not choices:
            return self._take_facts(document)
        [choice] = choices
        reason = choice.get("finish_reason")
        if reason is not None:
            self._reason = reason
            self._parts.append(choice.get("text") or "")
            return self._take_facts(document)
        text = choice.get("text")
        if not text:
            return self._take_facts(document)
        self.generated_tokens += 1
        self._parts.append(text)
        if self._is_stream:
            self._send(0)
        return False

    def _take_facts(self, document: Dict[str, Any]) -> bool:
        """Reads numbers of tokens, or an error."""
        error = document.get("error")
        if error is not None:
            self._error = error
            return True
        progress, usage = document.get("prompt_progress"), document.get("usage")
        if progress:
            self.prompt_tokens, self.cached_tokens = progress["total"], progress["cache"]
        if usage:
            self.prompt_tokens = usage["prompt_tokens"]
            self.generated_tokens = usage["completion_tokens"]
        return False

    def _send(self, flags: int) -> None:
        """Sends the text since the last response."""
        outputs = [tensors.text("text_output", "".join(self._parts))]
        self._parts.clear()
        if flags:
            outputs.append(tensors.text("finish_reason", self._reason))
        if self._wants_prompt_count:
            outputs.append(tensors.count("num_input_tokens", self.prompt_tokens))
        if self._wants_count:
            new, self._stated = self.generated_tokens - self._stated, self.generated_tokens
            outputs.append(tensors.count("num_output_tokens", new))
        self._sender.send(response_with(outputs), flags)

    def _end(self) -> None:
        error = self._error
        if self._is_cancelled:
            error = TritonError("the request was cancelled", TritonError.CANCELLED)
        elif error is not None:
            code = error.get("code") if isinstance(error, dict) else None
            message = error.get("message") if isinstance(error, dict) else error
            error = TritonError(str(message), _CODES.get(code, TritonError.INTERNAL))
        if error is None:
            self._send(RESPONSE_COMPLETE_FINAL)
        else:
            self._sender.send(InferenceResponse(error=error), RESPONSE_COMPLETE_FINAL)


class EmbeddingReply:
    """An embedding."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0

    def run(self, engine: Any, inputs: Dict[str, Any], parameters: str, first_token: str) -> None:
        """Computes the embedding and sends it."""
        del parameters, first_token
        text = inputs.get("text_input")
        if not isinstance(text, str):
            raise Refusal("the input 'text_input' is missing")
        response = engine.embed(text)
        error = response.get("error")
        if error is not None:
            message, code = str(error.get("message")), error.get("code")
            failure = TritonError(message, _CODES.get(code, TritonError.INTERNAL))
            self._sender.send(InferenceResponse(error=failure), RESPONSE_COMPLETE_FINAL)
            return
        self.prompt_tokens = response["usage"]["prompt_tokens"]
        [one] = response["data"]
        outputs = [tensors.floats("embedding", one["embedding"]),
                   tensors.count("num_input_tokens", self.prompt_tokens)]
        self._sender.send(response_with(outputs), RESPONSE_COMPLETE_FINAL)


def _given(inputs: Dict[str, Any], parameters: str) -> Dict[str, Any]:
    """Returns the sampling parameters. Single inputs win over those in JSON."""
    own = json.loads(parameters) if parameters not in ("", "{}") else {}
    given = {name: value for name, value in own.items() if name in sampling.NAMES}
    text = inputs.get("sampling_parameters")
    if text:
        given.update(sampling.from_json(text, "sampling_parameters"))
    given.update((name, inputs[name]) for name in tensors.SAMPLING if name in inputs)
    return given
