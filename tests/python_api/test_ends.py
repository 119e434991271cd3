"""Tests of programs that end, each in a separate process, without a crash, a hang or any
output."""

from __future__ import annotations

from collections.abc import Callable

import pytest

START = """
import asyncio, gc, sys, threading, galatea, numpy
options = galatea.Options(
    sys.argv[1], model_control_mode=galatea.ModelControlMode.EXPLICIT,
    startup_models=["add", "counter", "describe"])
server = galatea.Server(options).start()
def count(n): return {"COUNT": numpy.array([[n]], numpy.int32)}
ab = {"A": numpy.ones((1, 2), numpy.float32), "B": numpy.ones((1, 2), numpy.float32)}
"""

ENDS = {
    "nothing is stopped": """
[response] = server.model("add").infer(inputs=ab)
""",
    "an error at the top": """
threading.excepthook = sys.excepthook = lambda *_: None
try:
    server.model("absent").infer(inputs=ab)
except galatea.NotFoundError:
    sys.exit(0)
""",
    "a request is in flight": """
responses = server.model("counter").infer(inputs=count(500))
next(responses)
""",
    "a thread of the background waits": """
responses = server.model("counter").infer(inputs=count(2000))
threading.Thread(target=lambda: list(responses), daemon=True).start()
""",
    "a thread of the background waits beyond the end": """
import ctypes
library = ctypes.CDLL(galatea._galatea.__file__)
library.TRITONSERVER_ServerSetExitTimeout.argtypes = [ctypes.c_void_p, ctypes.c_uint]
library.TRITONSERVER_ServerSetExitTimeout(server._ptr(), 0)
for _ in range(4):
    responses = server.model("counter").infer(inputs=count(1 << 20))
    threading.Thread(target=lambda it=responses: list(it), daemon=True).start()
""",
    "a loop is left with responses to come": """
async def leave():
    responses = server.model("counter").async_infer(inputs=count(300))
    waiting = asyncio.ensure_future(responses.__anext__())
    await asyncio.sleep(0)
asyncio.run(leave())
""",
    "doors are open": """
http = galatea.KServeHttp(server, galatea.KServeHttp.Options(address="127.0.0.1", port=0))
http.start()
grpc = galatea.KServeGrpc(server, galatea.KServeGrpc.Options(address="127.0.0.1", port=0))
grpc.start()
""",
    "everything is forgotten": """
model = server.model("add")
[response] = model.infer(inputs=ab)
output = numpy.from_dlpack(response.outputs["SUM"])
del server, model, response
gc.collect()
assert output.tolist() == [[2, 2]]
""",
    "it was stopped": """
server.stop()
""",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
# row: DEP-05
def test_a_program_ends(run_program: Callable[[str], str], end: str) -> None:
    assert run_program(START + end + "print('the end')\n").splitlines()[-1:] in (["the end"], [])


def test_memory_outlives_everything(run_program: Callable[[str], str]) -> None:
    """Arrays refer to outputs when the modules' names are gone."""
    run_program(START + """
import builtins
[response] = server.model("add").infer(inputs=ab)
builtins.kept = numpy.from_dlpack(response.outputs["SUM"])
builtins.capsule = response.outputs["SUM"].__dlpack__()
builtins.responses = server.model("counter").infer(inputs=count(10))
""")


def test_a_command_keeps_its_exit_code(run_program: Callable[[str], str]) -> None:
    run_program("""
import os, galatea
run = galatea._galatea.run_program
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
assert run(["galatea", "check"]) == 2
assert run(["galatea", "--version"]) == 0
""")
