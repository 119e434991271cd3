"""Repeating frames: a part that was read and checked once isn't read again.

Most requests to a model, and most replies to its calls, differ from the previous one only in the
contents of their tensors. A form records the position of these contents and the bytes between
them. A frame of the same length with the same bytes in between means the same.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from .tensor import Tensor, from_bytes

#: The maximum number of forms that are kept.
_FORMS_MAX = 64
#: The number of frames that are skipped for each new form, because a form for every one would
#: make it more expensive to read frames that never repeat.
_PAUSE = 8

#: The beginning and end of the bytes before a tensor's contents, the end of the contents, these
#: bytes, and the name, data type and shape.
_Part = Tuple[int, int, int, bytes, str, int, Tuple[int, ...]]


class Forms:
    """Forms of frames by length, each with the caller's reading of the frame."""

    __slots__ = ("_begin", "_forms", "_credit")

    def __init__(self, begin: int) -> None:
        #: The part before this position is the caller's to check.
        self._begin = begin
        self._forms: Dict[int, Tuple[List[_Part], Any]] = {}
        self._credit = _PAUSE

    def find(self, data: Any) -> Optional[Tuple[List[Tensor], Any]]:
        """Returns a frame's tensors and the reading of the first frame like it; None if unknown."""
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
    """Returns the parts of a frame that ends with these tensors; [] if one lies elsewhere."""
    sizes = []
    for tensor in tensors:
        if tensor._data is None:  # in shared memory, or on a GPU
            return []
        # The name, data type, rank and dimensions, and the location and length of the contents.
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
