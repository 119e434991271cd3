"""Writes one inference request as bytes, for a load generator that doesn't know tensors."""

from __future__ import annotations

import dataclasses
import json
import math
import struct

ELEMENTS = 16
FLOAT_BYTES = 4
LENGTH_DELIMITED = 2


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input tensor."""

    name: str
    datatype: str
    data: bytes
    shape: tuple[int, ...] = (1, ELEMENTS)


IMAGE = (1, 3, 224, 224)
FEATURES = (1, 256)
INPUTS = {
    "cached_identity": (Tensor("INPUT0", "FP32", struct.pack("<16f", *range(ELEMENTS))),),
    "convnet": (Tensor("image", "FP32", bytes(FLOAT_BYTES * math.prod(IMAGE)), IMAGE),),
    "hosted_identity": (Tensor("INPUT0", "FP32", struct.pack("<16f", *range(ELEMENTS))),),
    "identity": (Tensor("INPUT0", "FP32", struct.pack("<16f", *range(ELEMENTS))),),
    "mlp": (Tensor("input", "FP32", bytes(FLOAT_BYTES * math.prod(FEATURES)), FEATURES),),
    "onnx_identity_fp32": (Tensor("INPUT0", "FP32", struct.pack("<16f", *range(ELEMENTS))),),
    "python_async": (Tensor("INPUT0", "FP32", struct.pack("<16f", *range(ELEMENTS))),),
    "python_decoupled": (Tensor("INPUT0", "FP32", struct.pack("<16f", *range(ELEMENTS))),),
    "python_identity": (Tensor("INPUT0", "FP32", struct.pack("<16f", *range(ELEMENTS))),),
    "sequence_identity": (Tensor("INPUT0", "FP32", struct.pack("<16f", *range(ELEMENTS))),),
    "three_steps": (Tensor("IN", "FP32", struct.pack("<16f", *range(ELEMENTS))),),
    "simple": (
        Tensor("INPUT0", "INT32", struct.pack("<16i", *range(ELEMENTS))),
        Tensor("INPUT1", "INT32", struct.pack("<16i", *range(ELEMENTS))),
    ),
}
OUTPUTS = {
    "cached_identity": ("OUTPUT0",),
    "convnet": ("logits",),
    "hosted_identity": ("OUTPUT0",),
    "identity": ("OUTPUT0",),
    "mlp": ("logits",),
    "onnx_identity_fp32": ("OUTPUT0",),
    "python_async": ("OUTPUT0",),
    "python_decoupled": ("OUTPUT0",),
    "python_identity": ("OUTPUT0",),
    "sequence_identity": ("OUTPUT0",),
    "three_steps": ("OUT",),
    "simple": ("OUTPUT0", "OUTPUT1"),
}
#: Parameters of requests: that of a model with sequences is one from start to end.
PARAMETERS: dict[str, dict[str, int | bool]] = {
    "sequence_identity": {"sequence_id": 1, "sequence_start": True, "sequence_end": True},
}


def http_body(model: str, identifier: str = "") -> tuple[bytes, int]:
    """Returns a body with binary tensors, and the length of its JSON part."""
    inputs = INPUTS[model]
    header: dict[str, object] = {"id": identifier} if identifier else {}
    if model in PARAMETERS:
        header["parameters"] = PARAMETERS[model]
    header |= {
        "inputs": [
            {
                "name": each.name,
                "shape": each.shape,
                "datatype": each.datatype,
                "parameters": {"binary_data_size": len(each.data)},
            }
            for each in inputs
        ],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in OUTPUTS[model]],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b"".join(each.data for each in inputs), len(text)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | LENGTH_DELIMITED) + _varint(len(content)) + content


def grpc_body(model: str) -> bytes:
    """Returns a gRPC frame with a ModelInferRequest of the KServe protocol.

    Fields: 1 is the model's name, 4 a parameter (1 name, 2 value: 1 bool, 2 int64), 5 an
    input (1 name, 2 datatype, 3 shape), 7 the raw content of an input.
    """
    message = _field(1, model.encode())
    for name, value in PARAMETERS.get(model, {}).items():
        kind = 1 if isinstance(value, bool) else 2
        content = _varint(kind << 3) + _varint(int(value))
        message += _field(4, _field(1, name.encode()) + _field(2, content))
    for each in INPUTS[model]:
        shape = b"".join(_varint(dim) for dim in each.shape)
        described = _field(1, each.name.encode()) + _field(2, each.datatype.encode())
        message += _field(5, described + _field(3, shape))
    for each in INPUTS[model]:
        message += _field(7, each.data)
    return struct.pack(">BI", 0, len(message)) + message
