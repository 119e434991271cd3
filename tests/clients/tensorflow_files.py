"""TensorFlow's files of a tiny model, written without TensorFlow: y = relu(x), x of shape [-1, 3]."""

from __future__ import annotations

import pathlib

FLOAT = 1
#: A size that is variable, as a 64-bit two's complement.
VARIABLE = (1 << 64) - 1


def varint(number: int) -> bytes:
    """A number as protocol buffers write it."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def field(number: int, value: int | str | bytes) -> bytes:
    """A field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def entry(number: int, key: str, value: bytes) -> bytes:
    """An entry of a map."""
    return field(number, field(1, key) + field(2, value))


SHAPE = field(2, field(1, VARIABLE)) + field(2, field(1, 3))


def node(name: str, operation: str, inputs: tuple[str, ...], **attributes: bytes) -> bytes:
    """A node of a graph."""
    content = field(1, name) + field(2, operation)
    content += b"".join(field(3, one) for one in inputs)
    return field(1, content + b"".join(entry(5, key, one) for key, one in attributes.items()))


def graph() -> bytes:
    """The graph alone."""
    placeholder = node("x", "Placeholder", (), dtype=field(6, FLOAT), shape=field(7, SHAPE))
    return placeholder + node("y", "Relu", ("x",), T=field(6, FLOAT)) + field(4, field(1, 1205))


def frozen_relu(path: pathlib.Path) -> None:
    """Writes a frozen graph."""
    path.write_bytes(graph())


def saved_model_relu(folder: pathlib.Path) -> None:
    """Writes a SavedModel."""
    folder.mkdir()

    def tensor(name: str) -> bytes:
        return field(1, f"{name}:0") + field(2, FLOAT) + field(3, SHAPE)

    signature = entry(1, "x", tensor("x")) + entry(2, "y", tensor("y"))
    signature += field(3, "tensorflow/serving/predict")
    about = field(4, "serve") + field(5, "2.21.0")
    content = field(1, about) + field(2, graph()) + entry(5, "serving_default", signature)
    (folder / "saved_model.pb").write_bytes(field(1, 1) + field(2, content))
