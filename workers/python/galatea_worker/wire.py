"""Encoding of the messages between server and worker.

Decoders take a frame and a position, and return the value and the position after it. A length
that exceeds the frame is detected by the next read or by `finish`; nothing happens in between
that would have to be undone.
"""

from __future__ import annotations

from struct import Struct, error as StructError
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import arrays
from .arena import INPUTS, OUTPUTS, InputBlock
from .arrays import BYTES, ITEM_BYTES
from .errors import TritonModelException, WireError
from .numbers import (
    ERROR, IN_INPUTS, IN_OUTPUTS, INLINE, INLINE_BYTES_MAX, NO_RESPONSE, ON_DEVICE, TENSORS)
from .tensor import Tensor, from_block, from_bytes, on_gpu

RANK_MAX = 64
_HEADS_MAX = 1024

_INLINE = bytes((INLINE,))
NO_RESPONSE_BYTE, _TENSORS, _ERROR = bytes((NO_RESPONSE,)), bytes((TENSORS,)), bytes((ERROR,))

u32 = Struct("<I")
u64 = Struct("<Q")
get_u32 = u32.unpack_from
get_u64 = u64.unpack_from
pack_u32 = u32.pack
pack_u64 = u64.pack
_get_type_rank = Struct("<BI").unpack_from
_get_place_length = Struct("<BI").unpack_from
_get_block = Struct("<QQ").unpack_from
_pack_block = Struct("<BQQ").pack
_get_code_length = Struct("<BI").unpack_from
_DIMS = tuple(Struct(f"<{rank}q").unpack_from for rank in range(RANK_MAX + 1))

Decoded = Tuple[Any, int]


def finish(data: Any, position: int) -> None:
    """Refuses a frame that doesn't end where its values do."""
    if position != len(data):
        raise WireError(f"a frame of {len(data)} bytes whose values end at {position}")


def get_text(data: Any, position: int) -> Decoded:
    """A string."""
    begin = position + 4
    end = begin + get_u32(data, position)[0]
    if end == begin:
        return "", end
    return str(data[begin:end], "utf-8"), end


def put_text(text: str) -> bytes:
    """A string, as bytes with their length."""
    data = text.encode("utf-8", "replace")
    return pack_u32(len(data)) + data


def get_tensor(data: Any, position: int) -> Decoded:
    """Reads a tensor; one in the input arena keeps its block in use."""
    name, position = get_text(data, position)
    code, rank = _get_type_rank(data, position)
    if not 0 < code < 15 or rank > RANK_MAX:
        raise WireError(f"tensor '{name}' of data type {code} and rank {rank}")
    position += 5
    shape = _DIMS[rank](data, position)
    position += rank * 8
    place, length = _get_place_length(data, position)
    if place == INLINE:
        begin = position + 5
        position = begin + length
        content = bytes(data[begin:position])
        _check_length(name, code, shape, length)
        return from_bytes(name, code, shape, content), position
    offset, length = _get_block(data, position + 1)
    if place == ON_DEVICE:
        from . import gpu
        _check_length(name, code, shape, length)
        memory = gpu.memory_at(offset)
        if code == BYTES:
            raise WireError(f"tensor '{name}' of strings on a GPU")
        return on_gpu(name, code, shape, memory), position + 17
    if place != IN_INPUTS:
        raise WireError(f"tensor '{name}' in place {place}")
    INPUTS.check(offset, length)
    _check_length(name, code, shape, length)
    return from_block(name, code, shape, InputBlock(offset, length)), position + 17


def _check_length(name: str, code: int, shape: Tuple[int, ...], length: int) -> None:
    """Refuses contents whose length doesn't match the shape."""
    count = 1
    for dim in shape:
        if dim < 0:
            raise WireError(f"tensor '{name}' of shape {list(shape)}")
        count *= dim
    if code == BYTES:
        if count * 4 > length:
            raise WireError(f"tensor '{name}' of {count} elements in {length} bytes")
    elif count * ITEM_BYTES[code] != length:
        raise WireError(f"tensor '{name}' of {count} elements in {length} bytes")


def get_response(data: Any, position: int) -> Tuple[Optional[tuple], int]:
    """A response: None, (tensors, parameters, None) or (None, '', (code, text))."""
    kind = data[position]
    position += 1
    if kind == NO_RESPONSE:
        return None, position
    if kind == TENSORS:
        parameters, position = get_text(data, position)
        (count,) = get_u32(data, position)
        position += 4
        tensors = []
        for _ in range(count):
            tensor, position = get_tensor(data, position)
            tensors.append(tensor)
        return (tensors, parameters, None), position
    if kind == ERROR:
        code = data[position]
        text, position = get_text(data, position + 1)
        return (None, "", (code, text)), position
    raise WireError(f"a response of kind {kind}")


def get_offsets(data: Any, position: int) -> List[int]:
    """A list of offsets that ends the frame."""
    (count,) = get_u32(data, position)
    if count * 8 != len(data) - position - 4:
        raise WireError(f"{count} offsets in {len(data) - position - 4} bytes")
    return list(Struct(f"<{count}Q").unpack_from(data, position + 4))


def put_offsets(offsets: Sequence[int]) -> bytes:
    """A list of offsets."""
    return Struct(f"<I{len(offsets)}Q").pack(len(offsets), *offsets)


class Blocks:
    """The blocks of both arenas that the tensors of a frame occupy."""

    __slots__ = ("outputs", "inputs")

    def __init__(self) -> None:
        self.outputs: List[int] = []
        self.inputs: List[int] = []


_heads: Dict[Tuple[str, int, Tuple[int, ...]], bytes] = {}


def _head(tensor: Tensor) -> bytes:
    """Encodes the name, data type and shape of a tensor; models reuse the same few."""
    key = (tensor._name, tensor._dtype, tensor._shape)
    head = _heads.get(key)
    if head is None:
        shape = tensor._shape
        if len(shape) > RANK_MAX:
            raise TritonModelException(
                f"tensor '{tensor._name}' has {len(shape)} dimensions")
        head = (put_text(tensor._name)
                + Struct(f"<BI{len(shape)}q").pack(tensor._dtype, len(shape), *shape))
        if len(_heads) >= _HEADS_MAX:
            _heads.clear()
        _heads[key] = head
    return head


#: The same head, with the location and length of the contents, for arrays that travel in the
#: frame; and that length.
_short_heads: Dict[Tuple[str, int, Tuple[int, ...]], Tuple[bytes, int]] = {}


def put_tensor(parts: List[bytes], tensor: Tensor, blocks: Blocks) -> None:
    """Appends a tensor; long contents go to the output arena."""
    block = tensor._block
    data = tensor._data
    if data is None and block is None:
        known = _short_heads.get((tensor._name, tensor._dtype, tensor._shape))
        if known is not None and tensor._array is not None \
                and tensor._array.nbytes == known[1]:
            parts += (known[0], tensor._array.tobytes())
            return
    parts.append(_head(tensor))
    if block is not None:
        blocks.inputs.append(block.offset)
        parts.append(_pack_block(IN_INPUTS, block.offset, block.length))
        return
    if data is None:
        array = tensor._array
        if array is None:
            parts.append(_put_gpu(tensor, blocks))
            return
        if array.nbytes > INLINE_BYTES_MAX:
            parts.append(_put_array(array, tensor._dtype, blocks))
            return
        data = array.tobytes()
        if len(_short_heads) >= _HEADS_MAX:
            _short_heads.clear()
        key = (tensor._name, tensor._dtype, tensor._shape)
        _short_heads[key] = (parts[-1] + _INLINE + pack_u32(len(data)), len(data))
    elif len(data) > INLINE_BYTES_MAX:
        parts.append(_put_long(data, blocks))
        return
    parts.append(_INLINE + pack_u32(len(data)))
    parts.append(data)


def _put_gpu(tensor: Tensor, blocks: Blocks) -> bytes:
    """Encodes the location of a tensor on a GPU: the input that it is, or a copy."""
    import ctypes

    from . import gpu
    block = gpu.input_block(tensor)
    if block is not None:
        blocks.inputs.append(block.offset)
        return _pack_block(ON_DEVICE, block.offset, tensor._memory.length)
    length = gpu.length_of(tensor)
    if length <= INLINE_BYTES_MAX:
        content = ctypes.create_string_buffer(length)
        gpu.download(tensor, content)
        return _INLINE + pack_u32(length) + content.raw
    offset = OUTPUTS.take(length)
    blocks.outputs.append(offset)
    gpu.download(tensor, (ctypes.c_char * length).from_buffer(OUTPUTS.memory, offset))
    return _pack_block(IN_OUTPUTS, offset, length)


def _put_long(data: Any, blocks: Blocks) -> bytes:
    """Encodes the location of bytes in the output arena."""
    length = len(data)
    offset = OUTPUTS.take(length)
    blocks.outputs.append(offset)
    OUTPUTS.memory[offset:offset + length] = data
    return _pack_block(IN_OUTPUTS, offset, length)


def _put_array(array: Any, code: int, blocks: Blocks) -> bytes:
    """Encodes the location of an array: its place in the input arena, or a copy."""
    length = array.nbytes
    if array.flags.c_contiguous:
        place, block = INPUTS.locate(array.__array_interface__["data"][0], length)
        if place >= 0:
            blocks.inputs.append(block)
            return _pack_block(IN_INPUTS, place, length)
    offset = OUTPUTS.take(length)
    blocks.outputs.append(offset)
    target = arrays.ndarray(array.shape, arrays.DTYPES[code], OUTPUTS.memory, offset)
    target[...] = array
    return _pack_block(IN_OUTPUTS, offset, length)


#: A response without parameters, up to the number of its tensors, and with that of one.
_PLAIN = _TENSORS + pack_u32(0)
_ONE_TENSOR = _PLAIN + pack_u32(1)


def put_response(parts: List[bytes], response: Any, wanted: Optional[frozenset],
                 blocks: Blocks) -> None:
    """Appends a response (`InferenceResponse` or None), pruned to `wanted` outputs."""
    if response is None:
        parts.append(NO_RESPONSE_BYTE)
        return
    error = response._error
    if error is not None:
        parts.append(_ERROR + bytes((error._code,)) + put_text(error._message))
        return
    tensors = response._tensors
    if wanted is not None:
        for tensor in tensors:
            if tensor._name not in wanted:
                tensors = response._tensors = [
                    kept for kept in tensors if kept._name in wanted]
                break
    parameters = response._parameters
    if parameters == "{}" or not parameters:
        parts.append(_ONE_TENSOR if len(tensors) == 1 else _PLAIN + pack_u32(len(tensors)))
    elif type(parameters) is not str:
        parts.append(_ERROR + b"\1" + put_text(parameters.WHY))
        return
    else:
        parts.append(_TENSORS + put_text(parameters) + pack_u32(len(tensors)))
    for tensor in tensors:
        put_tensor(parts, tensor, blocks)


__all__ = [name for name in dir() if not name.startswith("_")] + ["StructError"]
