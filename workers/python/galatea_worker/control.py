"""Non-inference requests to the server, about models and metrics."""

from __future__ import annotations

import base64
import itertools
import json
from queue import SimpleQueue
from struct import Struct
from typing import Any, Dict, Optional

from . import state
from .errors import TritonModelException, WireError
from .native import Parameter, anything, boolean, cast, native, text
from .numbers import B_CONTROL
from .wire import finish, get_text, put_text

_pack_head = Struct("<BQ").pack
_get_reply = Struct("<QB").unpack_from

_ids = itertools.count(1)
_waiting: Dict[int, SimpleQueue] = {}


class Refused(Exception):
    """The server answered with an error."""


def ask(kind: int, question: Dict[str, Any]) -> Dict[str, Any]:
    """Asks the server and waits; raises Refused with the server's text."""
    number = next(_ids)
    replies: SimpleQueue = SimpleQueue()
    body = _pack_head(kind, number) + put_text(json.dumps(question))
    _waiting[number] = replies
    try:
        state.side.send(body)
        ok, answer = replies.get()
    finally:
        _waiting.pop(number, None)
    if not ok:
        raise Refused(f"Failed to process the request for model '{state.instance_name}', "
                      f"message: {answer}")
    return answer


def encode_untold(kind: int, question: Dict[str, Any]) -> bytes:
    """Encodes a question that needs no answer."""
    return _pack_head(kind, 0) + put_text(json.dumps(question))


def take_reply(data: Any) -> None:
    """Handles a REPLY on B."""
    number, ok = _get_reply(data, 5)
    if ok:
        text, position = get_text(data, 14)
        answer = json.loads(text) if text else {}
        if not isinstance(answer, dict):
            raise WireError(f"reply {number} isn't an object")
    else:
        answer, position = get_text(data, 15)
    finish(data, position)
    replies = _waiting.get(number)
    # A question whose asker was interrupted is no longer awaited.
    if replies is not None:
        replies.put((ok, answer))


def _control(question: Dict[str, Any], prefix: str) -> Dict[str, Any]:
    try:
        return ask(B_CONTROL, question)
    except Refused as error:
        raise TritonModelException(f"{prefix}: {error}") from None


_NAME = Parameter("model_name", text)


@native("load_model(model_name: str, config: str = '', files: object = None) -> None",
        _NAME, Parameter("config", text, ""),
        Parameter("files", anything, None, may_be_none=True))
def load_model(model_name: str, config: str = "",
               files: Optional[Dict[str, bytes]] = None) -> None:
    """Loads or reloads a model.

    `config` is a configuration as JSON that replaces the repository's. `files` maps
    ``file:PATH`` to contents that replace the repository's files. Needs model
    control mode explicit.
    """
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file "
            "paths and file contents")
    contents = {}
    for path, content in (files or {}).items():
        path = cast(text, path)
        if not isinstance(content, bytes):
            raise TypeError(
                f"Object of type '{type(content).__name__}' is not an instance of 'bytes'")
        contents[path] = base64.b64encode(content).decode("ascii")
    question: Dict[str, Any] = {"op": "load_model", "name": model_name,
                                "files": contents, "parameters": {}}
    if config:
        question["parameters"]["config"] = config
    _control(question, "Failed to load model")


@native("unload_model(model_name: str, unload_dependents: bool = False) -> None",
        _NAME, Parameter("unload_dependents", boolean, False))
def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unloads a model, and optionally the models that only it needs."""
    _control({"op": "unload_model", "name": model_name,
              "unload_dependents": bool(unload_dependents)}, "Failed to unload model")


@native("is_model_ready(model_name: str, model_version: str = '') -> bool",
        _NAME, Parameter("model_version", text, ""))
def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """True if a model, or one version of it, is ready."""
    answer = _control({"op": "is_model_ready", "name": model_name,
                       "version": model_version}, "Failed to check model readiness")
    return bool(answer.get("ready"))
