"""A model of trees in ONNX Runtime, called in C through `ctypes`."""

from __future__ import annotations

import ctypes
import functools
import pathlib
from collections.abc import Callable

import numpy as np
import onnxruntime

#: The version of the table of functions; the places below have been the same since the first.
API_VERSION = 16
#: The places of functions in the table.
GET_MESSAGE, CREATE_ENVIRONMENT, CREATE_SESSION, RUN, CREATE_OPTIONS = 2, 3, 7, 9, 10
SET_THREADS_OF_OPERATORS, SET_THREADS_OF_GRAPHS = 24, 25
CREATE_TENSOR, CREATE_MEMORY, RELEASE_VALUE = 49, 69, 96
WARNING, ARENA, DEFAULT_MEMORY, FLOATS, FLOAT_BYTES = 2, 1, 0, 1, 4

Pointer = ctypes.c_void_p


@functools.cache
def _table() -> ctypes.Array[Pointer]:
    """The library's functions in its Python package."""
    folder = pathlib.Path(onnxruntime.__file__).parent / "capi"
    library = ctypes.CDLL(str(next(folder.glob("libonnxruntime.so*"))))
    library.OrtGetApiBase.restype = ctypes.POINTER(Pointer)
    base = library.OrtGetApiBase()
    table = ctypes.CFUNCTYPE(Pointer, ctypes.c_uint32)(base[0])(API_VERSION)
    return ctypes.cast(table, ctypes.POINTER(Pointer * (RELEASE_VALUE + 1))).contents


def _function(place: int, *types: type) -> Callable[..., None]:
    """A function that returns a status."""
    function = ctypes.CFUNCTYPE(Pointer, *types)(_table()[place])

    def call(*arguments: object) -> None:
        status = function(*arguments)
        if status:
            message = ctypes.CFUNCTYPE(ctypes.c_char_p, Pointer)(_table()[GET_MESSAGE])
            raise RuntimeError(message(status).decode())
    return call


def onnx_call(model: pathlib.Path, input_name: str, output_name: str,
              count: int) -> Callable[[np.ndarray], None]:
    """Runs a session with one thread on arrays, all of which use the same output."""
    out = ctypes.POINTER(Pointer)
    environment, options, session = Pointer(), Pointer(), Pointer()
    memory, result = Pointer(), Pointer()
    _function(CREATE_ENVIRONMENT, ctypes.c_int, ctypes.c_char_p, out)(
        WARNING, b"", ctypes.byref(environment))
    _function(CREATE_OPTIONS, out)(ctypes.byref(options))
    for place in (SET_THREADS_OF_OPERATORS, SET_THREADS_OF_GRAPHS):
        _function(place, Pointer, ctypes.c_int)(options, 1)
    _function(CREATE_SESSION, Pointer, ctypes.c_char_p, Pointer, out)(
        environment, str(model).encode(), options, ctypes.byref(session))
    _function(CREATE_MEMORY, ctypes.c_int, ctypes.c_int, out)(
        ARENA, DEFAULT_MEMORY, ctypes.byref(memory))
    create = _function(CREATE_TENSOR, Pointer, Pointer, ctypes.c_size_t, Pointer, ctypes.c_size_t,
                       ctypes.c_int, out)
    run = _function(RUN, Pointer, Pointer, Pointer, Pointer, ctypes.c_size_t, Pointer,
                    ctypes.c_size_t, Pointer)
    release = ctypes.CFUNCTYPE(None, Pointer)(_table()[RELEASE_VALUE])
    inputs = (ctypes.c_char_p * 1)(input_name.encode())
    outputs = (ctypes.c_char_p * 1)(output_name.encode())
    output = np.empty((count, 1), np.float32)
    shape = (ctypes.c_int64 * 2)(count, 1)
    create(memory, output.ctypes.data, count * FLOAT_BYTES, shape, 2, FLOATS, ctypes.byref(result))

    def call(rows: np.ndarray) -> None:
        value = Pointer()
        shape = (ctypes.c_int64 * 2)(*rows.shape)
        create(memory, rows.ctypes.data, rows.nbytes, shape, 2, FLOATS, ctypes.byref(value))
        run(session, None, inputs, ctypes.byref(value), 1, outputs, 1, ctypes.byref(result))
        release(value)
    call.output = output  # type: ignore[attr-defined]
    return call
