"""Objects of the C API that hold values: parameters, messages, buffers and metrics."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from typing import Any

from . import _calls
from ._calls import TEXT, Handle, attribute, check, function, handle_of, handles, method
from ._enumerations import (
    TRITONSERVER_MemoryType,
    TRITONSERVER_MetricFormat,
    TRITONSERVER_MetricKind,
    TRITONSERVER_ParameterType,
)

_parameter_new = function("ParameterNew")
_parameter_bytes_new = function("ParameterBytesNew")
_parameter_delete = function("ParameterDelete", None)


class TRITONSERVER_Parameter(Handle):
    """A named value: bytes, a string or an integer. A boolean counts as a number here."""

    def __init__(self, name: str, value: bytes | str | int) -> None:
        """Creates the parameter. Bytes are not copied."""
        self._value = value
        key = TEXT.convert(name)
        if isinstance(value, bytes):
            address = _parameter_bytes_new(key, value, ctypes.c_uint64(len(value)))
        elif isinstance(value, str):
            kind = ctypes.c_int(TRITONSERVER_ParameterType.STRING)
            address = _parameter_new(key, kind, TEXT.convert(value))
        else:
            number = _calls.INT64.convert(operator.index(value))
            kind = ctypes.c_int(TRITONSERVER_ParameterType.INT)
            address = _parameter_new(key, kind, ctypes.byref(number))
        self._adopt(address, owned=True)

    def __del__(self) -> None:
        """Deletes the parameter, for which the C API has no error."""
        if self._owned:
            self._owned = False
            _parameter_delete(self.handle)


def _content(call: Any, *arguments: Any) -> str:
    """The string that a call returns as an address and a number of bytes."""
    base, size = ctypes.c_void_p(), ctypes.c_size_t()
    check(call(*arguments, ctypes.byref(base), ctypes.byref(size)))
    return ctypes.string_at(base.value or 0, size.value).decode() if size.value else ""


class TRITONSERVER_Message(Handle):
    """A JSON document."""

    _delete = "MessageDelete"

    def __init__(self, serialized_json: str) -> None:
        """Parses a string."""
        content = serialized_json.encode()
        self._make("MessageNewFromSerializedJson", content, ctypes.c_size_t(len(content)))

    def serialize_to_json(self) -> str:
        """The document as a string."""
        return _content(function("MessageSerializeToJson"), self.handle)


class TRITONSERVER_Metrics(Handle):
    """A snapshot of the metrics."""

    _delete = "MetricsDelete"

    def formatted(self, metric_format: TRITONSERVER_MetricFormat) -> str:
        """The metrics as a string."""
        argument = _calls.one_of(TRITONSERVER_MetricFormat).convert(metric_format)
        return _content(function("MetricsFormatted"), self.handle, argument)


class TRITONSERVER_BufferAttributes(Handle):
    """The location and the size of a buffer."""

    _delete = "BufferAttributesDelete"

    def __init__(self) -> None:
        """Creates attributes of an empty buffer in CPU memory."""
        self._make("BufferAttributesNew")

    memory_type_id = attribute(
        "BufferAttributesMemoryTypeId",
        _calls.INT64_RESULT,
        "BufferAttributesSetMemoryTypeId",
        _calls.INT64,
    )
    memory_type = attribute(
        "BufferAttributesMemoryType",
        _calls.one_of_result(TRITONSERVER_MemoryType),
        "BufferAttributesSetMemoryType",
        _calls.one_of(TRITONSERVER_MemoryType),
    )
    cuda_ipc_handle = attribute(
        "BufferAttributesCudaIpcHandle",
        _calls.ADDRESS_RESULT,
        "BufferAttributesSetCudaIpcHandle",
        _calls.ADDRESS,
    )
    byte_size = attribute(
        "BufferAttributesByteSize",
        _calls.SIZE_RESULT,
        "BufferAttributesSetByteSize",
        _calls.SIZE,
    )


class TRITONSERVER_ResponseAllocator:
    """Functions that allocate outputs.

    As in Triton's module, no request takes an allocator, so none of the functions is ever called:
    outputs are in memory of the process's heap.
    """

    def __init__(
        self,
        alloc_function: Callable[..., Any],
        release_function: Callable[..., Any],
        start_function: Callable[..., Any] | None = None,
    ) -> None:
        """Keeps the functions."""
        self._functions = [_callable(alloc_function), _callable(release_function)]
        if start_function is not None:
            self._functions.append(_callable(start_function))

    def set_buffer_attributes_function(
        self, buffer_attributes_function: Callable[..., Any]
    ) -> None:
        """Keeps the function for attributes of buffers."""
        self._functions.append(_callable(buffer_attributes_function))

    def set_query_function(self, query_function: Callable[..., Any]) -> None:
        """Keeps the function for locations."""
        self._functions.append(_callable(query_function))


def _callable(value: Any) -> Callable[..., Any]:
    if not callable(value):
        raise TypeError(f"a function is needed, not {type(value).__name__}")
    return value  # type: ignore[no-any-return]


class TRITONSERVER_MetricFamily(Handle):
    """Metrics of one name and kind."""

    _delete = "MetricFamilyDelete"

    def __init__(self, kind: TRITONSERVER_MetricKind, name: str, description: str) -> None:
        """Makes the family."""
        argument = _calls.one_of(TRITONSERVER_MetricKind).convert(kind)
        texts = TEXT.convert(name), TEXT.convert(description)
        self._make("MetricFamilyNew", argument, *texts)


class TRITONSERVER_Metric(Handle):
    """A metric of a family, which it keeps."""

    _delete = "MetricDelete"

    def __init__(
        self, family: TRITONSERVER_MetricFamily, labels: Sequence[TRITONSERVER_Parameter]
    ) -> None:
        """Makes the metric with labels."""
        self._family = family
        parent = handle_of(TRITONSERVER_MetricFamily).convert(family)
        array, count = handles(TRITONSERVER_Parameter, labels)
        self._make("MetricNew", parent, array, ctypes.c_uint64(count))

    value = attribute("MetricValue", _calls.DOUBLE_RESULT)
    kind = attribute("GetMetricKind", _calls.one_of_result(TRITONSERVER_MetricKind))
    increment = method("MetricIncrement", _calls.DOUBLE)
    set_value = method("MetricSet", _calls.DOUBLE)
