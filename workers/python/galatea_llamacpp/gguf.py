"""The header of a GGUF file: what the model is, its chat template and its special tokens.

The file may be damaged or hostile, so each length is checked before it is used.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any, Dict, Optional, Tuple

from galatea_worker.errors import BackendError

#: The maximum lengths of a key, of a string, and of all keys, strings and names together.
_KEY_BYTES_MAX = 1 << 16
_TEXT_BYTES_MAX = 1 << 24
_TEXTS_BYTES_MAX = 1 << 25
#: The maximum number of strings in all arrays together. Each is a step, even if it is empty.
_ITEMS_MAX = 1 << 22
#: The maximum length of a chat template, which the server compiles.
_TEMPLATE_LENGTH_MAX = 1 << 20
_KEYS_MAX = 1 << 16
_TENSORS_MAX = 1 << 20
_DIMENSIONS_MAX = 4

#: Formats of the numeric types by their numbers.
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q",
            11: "<q", 12: "<d"}
_BOOLEAN, _TEXT, _ARRAY = 7, 8, 9
_TOKENS = "tokenizer.ggml.tokens"
#: Tokenizers of the kind `gpt2` that put the first token in front of a text by default.
_ADDS_FIRST = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2")


class _Damaged(Exception):
    """The file isn't a GGUF file, or it is damaged."""


class Header:
    """The metadata of a file."""

    def __init__(self, values: Dict[str, Any], tokens: Dict[int, str]) -> None:
        self._values = values
        self._tokens = tokens
        self.architecture = str(values.get("general.architecture") or "")

    def _own(self, key: str) -> Any:
        """Returns a value that belongs to the architecture."""
        return self._values.get(f"{self.architecture}.{key}")

    @property
    def context_length(self) -> int:
        """The context length that the model was trained with; 0 if the file doesn't state it."""
        length = self._own("context_length")
        return length if type(length) is int and length > 0 else 0

    @property
    def is_embedding(self) -> bool:
        """True if the model turns texts into embeddings instead of continuing them."""
        return bool(self._own("pooling_type"))

    def _token(self, name: str) -> str:
        number = self._values.get(f"tokenizer.ggml.{name}_token_id")
        return self._tokens.get(number, "") if type(number) is int else ""

    @property
    def first_token(self) -> str:
        """The token that llama.cpp puts in front of a text; empty if it adds none."""
        adds = self._values.get("tokenizer.ggml.add_bos_token")
        if adds is None:
            kind = self._values.get("tokenizer.ggml.model")
            adds = kind == "llama" or self._values.get("tokenizer.ggml.pre") in _ADDS_FIRST
        return self._token("bos") if adds else ""

    def tokenizer_config(self) -> Optional[Dict[str, Any]]:
        """Returns the chat template and its tokens in the form of `tokenizer_config.json`."""
        template = self._values.get("tokenizer.chat_template")
        tools = self._values.get("tokenizer.chat_template.tool_use")
        if not isinstance(template, str) or not template:
            return None
        tools = tools if isinstance(tools, str) else None
        if max(len(template), len(tools or "")) > _TEMPLATE_LENGTH_MAX:
            raise BackendError(f"the file's chat template is longer than {_TEMPLATE_LENGTH_MAX} "
                               "characters")
        named: Any = template
        if tools is not None:
            named = [{"name": "default", "template": template},
                     {"name": "tool_use", "template": tools}]
        config = {"chat_template": named}
        for name in ("bos", "eos", "unk"):
            token = self._token({"unk": "unknown"}.get(name, name))
            if token:
                config[f"{name}_token"] = token
        return config


class _Reader:
    """Reads values at a position that never leaves the file."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._size = len(data)
        self._items_left = _ITEMS_MAX
        self._text_bytes_left = _TEXTS_BYTES_MAX
        self.position = 0

    def take(self, count: int) -> int:
        """Returns the position of the next bytes, and skips them."""
        position = self.position
        if count > self._size - position:
            raise _Damaged("it ends in the middle of its header")
        self.position = position + count
        return position

    def number(self, form: str) -> Any:
        """Reads a number."""
        return struct.unpack_from(form, self._data, self.take(struct.calcsize(form)))[0]

    def text(self, bytes_max: int) -> str:
        """Reads a string; a longer one is an error."""
        length = self.number("<Q")
        if length > bytes_max:
            raise _Damaged(f"a string of its header has {length} bytes, and {bytes_max} are the "
                           "maximum")
        self._text_bytes_left -= length
        if self._text_bytes_left < 0:
            raise _Damaged(f"the strings of its header have more than {_TEXTS_BYTES_MAX} bytes")
        begin = self.take(length)
        return bytes(self._data[begin:begin + length]).decode("utf-8", "replace")

    def value(self, key: str, kind: int) -> Any:
        """Reads a value. Arrays are skipped; for the tokens, returns their position."""
        if kind in _NUMBERS:
            number = self.number(_NUMBERS[kind])
            return bool(number) if kind == _BOOLEAN else number
        if kind == _TEXT:
            return self.text(_TEXT_BYTES_MAX)
        if kind != _ARRAY:
            raise _Damaged(f"the key {key[:100]!r} has the unknown type {kind}")
        return self._array(key)

    def _array(self, key: str) -> Any:
        kind, count = self.number("<I"), self.number("<Q")
        begin = self.position
        if kind in _NUMBERS:
            self.take(struct.calcsize(_NUMBERS[kind]) * count)
            return None
        if kind != _TEXT:
            raise _Damaged(f"the key {key[:100]!r} is an array of the unknown type {kind}")
        self._items_left -= count
        if self._items_left < 0:
            raise _Damaged(f"the arrays of its header have more than {_ITEMS_MAX} strings")
        for _ in range(count):
            self.take(self.number("<Q"))
        return (begin, count) if key == _TOKENS else None

    def items(self, place: Tuple[int, int], wanted: Any) -> Dict[int, str]:
        """Returns the strings of an array that have the wanted numbers."""
        begin, count = place
        numbers = {one for one in wanted if type(one) is int and 0 <= one < count}
        found: Dict[int, str] = {}
        self.position = begin
        for index in range(max(numbers, default=-1) + 1):
            if index in numbers:
                found[index] = self.text(_KEY_BYTES_MAX)
            else:
                self.take(self.number("<Q"))
        return found

    def check_tensors(self, count: int) -> None:
        """Checks that the tensors' descriptions are in the file, and that their data begins there.

        llama.cpp checks everything else.
        """
        last = 0
        for _ in range(count):
            self.text(_KEY_BYTES_MAX)
            dimensions = self.number("<I")
            if dimensions > _DIMENSIONS_MAX:
                raise _Damaged(f"one of its tensors has {dimensions} dimensions")
            self.take(8 * dimensions + 4)
            last = max(last, self.number("<Q"))
        if count and last >= self._size - self.position:
            raise _Damaged("it ends before the data of its tensors")


def _read(data: Any) -> Header:
    reader = _Reader(data)
    if bytes(data[:4]) != b"GGUF":
        raise _Damaged("it isn't a GGUF file")
    reader.take(4)
    version = reader.number("<I")
    if version not in (2, 3):
        raise _Damaged(f"it has version {version} of the format, and 2 and 3 are supported")
    tensors, keys = reader.number("<Q"), reader.number("<Q")
    if tensors > _TENSORS_MAX or keys > _KEYS_MAX:
        raise _Damaged(f"its header has {tensors} tensors and {keys} keys")
    values: Dict[str, Any] = {}
    for _ in range(keys):
        key = reader.text(_KEY_BYTES_MAX)
        values[key] = reader.value(key, reader.number("<I"))
    reader.check_tensors(tensors)
    names = ("bos", "eos", "unknown")
    wanted = [values.get(f"tokenizer.ggml.{name}_token_id") for name in names]
    place = values.get(_TOKENS)
    tokens = reader.items(place, wanted) if isinstance(place, tuple) else {}
    return Header(values, tokens)


def read(path: str) -> Header:
    """Reads the header of a file.

    Raises BackendError if there is no such file, or if it is damaged.
    """
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise _Damaged("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(data)
    except OSError as error:
        raise BackendError(f"can't read '{path}': {error.strerror}") from None
    except _Damaged as error:
        raise BackendError(f"can't load '{path}': {error}") from None
