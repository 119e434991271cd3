"""The log of a program with the library, before it has a server and with one."""

from __future__ import annotations

import pathlib
import subprocess
import sys

PROGRAM = """
import ctypes, sys
from ctypes import c_bool, c_int, c_uint, c_void_p

library = ctypes.CDLL(sys.argv[1])
INFO, WARN, ERROR, VERBOSE = range(4)

def call(name, *arguments):
    function = getattr(library, "TRITONSERVER_" + name)
    function.restype = c_void_p
    error = function(*arguments)
    if error:
        library.TRITONSERVER_ErrorMessage.restype = ctypes.c_char_p
        return library.TRITONSERVER_ErrorMessage(c_void_p(error)).decode()

def log(level, text):
    assert call("LogMessage", c_uint(level), b"dir/file.c", 7, text) is None

def enabled():
    library.TRITONSERVER_LogIsEnabled.restype = c_bool
    return [library.TRITONSERVER_LogIsEnabled(c_uint(level)) for level in range(4)]

assert enabled() == [True, True, True, False]
log(ERROR, b"early")
assert call("ServerOptionsSetLogWarn", None, c_bool(False)) is None
assert call("ServerOptionsSetLogVerbose", None, c_int(1)) is None
assert enabled() == [True, False, True, True]
log(WARN, b"unread")
assert "can't open log file" in call("ServerOptionsSetLogFile", None, b"/missing/file")

options, server = c_void_p(), c_void_p()
assert call("ServerOptionsNew", ctypes.byref(options)) is None
assert call("ServerOptionsSetModelRepositoryPath", options, sys.argv[2].encode()) is None
assert call("ServerOptionsSetModelControlMode", options, c_uint(2)) is None
assert call("ServerOptionsSetLogVerbose", options, c_int(0)) is None
assert call("ServerNew", ctypes.byref(server), options) is None
assert enabled() == [True, False, True, False]
assert call("ServerOptionsSetLogFile", None, sys.argv[3].encode()) is None
assert call("ServerOptionsSetLogFormat", None, c_uint(1)) is None
log(ERROR, b"filed")
assert call("ServerOptionsSetLogFile", None, None) is None
log(ERROR, b"late")
assert call("ServerDelete", server) is None
assert call("ServerOptionsDelete", options) is None
"""


def test_settings_act_at_once_and_need_no_options(
    library: pathlib.Path, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "log"
    command = [sys.executable, "-c", PROGRAM, library, repository, file]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    errors = ended.stderr.splitlines()
    assert [line.split("] ")[1] for line in errors] == ['"early"', '"late"']
    assert all("file.c:7]" in line for line in errors)
    assert errors[0].startswith("E")
    lines = file.read_text().splitlines()
    assert [line.split("] ")[1] for line in lines if '"filed"' in line] == ['"filed"']
    assert "Z E " in next(line for line in lines if '"filed"' in line)
