"""The sampling parameters of a request, under the names of vLLM, OpenAI and llama.cpp.

llama.cpp ignores a parameter with a wrong type or name, so both are checked here.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Optional, Tuple

#: The maximum length of a grammar, schema or list of choices, and the depth of a schema, which
#: llama.cpp converts recursively.
_GUIDE_LENGTH_MAX = 1 << 18
_SCHEMA_DEPTH_MAX = 128
_STOP_MAX = 1024
_INT32_MAX = 2**31 - 1

#: Other names of llama.cpp's parameters.
_RENAMED = {"repetition_penalty": "repeat_penalty", "n_predict": "max_tokens",
            "max_completion_tokens": "max_tokens"}
_FLOATS = frozenset((
    "dry_base", "dry_multiplier", "dynatemp_exponent", "dynatemp_range", "frequency_penalty",
    "min_p", "mirostat_eta", "mirostat_tau", "presence_penalty", "repeat_penalty", "temperature",
    "top_n_sigma", "top_p", "typical_p", "xtc_probability", "xtc_threshold"))
#: The smallest and the largest value of each integer. `None` stands for the slot's context:
#: llama.cpp allocates memory for that many tokens.
_INTEGERS: Dict[str, Tuple[int, Optional[int]]] = {
    "dry_allowed_length": (0, _INT32_MAX), "dry_penalty_last_n": (-1, None),
    "max_tokens": (-1, 2**64 - 1), "min_keep": (0, _INT32_MAX), "mirostat": (0, 2),
    "n_keep": (-1, _INT32_MAX), "repeat_last_n": (-1, None), "seed": (-2**63, 2**64 - 1),
    "t_max_predict_ms": (-1, _INT32_MAX), "top_k": (-1, _INT32_MAX)}
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


def convert(given: Dict[str, Any], context: int) -> Dict[str, Any]:
    """Returns the parameters for llama.cpp, whose slots have this context."""
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
            converted[known] = _checked(known, value, context)
    if "grammar" in converted and "json_schema" in converted:
        raise Refusal("a request has either a grammar or a JSON schema")
    return converted


def _checked(name: str, value: Any, context: int) -> Any:
    """Returns a value of the type that the parameter has."""
    if name in _INTEGERS:
        return _integer(name, value, context)
    kind: Callable[[Any], bool]
    if name in _FLOATS:
        kind, words = _is_number, "a number"
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
    return value


def _integer(name: str, value: Any, context: int) -> int:
    """Returns an integer within the parameter's limits, as llama.cpp reads it."""
    least, limit = _INTEGERS[name]
    most = context if limit is None else limit
    if type(value) is not int or not least <= value <= most:
        raise Refusal(f"the parameter '{name}' must be an integer from {least} to {most}")
    if name == "seed":
        return value & 0xffff_ffff
    if limit is None and value == -1:
        # The number has the same meaning in older releases of llama.cpp; newer ones refuse it.
        return context
    return min(value, _INT32_MAX)


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return -2**63 <= value < 2**64
    return type(value) is float and value - value == 0.0


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
                converted["grammar"] = _choice(guide)
            else:
                raise Refusal(f"the structured output '{str(kind)[:100]}' isn't supported by the "
                              "backend llamacpp")


def _choice(texts: List[str]) -> str:
    """Returns a grammar that matches each of the texts."""
    grammar = "root ::= " + " | ".join(map(_quoted, texts))
    if len(grammar) > _GUIDE_LENGTH_MAX:
        raise Refusal("the texts of the structured output 'choice' must have at most "
                      f"{_GUIDE_LENGTH_MAX} characters together")
    return grammar


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
    text = value if isinstance(value, str) else None
    if text is not None:
        _check_length(text)
        value = from_json(text, "json_schema")
    if not isinstance(value, dict):
        raise Refusal("a JSON schema must be an object")
    level: List[Any] = [value]
    for _ in range(_SCHEMA_DEPTH_MAX):
        level = [child for one in level for child in _children(one)]
        if not level:
            break
    else:
        raise Refusal(f"a JSON schema has at most {_SCHEMA_DEPTH_MAX} levels")
    if text is None:
        _check_length(json.dumps(value, ensure_ascii=False))
    return value


def _check_length(schema: str) -> None:
    if len(schema) > _GUIDE_LENGTH_MAX:
        raise Refusal(f"a JSON schema has at most {_GUIDE_LENGTH_MAX} characters")


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
