"""Frames that repeat: what was read and checked once isn't read again.

Most requests to a model, and most replies to its calls, differ from the one before in
nothing but the contents of their tensors. A form says where these lie, and which bytes are
between them. A frame of the same length with the same bytes there means the same.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from .tensor import Tensor, from_bytes

#: Forms that are kept at most.
_FORMS_MAX = 64
#: Frames for which a new form is not worth it, for each one that was made: they would make it
#: dearer to read frames of which none repeats.
_PAUSE = 8

#: Begin and end of the bytes before a tensor's content, the content's end, these bytes, and
#: name, data type and shape.
_Part = Tuple[int, int, int, bytes, str, int, Tuple[int, ...]]


class Forms:
    """Forms of frames by their length, each with what the caller has read of the frame."""

    __slots__ = ("_begin", "_forms", "_credit")

    def __init__(self, begin: int) -> None:
        #: What is before this position is the caller's to check.
        self._begin = begin
        self._forms: Dict[int, Tuple[List[_Part], Any]] = {}
        self._credit = _PAUSE

    def find(self, data: Any) -> Optional[Tuple[List[Tensor], Any]]:
        """Tensors of a frame, and what was read of the first one like it; None if none was."""
        form = self._forms.get(len(data))
        if form is None or type(data) is not bytes:
            return None
        parts, value = form
        tensors = []
        for begin, content, end, between, name, code, shape in parts:
            if data[begin:content] != between:
                return None
            tensors.append(from_bytes(name, code, shape, data[content:end]))
        return tensors, value

    def learn(self, data: Any, tensors: List[Tensor], value: Any) -> None:
        """Remembers a frame that ends with these tensors, as they were just read."""
        self._credit += 1
        if self._credit <= _PAUSE or type(data) is not bytes:
            return
        parts = _parts(data, self._begin, tensors)
        if parts:
            self._credit = 0
            if len(self._forms) >= _FORMS_MAX:
                self._forms.clear()
            self._forms[len(data)] = (parts, value)


def _parts(data: bytes, begin: int, tensors: List[Tensor]) -> List[_Part]:
    """Parts of a frame that ends with these tensors; none if one of them lies elsewhere."""
    sizes = []
    for tensor in tensors:
        if tensor._data is None:  # in shared memory, or on a GPU
            return []
        # Name, data type, rank and dimensions, place and length of the content.
        head = 4 + len(tensor._name.encode("utf-8")) + 5 + 8 * len(tensor._shape) + 5
        sizes.append((head, len(tensor._data)))
    position = len(data) - sum(head + length for head, length in sizes)
    parts = []
    for tensor, (head, length) in zip(tensors, sizes):
        content = position + head
        position = content + length
        parts.append((begin, content, position, data[begin:content],
                      tensor._name, tensor._dtype, tensor._shape))
        begin = position
    return parts
