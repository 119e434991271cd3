"""Helpers of the public module: tensors by name, data types, BYTES content."""

from __future__ import annotations

from struct import unpack_from
from typing import Any, Optional

from . import arrays, state
from .request import InferenceRequest
from .response import InferenceResponse
from .tensor import Tensor


def get_input_tensor_by_name(inference_request: InferenceRequest,
                             name: str) -> Optional[Tensor]:
    """Input tensor of a request by its name, or None."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse,
                              name: str) -> Optional[Tensor]:
    """Output tensor of a response by its name, or None."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """BYTES content of an array of objects or bytes; None for other arrays."""
    if input_tensor.size == 0:
        return ()
    arrays.load()
    kind = input_tensor.dtype
    if kind == arrays.np.object_ or kind.type == arrays.np.bytes_:
        return arrays.serialize(input_tensor)
    return None


def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
    """Array of ``bytes`` objects from BYTES content."""
    arrays.load()
    items = []
    offset = 0
    while offset < len(encoded_tensor):
        (length,) = unpack_from("<I", encoded_tensor, offset)
        offset += 4
        items += unpack_from(f"<{length}s", encoded_tensor, offset)
        offset += length
    return arrays.np.array(items, dtype=arrays.np.object_)


def triton_to_numpy_type(data_type: int) -> Any:
    """numpy's type for the number of a data type, or None."""
    arrays.load()
    for code, dtype in enumerate(arrays.DTYPES[:arrays.BYTES + 1]):
        if code and data_type == code:
            return dtype.type
    return None


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """Number of the data type for a type of numpy, or None."""
    arrays.load()
    for code, dtype in enumerate(arrays.DTYPES):
        if code and data_type == dtype.type:
            return code
    return arrays.BYTES if data_type == arrays.np.bytes_ else None


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """numpy's type for a name such as ``TYPE_FP32``; KeyError for other names."""
    return string_types()[triton_type_string]


def string_types() -> Any:
    """Types of numpy by the names that configurations use."""
    arrays.load()
    types = {"TYPE_" + arrays.CONFIG_NAMES[code]: arrays.DTYPES[code].type
             for code in range(arrays.BOOL, arrays.BYTES + 1)}
    types["TYPE_BOOL"] = bool
    return types


def get_model_dir() -> str:
    """Directory of the version of the model that is served."""
    return state.model_dir
