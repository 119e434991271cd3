"""Files of a tiny model in TensorFlow's formats, which computes y = relu(x). They are written
without TensorFlow.

The shape of x is [-1, 3].
"""

from __future__ import annotations

import pathlib
import struct
from typing import Any

FLOAT = 1
#: A size that is variable, as a 64-bit two's complement.
VARIABLE = (1 << 64) - 1


def varint(number: int) -> bytes:
    """A number in the encoding of protocol buffers."""
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
    """Only the graph."""
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


class FlatBuffer:
    """The TensorFlow Lite format: tables whose fields have fixed positions, and offsets."""

    def __init__(self, identifier: bytes, root: dict[int, Any]) -> None:
        """Writes the root and everything that it refers to."""
        self.data = bytearray(struct.pack("<I", 0) + identifier)
        self._refer(0, root)

    def _refer(self, place: int, target: Any) -> None:
        """Stores the distance to a value at a place."""
        struct.pack_into("<I", self.data, place, self._put(target) - place)

    def _align(self) -> int:
        self.data += bytes(-len(self.data) % 4)
        return len(self.data)

    def _put(self, value: Any) -> int:
        """Appends a text, a list, or a table of fields by number, and returns its position."""
        place = self._align()
        if isinstance(value, str):
            self.data += struct.pack("<I", len(value)) + value.encode() + b"\0"
        elif isinstance(value, list):
            self.data += struct.pack("<I", len(value))
            self._fields(value)
        else:
            slots = [0] * (max(value, default=-1) + 1)
            for index, number in enumerate(value):
                slots[number] = 4 * (1 + index)
            sizes = (4 + 2 * len(slots), 4 + 4 * len(value))
            self.data += struct.pack(f"<{2 + len(slots)}H", *sizes, *slots)
            table = self._align()
            self.data += struct.pack("<i", table - place)
            self._fields(list(value.values()))
            return table
        return place

    def _fields(self, values: list[Any]) -> None:
        """Appends numbers, and references to everything else."""
        first = len(self.data)
        numbers = [value if isinstance(value, int) else 0 for value in values]
        self.data += struct.pack(f"<{len(values)}i", *numbers)
        for index, value in enumerate(values):
            if not isinstance(value, int):
                self._refer(first + 4 * index, value)


def lite_relu(path: pathlib.Path, name: str = "x") -> None:
    """Writes a TensorFlow Lite file whose input has this name."""
    relu = 19

    def tensor(name: str) -> dict[int, Any]:
        # Shape, element type, buffer, name, and the shape with variable sizes.
        return {0: [1, 3], 1: 0, 2: 0, 3: name, 7: [-1, 3]}

    code = {0: relu, 2: 1, 3: relu}
    operator = {0: 0, 1: [0], 2: [1]}
    graph = {0: [tensor(name), tensor("y")], 1: [0], 2: [1], 3: [operator], 4: "main"}
    model = {0: 3, 1: [code], 2: [graph], 3: "relu", 4: [{}]}
    path.write_bytes(FlatBuffer(b"TFL3", model).data)
