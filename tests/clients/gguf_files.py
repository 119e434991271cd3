"""GGUF files for tests: a header with metadata, without tensors unless a test adds some."""

from __future__ import annotations

import pathlib
import struct
from typing import Any

UINT32, BOOL, STRING, ARRAY = 4, 7, 8, 9
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
METADATA: dict[str, Any] = {
    "general.architecture": "words",
    "words.context_length": 100_000,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [f"t{number}" for number in range(100)] + ["<s>", "</s>"],
    "tokenizer.ggml.bos_token_id": 100,
    "tokenizer.ggml.eos_token_id": 101,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": TEMPLATE,
}


def text(value: str) -> bytes:
    """A string."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(given: Any) -> bytes:
    """A value with its type."""
    if isinstance(given, bool):
        return struct.pack("<I?", BOOL, given)
    if isinstance(given, int):
        return struct.pack("<II", UINT32, given)
    if isinstance(given, str):
        return struct.pack("<I", STRING) + text(given)
    items = b"".join(map(text, given))
    return struct.pack("<IIQ", ARRAY, STRING, len(given)) + items


def content(metadata: dict[str, Any] | None = None, tensors: int = 0, **more: Any) -> bytes:
    """A file's content. Metadata of `None` are left out; underscores stand for dots."""
    given = {**METADATA, **(metadata or {}), **{k.replace("__", "."): v for k, v in more.items()}}
    given = {key: one for key, one in given.items() if one is not None}
    head = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(given))
    return head + b"".join(text(key) + value(one) for key, one in given.items())


def write(
    repository: pathlib.Path, name: str, config: str | None, data: bytes | None = None
) -> pathlib.Path:
    """Writes a model to a repository."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    if config is not None:
        (version.parent / "config.pbtxt").write_text(config)
    path = version / "model.gguf"
    path.write_bytes(content() if data is None else data)
    return path
