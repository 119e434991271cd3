"""Executes the code that it receives, as models in a sandbox might."""

import asyncio

import numpy
import triton_python_backend_utils as pb_utils

PRELUDE = """
import ctypes, os, pathlib, socket, subprocess, sys
c = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    # The name of the error, or nothing.
    if c.syscall(*arguments) >= 0:
        return ""
    import errno
    return errno.errorcode[ctypes.get_errno()]
"""


def run(code):
    """The value that the code assigns to `result`, or its exception."""
    scope = {"pb_utils": pb_utils, "__name__": "code"}
    try:
        exec(PRELUDE + code, scope)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return str(scope.get("result", "done"))


def respond(request):
    """A response with the result of a request's code."""
    values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    text = run(values.flat[0].decode())
    output = pb_utils.Tensor("OUT", numpy.array([text.encode()], dtype=object))
    return pb_utils.InferenceResponse([output])


class TritonPythonModel:
    """A model whose `execute` is a function."""

    def execute(self, requests):
        return [respond(request) for request in requests]


class Coroutines:
    """A model whose `execute` is a coroutine."""

    async def execute(self, requests):
        await asyncio.sleep(0)
        return [respond(request) for request in requests]
