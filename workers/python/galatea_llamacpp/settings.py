"""The settings of a model: its configuration and its parameters, checked."""

from __future__ import annotations

import difflib
from typing import Any, Dict, Optional

from galatea_worker.errors import BackendError

from . import processors
from .gguf import Header

#: The context of a slot if the configuration doesn't set it.
_CONTEXT_DEFAULT = 4096
_NUMBER_MAX = 2**31 - 1
#: The number of slots, which are the model's instances.
_SLOTS_MAX = 256

#: Parameters without a meaning for a model that embeds, which takes each prompt in one step.
_TEXT_ONLY = ("n_batch", "n_ubatch", "max_tokens")
#: Parameters that are numbers, with their smallest values.
_NUMBERS = {"n_ctx": 0, "n_batch": 1, "n_ubatch": 1, "threads": 1, "threads_batch": 1,
            "max_tokens": -1, "cache_ram_mib": -1, "n_gpu_layers": -1}
_BOOLEANS = ("cache_prompt",)
_CHOICES = {"flash_attn": ("auto", "on", "off"),
            "load_mode": ("auto", "none", "mmap", "mlock", "mmap_mlock", "direct_io"),
            "pooling": ("mean", "cls", "last"), "task": ("generate", "embed")}
NAMES = (*_NUMBERS, *_BOOLEANS, *_CHOICES)
_TRUE, _FALSE = ("true", "1", "on"), ("false", "0", "off")


class Settings:
    """The checked parameters of a model."""

    def __init__(self, config: Dict[str, Any], header: Header) -> None:
        parameters = config.get("parameters") or {}
        self._values = {key: value.get("string_value", "") for key, value in parameters.items()}
        _check_names(self._values)
        for name in (*_BOOLEANS, *_CHOICES):
            self._word(name)
        self.task = self._word("task") or ("embed" if header.is_embedding else "generate")
        self.pooling = self._word("pooling")
        if self.pooling is not None and self.task != "embed":
            raise BackendError("parameter 'pooling' needs the parameter 'task' to be 'embed'")
        if self.task == "embed":
            self._refuse_text_parameters()
        self.flash_attn = self._word("flash_attn") or "auto"
        trained = header.context_length
        context = self._number("n_ctx")
        if context is None:
            context = min(trained or _CONTEXT_DEFAULT, _CONTEXT_DEFAULT)
        if context == 0 and trained == 0:
            raise BackendError("parameter 'n_ctx' is 0, but the file doesn't state a length")
        #: The number of tokens in a prompt and its text.
        self.context = context or trained
        self._check_slots(slots(config))
        self.threads = self._number("threads") or processors.threads()
        self.threads_batch = self._number("threads_batch") or self.threads
        # A client that leaves is noticed after each batch of its prompt.
        self.batch = self._number("n_batch") or 512
        self.micro_batch = self._number("n_ubatch") or min(self.batch, 512)
        if self.task == "embed":
            self.batch = self.micro_batch = self.context
        tokens = self._number("max_tokens")
        self.tokens_max = -1 if tokens is None else tokens
        self.cache_ram_mib = self._number("cache_ram_mib") or 0
        self.gpu_layers = self._number("n_gpu_layers")
        self.cache_prompt = self._flag("cache_prompt", True)
        self.load_mode = self._word("load_mode") or "auto"

    def _refuse_text_parameters(self) -> None:
        for name in _TEXT_ONLY:
            if name in self._values:
                raise BackendError(f"parameter '{name}' has no meaning for a model that embeds")

    def _check_slots(self, count: int) -> None:
        """Refuses more tokens than llama.cpp can count."""
        if self.context * count > _NUMBER_MAX:
            raise BackendError(f"parameter 'n_ctx' gives each of {count} slots {self.context} "
                               f"tokens, but all slots together have at most {_NUMBER_MAX}")

    def _number(self, name: str) -> Optional[int]:
        text, least = self._values.get(name), _NUMBERS[name]
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= _NUMBER_MAX:
            raise BackendError(f"parameter '{name}' is '{text}', but it is a number from {least}")
        return number

    def _word(self, name: str) -> Optional[str]:
        text = self._values.get(name)
        known = _CHOICES.get(name) or (*_TRUE, *_FALSE)
        if text is not None and text not in known:
            listed = ", ".join(f"'{one}'" for one in known)
            raise BackendError(f"parameter '{name}' is '{text}', but it is one of {listed}")
        return text

    def _flag(self, name: str, default: bool) -> bool:
        text = self._word(name)
        return default if text is None else text in _TRUE


def _check_names(values: Dict[str, str]) -> None:
    """Refuses a misspelled parameter. Others may be meant for the server."""
    for name in values:
        near = difflib.get_close_matches(name, NAMES, 1, 0.8)
        if name not in NAMES and near:
            raise BackendError(f"there is no parameter '{name}': did you mean '{near[0]}'?")


def check_config(config: Dict[str, Any]) -> None:
    """Refuses settings that the backend doesn't support."""
    if config.get("max_batch_size"):
        raise BackendError("max_batch_size must be 0: the slots of llama.cpp form the batches")
    for name in ("sequence_batching", "ensemble_scheduling", "batch_input", "batch_output"):
        if config.get(name):
            raise BackendError(f"{name} isn't supported by the backend llamacpp")
    if (config.get("response_cache") or {}).get("enable"):
        raise BackendError("response_cache isn't supported by the backend llamacpp")
    for one in config.get("input") or ():
        if one.get("allow_ragged_batch"):
            raise BackendError(f"input '{one.get('name')}': allow_ragged_batch isn't supported")
    for group in config.get("instance_group") or ():
        if group.get("kind") == "KIND_GPU":
            raise BackendError("instance_group: KIND_GPU isn't supported, because the instances are "
                               "slots of one process: the parameter 'n_gpu_layers' selects GPUs")


def slots(config: Dict[str, Any]) -> int:
    """Returns the number of requests that are generated at once."""
    groups = config.get("instance_group") or ()
    count = sum(max(int(group.get("count") or 0), 1) for group in groups) or 1
    if count > _SLOTS_MAX:
        raise BackendError(f"instance_group: {count} instances are more than {_SLOTS_MAX} slots")
    return count
