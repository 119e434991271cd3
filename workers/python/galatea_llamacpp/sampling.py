"""The sampling parameters of a request, under the names of vLLM, OpenAI and llama.cpp.

llama.cpp ignores a parameter with a wrong type or name, so both are checked here.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List

#: The maximum length of a grammar or schema, and the depth of a schema, which llama.cpp converts
#: recursively.
_GUIDE_LENGTH_MAX = 1 << 18
_SCHEMA_DEPTH_MAX = 128
_STOP_MAX = 1024

#: Other names of llama.cpp's parameters.
_RENAMED = {"repetition_penalty": "repeat_penalty", "n_predict": "max_tokens",
            "max_completion_tokens": "max_tokens"}
_FLOATS = frozenset((
    "dry_base", "dry_multiplier", "dynatemp_exponent", "dynatemp_range", "frequency_penalty",
    "min_p", "mirostat_eta", "mirostat_tau", "presence_penalty", "repeat_penalty", "temperature",
    "top_n_sigma", "top_p", "typical_p", "xtc_probability", "xtc_threshold"))
_INTEGERS = frozenset((
    "dry_allowed_length", "dry_penalty_last_n", "max_tokens", "min_keep", "mirostat", "n_keep",
    "repeat_last_n", "seed", "t_max_predict_ms", "top_k"))
_BOOLEANS = frozenset(("cache_prompt", "ignore_eos"))
_TEXT_LISTS = frozenset(("dry_sequence_breakers", "preserved_tokens", "samplers", "stop"))
#: Parameters that may only have the value that means nothing.
_WITHOUT_EFFECT: Dict[str, Any] = {"n": 1, "best_of": 1, "min_tokens": 0, "logprobs": 0,
                                   "prompt_logprobs": 0, "lora_name": "", "detokenize": True}
_GUIDES = ("grammar", "json_schema", "structured_outputs")
#: The names that a request's own parameters may have, next to those for the server.
NAMES = frozenset((*_RENAMED, *_FLOATS, *_INTEGERS, *_BOOLEANS, *_TEXT_LISTS, *_GUIDES,
                   "logit_bias", *_WITHOUT_EFFECT))


class Refusal(Exception):
    """The reason why a request is refused."""


def from_json(text: str, name: str) -> Dict[str, Any]:
    """Reads an object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"'{name}' is no JSON object: {error}") from None
    if not isinstance(value, dict):
        raise Refusal(f"'{name}' is no JSON object")
    return value


def convert(given: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the parameters for llama.cpp."""
    converted: Dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in _WITHOUT_EFFECT:
            if value != _WITHOUT_EFFECT[name]:
                raise Refusal(f"the parameter '{name}' isn't supported by the backend llamacpp")
        elif name in _GUIDES:
            _add_guide(converted, name, value)
        else:
            known = _RENAMED.get(name, name)
            converted[known] = _checked(known, value)
    if "grammar" in converted and "json_schema" in converted:
        raise Refusal("a request has either a grammar or a JSON schema")
    return converted


def _checked(name: str, value: Any) -> Any:
    """Returns a value of the type that the parameter has."""
    kind: Callable[[Any], bool]
    if name in _FLOATS:
        kind, words = _is_number, "a number"
    elif name in _INTEGERS:
        kind, words = _is_integer, "an integer"
    elif name in _BOOLEANS:
        kind, words = _is_boolean, "true or false"
    elif name in _TEXT_LISTS:
        value = [value] if isinstance(value, str) else value
        kind, words = _is_text_list, f"a list of at most {_STOP_MAX} strings"
    elif name == "logit_bias":
        kind, words = _is_bias, "an object of numbers"
    else:
        raise Refusal(f"there is no parameter '{name[:100]}'")
    if not kind(value):
        raise Refusal(f"the parameter '{name}' must be {words}")
    if name == "seed":
        return value & 0xffff_ffff
    if name == "max_tokens":
        return max(min(value, 2**31 - 1), -1)
    return value


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value - value == 0.0)


def _is_integer(value: Any) -> bool:
    return type(value) is int and -1 << 63 <= value < 1 << 64


def _is_boolean(value: Any) -> bool:
    return type(value) is bool


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _STOP_MAX and all(
        isinstance(one, str) for one in value)


def _is_bias(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(one) for one in value.values())


def _add_guide(converted: Dict[str, Any], name: str, value: Any) -> None:
    """Adds what the text must match."""
    if name == "grammar":
        converted["grammar"] = _grammar(value)
    elif name == "json_schema":
        converted["json_schema"] = _schema(value)
    else:
        outputs = from_json(value, name) if isinstance(value, str) else value
        if not isinstance(outputs, dict):
            raise Refusal("the parameter 'structured_outputs' must be an object")
        for kind, guide in outputs.items():
            if guide is None:
                continue
            if kind == "json":
                converted["json_schema"] = _schema(guide)
            elif kind == "json_object" and type(guide) is bool:
                if guide:
                    converted["json_schema"] = {"type": "object"}
            elif kind == "grammar":
                converted["grammar"] = _grammar(guide)
            elif kind == "choice" and isinstance(guide, list) and guide and _is_text_list(guide):
                converted["grammar"] = "root ::= " + " | ".join(map(_quoted, guide))
            else:
                raise Refusal(f"the structured output '{str(kind)[:100]}' isn't supported by the "
                              "backend llamacpp")


def _quoted(text: str) -> str:
    """Returns a text as grammars write it."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _grammar(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _GUIDE_LENGTH_MAX:
        raise Refusal(f"a grammar must be a string of at most {_GUIDE_LENGTH_MAX} characters")
    return value


def _schema(value: Any) -> Dict[str, Any]:
    """Returns a JSON schema within the bounds."""
    if isinstance(value, str):
        if len(value) > _GUIDE_LENGTH_MAX:
            raise Refusal(f"a JSON schema has at most {_GUIDE_LENGTH_MAX} characters")
        value = from_json(value, "json_schema")
    if not isinstance(value, dict):
        raise Refusal("a JSON schema must be an object")
    level: List[Any] = [value]
    for _ in range(_SCHEMA_DEPTH_MAX):
        level = [child for one in level for child in _children(one)]
        if not level:
            return value
    raise Refusal(f"a JSON schema has at most {_SCHEMA_DEPTH_MAX} levels")


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
