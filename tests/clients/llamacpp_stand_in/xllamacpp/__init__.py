"""A stand-in for the package `xllamacpp`, with what Galatea's backend for GGUF files uses.

A "model" answers a prompt with the prompt's own words, in turn. Some words do more:

- `endless` makes the text endless,
- `die` kills the process,
- `crowded` fails if more requests are generated at once than there are slots.

`GALATEA_TEST_LLAMACPP` names a file, to which each call is appended.
"""

from __future__ import annotations

import enum
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

#: The time of a token.
TOKEN_SECONDS = 0.001


class llama_flash_attn_type(enum.IntEnum):  # noqa: N801  the package's own name
    LLAMA_FLASH_ATTN_TYPE_AUTO = -1
    LLAMA_FLASH_ATTN_TYPE_DISABLED = 0
    LLAMA_FLASH_ATTN_TYPE_ENABLED = 1


class llama_pooling_type(enum.IntEnum):  # noqa: N801
    LLAMA_POOLING_TYPE_NONE = 0
    LLAMA_POOLING_TYPE_MEAN = 1
    LLAMA_POOLING_TYPE_CLS = 2
    LLAMA_POOLING_TYPE_LAST = 3


class llama_load_mode(enum.IntEnum):  # noqa: N801
    LLAMA_LOAD_MODE_AUTO = -1
    LLAMA_LOAD_MODE_NONE = 0
    LLAMA_LOAD_MODE_MMAP = 1
    LLAMA_LOAD_MODE_MLOCK = 2
    LLAMA_LOAD_MODE_MMAP_MLOCK = 3
    LLAMA_LOAD_MODE_DIRECT_IO = 4


class CpuParams:
    __slots__ = ("n_threads", "poll")


class CommonParamsModel:
    __slots__ = ("path",)


class CommonParams:
    """The parameters that the backend sets; others are an error, as in the package."""

    __slots__ = (
        "cache_prompt",
        "cache_ram_mib",
        "cpuparams",
        "cpuparams_batch",
        "embedding",
        "endpoint_slots",
        "fit_params",
        "flash_attn_type",
        "hostnames",
        "kv_unified",
        "load_mode",
        "model",
        "n_batch",
        "n_ctx",
        "n_gpu_layers",
        "n_parallel",
        "n_predict",
        "n_threads_http",
        "n_ubatch",
        "pooling_type",
        "ui",
        "verbosity",
    )

    def __init__(self) -> None:
        self.model = CommonParamsModel()
        self.cpuparams, self.cpuparams_batch = CpuParams(), CpuParams()
        self.embedding = False
        self.flash_attn_type = llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_AUTO

    def shown(self) -> dict[str, Any]:
        """The parameters that are set."""
        names = (name for name in self.__slots__ if hasattr(self, name))
        shown = {name: getattr(self, name) for name in names}
        own = ("model", "cpuparams", "cpuparams_batch", "hostnames")
        shown["n_threads"] = self.cpuparams.n_threads
        return {name: value for name, value in shown.items() if name not in own}


class Server:
    """The engine."""

    def __init__(self, params: CommonParams) -> None:
        content = open(params.model.path, "rb").read()  # noqa: SIM115
        if b"die when loaded" in content:
            os.kill(os.getpid(), signal.SIGSEGV)
        if b"unknown to llama.cpp" in content:
            os.write(2, b"error loading model: unknown model architecture\n")
            raise RuntimeError("Failed to init server, please check the input params.")
        self._params = params
        self._lock = threading.Lock()
        self._busy = 0
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _note({"loaded": params.shown()})

    def handle_completions(self, prompt: bytes, callback: Callable[[bytes], Any]) -> None:
        """Generates a text."""
        body = json.loads(prompt)
        with self._lock:
            self._busy += 1
            busy = self._busy
        try:
            end = self._generate(body, callback, busy)
            _note({"body": body, "end": end})
        finally:
            with self._lock:
                self._busy -= 1

    def _generate(self, body: dict[str, Any], callback: Callable[[bytes], Any], busy: int) -> str:
        words = body["prompt"].split()
        if len(words) > self._params.n_ctx // self._params.n_parallel:
            return _refuse(callback, "the request exceeds the available context size")
        if "die" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        if "crowded" in words and busy > self._params.n_parallel:
            return _refuse(callback, f"{busy} requests are generated at once")
        if "grammar" in body and "root" not in body["grammar"]:
            return _refuse(callback, "Failed to parse grammar")
        progress = {"total": len(words), "cache": 0, "processed": len(words)}
        _event(callback, text="", prompt_progress=progress)
        limit = body.get("max_tokens", -1)
        if limit < 0:
            limit = sys.maxsize if "endless" in words else len(words)
        number = 0
        while number < limit:
            time.sleep(TOKEN_SECONDS)  # sleep: the time that a token takes
            word = words[number % len(words)]
            if word in body.get("stop", ()):
                break
            number += 1
            if _event(callback, text=f" {word}"):
                return "stopped"
        reason = "length" if number == body.get("max_tokens") else "stop"
        usage = {"prompt_tokens": len(words), "completion_tokens": number}
        _event(callback, text="", reason=reason, usage=usage)
        return reason

    def handle_embeddings(self, prompt: bytes) -> bytes:
        """Embeds a text: the lengths of its words."""
        words = json.loads(prompt)["input"].split()
        if not words:
            return json.dumps({"error": {"code": 400, "message": "an empty text"}}).encode()
        data = [{"embedding": [float(len(word)) for word in words]}]
        return json.dumps({"data": data, "usage": {"prompt_tokens": len(words)}}).encode()


def _event(
    callback: Callable[[bytes], Any], text: str, reason: str | None = None, **more: Any
) -> bool:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}
    document = {"choices": [choice], "object": "text_completion", **more}
    return bool(callback(json.dumps(document).encode()))


def _refuse(callback: Callable[[bytes], Any], message: str) -> str:
    error = {"code": 400, "message": message, "type": "invalid_request_error"}
    callback(json.dumps({"error": error}).encode())
    return "refused"


def _note(event: dict[str, Any]) -> None:
    path = os.environ.get("GALATEA_TEST_LLAMACPP")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
