"""Tests of the log of a program that uses the library: all servers share one log, and the last
caller's settings apply.

The same program runs on Triton's own library, which GALATEA_TRITON_PACKAGES
locates.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from implementations import Implementation

#: The first lines of each program: library, repository and log file are its arguments.
HEAD = """
import ctypes, json, os, sys
from ctypes import byref, c_bool, c_int, c_uint, c_void_p

library = ctypes.CDLL(sys.argv[1])
INFO, WARN, ERROR, VERBOSE = range(4)
file = sys.argv[3].encode()

def call(name, *arguments):
    function = getattr(library, "TRITONSERVER_" + name)
    function.restype = c_void_p
    error = function(*arguments)
    if error:
        library.TRITONSERVER_ErrorMessage.restype = ctypes.c_char_p
        library.TRITONSERVER_ErrorCodeString.restype = ctypes.c_char_p
        code = library.TRITONSERVER_ErrorCodeString(c_void_p(error)).decode()
        return code + ": " + library.TRITONSERVER_ErrorMessage(c_void_p(error)).decode()

def check_call(name, *arguments):
    error = call(name, *arguments)
    assert error is None, error

def log(level, text):
    check_call("LogMessage", c_uint(level), b"dir/file.c", 7, text)

def enabled():
    library.TRITONSERVER_LogIsEnabled.restype = c_bool
    return [library.TRITONSERVER_LogIsEnabled(c_uint(level)) for level in range(4)]

def options():
    made = c_void_p()
    check_call("ServerOptionsNew", byref(made))
    check_call("ServerOptionsSetModelRepositoryPath", made, sys.argv[2].encode())
    check_call("ServerOptionsSetModelControlMode", made, c_uint(2))
    return made

def server(made):
    server = c_void_p()
    check_call("ServerNew", byref(server), made)
    check_call("ServerOptionsDelete", made)
    return server

"""

EARLY = """
assert enabled() == [True, True, True, False]
log(ERROR, b"early")
check_call("ServerOptionsSetLogWarn", None, c_bool(False))
check_call("ServerOptionsSetLogVerbose", None, c_int(1))
assert enabled() == [True, False, True, True]
log(WARN, b"unread")
assert call("ServerOptionsSetLogFile", None, b"/missing/file").startswith("Internal: ")

made = options()
check_call("ServerOptionsSetLogVerbose", made, c_int(0))
only = server(made)
assert enabled() == [True, False, True, False]
check_call("ServerOptionsSetLogFile", None, file)
check_call("ServerOptionsSetLogFormat", None, c_uint(1))
log(ERROR, b"filed")
check_call("ServerOptionsSetLogFile", None, None)
log(ERROR, b"late")
check_call("ServerDelete", only)
"""

#: Two servers at a time, and one after all others have been deleted.
SEVERAL = """
first = options()
check_call("ServerOptionsSetLogFile", first, file + b".first")
check_call("ServerOptionsSetLogInfo", first, c_bool(False))
first = server(first)
log(ERROR, b"one")
# Nothing is set: the second server's log is as the first one's.
second = server(options())
assert enabled() == [False, True, True, False]
log(ERROR, b"two")
# Options count when they are set, even if no server comes of them.
never = options()
check_call("ServerOptionsSetLogFile", never, file + b".second")
check_call("ServerOptionsSetLogInfo", never, c_bool(True))
check_call("ServerOptionsSetLogFormat", never, c_uint(1))
log(ERROR, b"three")
check_call("ServerOptionsDelete", never)
check_call("ServerLoadModel", first, b"identity")
check_call("ServerDelete", first)
assert enabled() == [True, True, True, False]
log(ERROR, b"four")
check_call("ServerDelete", second)
third = options()
check_call("ServerOptionsSetLogFile", third, file + b".third")
check_call("ServerOptionsSetLogFormat", third, c_uint(0))
check_call("ServerOptionsSetLogVerbose", third, c_int(1))
third = server(third)
assert enabled() == [True, True, True, True]
log(VERBOSE, b"five")
check_call("ServerOptionsSetLogVerbose", None, c_int(-1))
log(VERBOSE, b"unread")
check_call("ServerLoadModel", third, b"identity")
check_call("ServerDelete", third)
log(ERROR, b"six")
"""

Run = Callable[[str], tuple[str, dict[str, list[str]]]]


@pytest.fixture
def run(implementation: Implementation, repository: pathlib.Path, tmp_path: pathlib.Path) -> Run:
    """Runs a program on a library, and returns its error output and the files that it wrote."""
    head = HEAD
    if implementation.is_triton:
        backends = implementation.backends.encode()
        option = f'check_call("ServerOptionsSetBackendDirectory", made, {backends!r})'
        head = head.replace("    return made\n", f"    {option}\n    return made\n")

    def started(program: str) -> tuple[str, dict[str, list[str]]]:
        (tmp_path / "logs").mkdir()
        file = tmp_path / "logs" / "log"
        ended = implementation.run("-c", head + program, implementation.library, repository, file)
        files = {file.suffix: file.read_text().splitlines() for file in file.parent.iterdir()}
        return ended.stderr, files

    return started


def program_lines(lines: list[str]) -> list[str]:
    """The lines that the program itself logged."""
    return [line.split("] ")[1].strip('"') for line in lines if "file.c:7]" in line]


# row: SAPI-03
def test_settings_act_at_once_and_need_no_options(run: Run) -> None:
    errors, files = run(EARLY)
    assert program_lines(errors.splitlines()) == ["early", "late"]
    assert errors.startswith("E")
    assert program_lines(files[""]) == ["filed"]
    assert "Z E " in next(line for line in files[""] if "filed" in line)


def test_all_servers_share_one_log_with_the_last_settings(run: Run) -> None:
    errors, files = run(SEVERAL)
    assert program_lines(errors.splitlines()) == []
    assert {suffix: program_lines(lines) for suffix, lines in files.items()} == {
        ".first": ["one", "two"],
        ".second": ["three", "four"],
        ".third": ["five", "six"],
    }
    first, second, third = (files[name] for name in (".first", ".second", ".third"))
    assert not any(line.startswith("I") for line in first), "information was switched off"
    # The servers' lines go to the same place as the program's own.
    assert all(line[:2] == "20" for line in second if "successfully loaded" in line)
    for lines in (second, third):
        assert any("successfully loaded 'identity'" in line for line in lines)
    assert any("| Option" in line for line in third)
