"""Request traces: events that the server reports to functions of the program.

The functions run on the server's threads, with the interpreter lock held.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy

from . import _calls
from ._calls import INT, UNSIGNED64, Handle, attribute
from ._enumerations import (
    TRITONSERVER_DataType,
    TRITONSERVER_InferenceTraceActivity,
    TRITONSERVER_MemoryType,
)

_POINTER = ctypes.c_void_p
_Activity = ctypes.CFUNCTYPE(None, _POINTER, ctypes.c_int, ctypes.c_uint64, _POINTER)
_TensorActivity = ctypes.CFUNCTYPE(
    None, _POINTER, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, _POINTER, ctypes.c_size_t,
    _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.c_int64, _POINTER,
)
_Release = ctypes.CFUNCTYPE(None, _POINTER, _POINTER)


class _Functions:
    """The functions of a request's traces. Child traces use them as well."""

    def __init__(self, activity: Any, tensor_activity: Any, release: Any, user: Any) -> None:
        self.activity = activity
        self.tensor_activity = tensor_activity
        self.release = release
        self.user = user
        #: The traces that have reported something and have not been released.
        self.seen: set[int] = set()


#: The functions, by the server's number for them, until the last trace is released.
_functions: dict[int, _Functions] = {}
_numbers = itertools.count(1)


def _trace(address: int, number: int) -> tuple[Any, _Functions]:
    functions = _functions[number]
    functions.seen.add(address)
    return TRITONSERVER_InferenceTrace._of(address, owned=False), functions


@_Activity
def _on_activity(address: int, activity: int, timestamp_ns: int, number: int) -> None:
    trace, functions = _trace(address, number)
    event = TRITONSERVER_InferenceTraceActivity(activity)
    functions.activity(trace, event, timestamp_ns, functions.user)


@_TensorActivity
def _on_tensor_activity(
    address: int, activity: int, name: bytes, data_type: int, base: int, byte_size: int,
    shape: int, dim_count: int, memory_type: int, memory_type_id: int, number: int,
) -> None:
    trace, functions = _trace(address, number)
    functions.tensor_activity(
        trace,
        TRITONSERVER_InferenceTraceActivity(activity),
        name.decode(),
        TRITONSERVER_DataType(data_type),
        base or 0,
        byte_size,
        dims(shape, dim_count),
        TRITONSERVER_MemoryType(memory_type),
        memory_type_id,
        functions.user,
    )


@_Release
def _on_release(address: int, number: int) -> None:
    functions = _functions[number]
    functions.seen.discard(address)
    if not functions.seen:
        del _functions[number]
    # The function now owns the trace.
    functions.release(TRITONSERVER_InferenceTrace._of(address, owned=True), functions.user)


def dims(address: int, count: int) -> numpy.ndarray[Any, Any]:
    """A shape, copied out of the server's memory."""
    if not count:
        return numpy.empty(0, numpy.int64)
    return numpy.array((ctypes.c_int64 * count).from_address(address), numpy.int64)


class TRITONSERVER_InferenceTrace(Handle):
    """The trace of a request."""

    _delete = "InferenceTraceDelete"

    def __init__(self, level: int, parent_id: int, *functions: Any, **named: Any) -> None:
        """Makes a trace for :meth:`TRITONSERVER_Server.infer_async`.

        Further arguments are `activity_function`, optionally `tensor_activity_function`, then
        `release_function` and `trace_userp`, which is the last argument of each function.
        """
        names = ["activity_function", "release_function", "trace_userp"]
        if len(functions) + len(named) == len(names) + 1:
            names.insert(1, "tensor_activity_function")
        given = {**dict(zip(names, functions)), **named}
        if len(functions) > len(names) or set(given) != set(names):
            raise TypeError(f"a trace needs {', '.join(names)}")
        self._start(INT.convert(level), UNSIGNED64.convert(parent_id), given)

    def _start(self, level: Any, parent_id: Any, given: dict[str, Any]) -> None:
        tensors: Callable[..., Any] | None = given.get("tensor_activity_function")
        number = next(_numbers)
        _functions[number] = _Functions(
            given["activity_function"], tensors, given["release_function"],
            given["trace_userp"],
        )
        self._number = number
        user = ctypes.c_void_p(number)
        if tensors is None:
            arguments = _on_activity, _on_release, user
            self._make("InferenceTraceNew", level, parent_id, *arguments)
        else:
            arguments = _on_activity, _on_tensor_activity, _on_release, user
            self._make("InferenceTraceTensorNew", level, parent_id, *arguments)

    def hand_over(self) -> None:
        """Leaves the trace to the server, which releases it."""
        self._owned = False

    def __del__(self) -> None:
        """Forgets the functions of an unsent trace."""
        if self._owned:
            _functions.pop(getattr(self, "_number", 0), None)
        super().__del__()

    id = attribute("InferenceTraceId", _calls.UNSIGNED64_RESULT)
    parent_id = attribute("InferenceTraceParentId", _calls.UNSIGNED64_RESULT)
    model_name = attribute("InferenceTraceModelName", _calls.TEXT_RESULT)
    model_version = attribute("InferenceTraceModelVersion", _calls.INT64_RESULT)
    request_id = attribute("InferenceTraceRequestId", _calls.TEXT_RESULT)
