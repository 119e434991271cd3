"""Inputs and outputs of the models, without numpy, which a model of text doesn't need."""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Optional

from galatea_worker import arrays
from galatea_worker.tensor import Tensor, from_bytes

from .sampling import Refusal

#: The inputs of a model that generates: name, type, dimensions, and the sampling parameter.
INPUTS = (
    ("text_input", "TYPE_STRING", 1), ("stream", "TYPE_BOOL", 1),
    ("sampling_parameters", "TYPE_STRING", 1), ("exclude_input_in_output", "TYPE_BOOL", 1),
    ("return_num_input_tokens", "TYPE_BOOL", 1), ("return_num_output_tokens", "TYPE_BOOL", 1),
    ("max_tokens", "TYPE_INT32", 1), ("temperature", "TYPE_FP32", 1), ("top_p", "TYPE_FP32", 1),
    ("top_k", "TYPE_INT32", 1), ("seed", "TYPE_INT64", 1), ("stop", "TYPE_STRING", -1),
    ("json_schema", "TYPE_STRING", 1), ("grammar", "TYPE_STRING", 1))
OUTPUTS = (
    ("text_output", "TYPE_STRING", 1), ("finish_reason", "TYPE_STRING", 1),
    ("num_input_tokens", "TYPE_UINT32", 1), ("num_output_tokens", "TYPE_UINT32", 1))
#: The same of a model that embeds.
EMBEDDING_INPUTS = (("text_input", "TYPE_STRING", 1),)
EMBEDDING_OUTPUTS = (("embedding", "TYPE_FP32", -1), ("num_input_tokens", "TYPE_UINT32", 1))

#: The inputs that are sampling parameters.
SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "json_schema",
            "grammar")

_FORMS = {arrays.BOOL: "?", arrays.INT32: "i", arrays.INT64: "q", arrays.FP32: "f"}
_pack_u32 = struct.Struct("<I").pack
_unpack_u32 = struct.Struct("<I").unpack_from
_ONE = (1,)


def read(requests_inputs: Any) -> Dict[str, Any]:
    """Returns the values of a request's inputs by name: a value, or a list for `stop`."""
    found: Dict[str, Any] = {}
    for tensor in requests_inputs:
        values = _values(tensor)
        name = tensor._name
        if name == "stop":
            found[name] = values
        elif len(values) == 1:
            found[name] = values[0]
        else:
            raise Refusal(f"input '{name}' has {len(values)} elements, but it must have one")
    return found


def _values(tensor: Tensor) -> List[Any]:
    block = tensor._block
    data = bytes(tensor._data if block is None else block.view())
    if tensor._dtype == arrays.BYTES:
        return _texts(tensor._name, data)
    form = _FORMS[tensor._dtype]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(form)}{form}", data))


def _texts(name: str, data: bytes) -> List[str]:
    texts, position = [], 0
    while position < len(data):
        begin = position + 4
        position = begin + _unpack_u32(data, position)[0]
        try:
            texts.append(str(data[begin:position], "utf-8"))
        except UnicodeDecodeError:
            raise Refusal(f"input '{name}' is not UTF-8") from None
    return texts


def text(name: str, value: str) -> Tensor:
    """Returns an output with one string."""
    data = value.encode("utf-8", "replace")
    return from_bytes(name, arrays.BYTES, _ONE, _pack_u32(len(data)) + data)


def count(name: str, value: int) -> Tensor:
    """Returns an output with one number."""
    return from_bytes(name, arrays.UINT32, _ONE, _pack_u32(max(min(value, 2**32 - 1), 0)))


def floats(name: str, values: List[float]) -> Tensor:
    """Returns an output with a list of numbers."""
    return from_bytes(name, arrays.FP32, (len(values),), struct.pack(f"<{len(values)}f", *values))


def declare(config: Any, inputs: Any, outputs: Any, required: Optional[str]) -> None:
    """Adds inputs and outputs to a configuration; refuses those that it has in addition."""
    known = {"input": inputs, "output": outputs}
    for part, declared in known.items():
        names = [name for name, _, _ in declared]
        for one in config._model_config.get(part) or ():
            if one["name"] not in names:
                raise ValueError(f"the configuration has the {part} '{one['name']}', which models "
                                 "of the backend llamacpp lack")
    for name, datatype, size in inputs:
        one = {"name": name, "data_type": datatype, "dims": [size]}
        if name != required:
            one["optional"] = True
        config.add_input(one)
    for name, datatype, size in outputs:
        config.add_output({"name": name, "data_type": datatype, "dims": [size]})
