"""Tests a Python model in the sandbox when the server is part of another program."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "c_api"
LANDLOCK, LANDLOCK_CREATE_RULESET = 6, 444

CONFIG = """
backend: "python"
max_batch_size: 1
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "PREFIX" } }
parameters { key: "GALATEA_SANDBOX" value { string_value: "VALUE" } }
"""

MODEL = """
import os, socket
import numpy
import triton_python_backend_utils as pb_utils

def can(way):
    try:
        way()
    except OSError:
        return False
    return True

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        ((file,),) = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        signal, look = lambda: os.kill(os.getppid(), 0), lambda: os.fstat(file)
        found = [can(socket.socket), can(signal), can(look)]
        output = pb_utils.Tensor("OUTPUT0", numpy.array([found], numpy.int32))
        return [pb_utils.InferenceResponse([output])]
"""

HOST = """
import fcntl, os, socket, sys
sys.path.insert(0, sys.argv[1])
from in_process import Server

# Children of this program get a file.
file = fcntl.fcntl(1, fcntl.F_DUPFD, 200)
server = Server(*sys.argv[2:4])
server.load("m")
print(server.infer("m", [file]))
# Nothing of the sandbox stays in this program.
print(all("Seccomp:\\t0" in open(f"/proc/self/task/{task}/status").read()
          and "NoNewPrivs:\\t0" in open(f"/proc/self/task/{task}/status").read()
          for task in os.listdir("/proc/self/task")))
server.close()
"""


@pytest.mark.skipif(
    ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, 0, 1) < LANDLOCK,
    reason="needs a kernel with Landlock 6 (Linux 6.12)",
)
@pytest.mark.parametrize(
    ("sandbox", "expected"), [("false", "[1, 1, 1]"), ("true", "[0, 0, 0]")]
)
def test_the_sandbox_concerns_the_worker_alone(
    library: pathlib.Path, tmp_path: pathlib.Path, sandbox: str, expected: str
) -> None:
    """The model has no access to sockets, signals or files that the program left
    open."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    config = CONFIG.replace("PREFIX", sys.prefix).replace("VALUE", sandbox)
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    (tmp_path / "m" / "1" / "model.py").write_text(MODEL)
    command = [sys.executable, "-c", HOST, str(EXAMPLES), str(library), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[:2] == [expected, "True"], ended.stderr
