"""A model in a GGUF file, which continues texts or turns them into embeddings."""

from __future__ import annotations

import json
import os
import threading
from queue import SimpleQueue
from typing import Any, Dict, List, Optional, Sequence

from galatea_worker import helpers, logger, state
from galatea_worker.errors import forget, format_exception
from galatea_worker.response import InferenceResponse, TritonError
from galatea_worker.sender import RESPONSE_COMPLETE_FINAL

from . import engine, gguf, settings, tensors
from .meters import Meters
from .replies import EmbeddingReply, TextReply
from .sampling import Refusal

_FILE = "model.gguf"
#: The parameters with which the endpoint for OpenAI's clients finds the inputs and outputs.
_OPENAI = {"openai_parameters_input": "sampling_parameters",
           "openai_finish_reason_output": "finish_reason",
           "openai_default_max_tokens": "-1"}
_OPENAI_EMBEDDING = {"openai_embedding_input": "text_input",
                     "openai_embedding_output": "embedding"}


class GgufModel:
    """A model, whose slots are the instances of its configuration."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Adds the inputs and outputs, and the chat template of the file."""
        engine.check()
        properties = config._model_config
        settings.check_config(properties)
        header = gguf.read(_path(properties))
        chosen = settings.Settings(properties, header)
        settings.slots(properties)
        config.set_max_batch_size(0)
        parameters = properties.setdefault("parameters", {})
        added: Dict[str, str] = {}
        if chosen.task == "embed":
            tensors.declare(config, tensors.EMBEDDING_INPUTS, tensors.EMBEDDING_OUTPUTS,
                            "text_input")
            added.update(_OPENAI_EMBEDDING)
        else:
            tensors.declare(config, tensors.INPUTS, tensors.OUTPUTS, "text_input")
            config.set_model_transaction_policy({"decoupled": True})
            added.update(_OPENAI)
            tokenizer = header.tokenizer_config()
            if tokenizer is not None:
                added["openai_tokenizer_config"] = json.dumps(tokenizer, ensure_ascii=False)
        for key, value in added.items():
            parameters.setdefault(key, {"string_value": value})
        return config

    def initialize(self, args: Dict[str, str]) -> None:
        """Loads the model."""
        properties = json.loads(args["model_config"])
        settings.check_config(properties)
        path = _path(properties)
        header = gguf.read(path)
        chosen = settings.Settings(properties, header)
        self._slots = settings.slots(properties)
        self._is_embedding = chosen.task == "embed"
        if state.decoupled is self._is_embedding:
            raise settings.BackendError(
                "model_transaction_policy: a model that embeds isn't decoupled" if state.decoupled
                else "model_transaction_policy: a model that generates must be decoupled")
        self._first_token = header.first_token
        self._engine = engine.Engine(path, chosen, self._slots)
        self._meters = Meters(args["model_name"], args["model_version"], self._slots)
        self._waiting: SimpleQueue[Any] = SimpleQueue()
        self._threads: List[threading.Thread] = []
        for number in range(self._slots):
            thread = threading.Thread(
                target=self._work, name=f"galatea slot {number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        logger.log_internal(logger.INFO, (
            f"llama.cpp serves {header.architecture[:64]!r} with {self._slots} slots of "
            f"{chosen.context} tokens and {chosen.threads} threads"))

    def execute(self, requests: Sequence[Any]) -> None:
        """Hands the requests to the slots' threads, which answer them."""
        for request in requests:
            self._waiting.put((request.get_response_sender(), request.inputs(),
                               request.parameters()))

    def _work(self) -> None:
        while True:
            item = self._waiting.get()
            if item is None:
                return
            self._serve(*item)
            del item

    def _serve(self, sender: Any, inputs: Any, parameters: str) -> None:
        """Answers a request; an error of any kind is its response."""
        kind = EmbeddingReply if self._is_embedding else TextReply
        reply: Any = kind(sender)
        self._meters.begin()
        try:
            reply.run(self._engine, tensors.read(inputs), parameters, self._first_token)
        except Refusal as refusal:
            _fail(sender, str(refusal), TritonError.INVALID_ARG)
        except BaseException as error:
            _fail(sender, format_exception(error), TritonError.INTERNAL)
            forget(error)
        finally:
            self._meters.end(reply.prompt_tokens, reply.cached_tokens, reply.generated_tokens)

    def finalize(self) -> None:
        """Ends the threads and llama.cpp."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._engine.close()


def _path(properties: Dict[str, Any]) -> str:
    """Returns the path of the model's file."""
    name: Optional[str] = properties.get("default_model_filename")
    return os.path.join(helpers.get_model_dir(), name or _FILE)


def _fail(sender: Any, message: str, code: Any) -> None:
    """Ends a request with an error, unless it has already ended."""
    try:
        sender.send(InferenceResponse(error=TritonError(message, code)), RESPONSE_COMPLETE_FINAL)
    except Exception as error:
        logger.log_internal(logger.ERROR, format_exception(error))
