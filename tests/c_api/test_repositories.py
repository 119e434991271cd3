"""Tests of repositories that a program registers and unregisters while its server runs.

The same program runs on Triton's own library, which GALATEA_TRITON_PACKAGES
locates; GALATEA_TRITON_BACKENDS is then a directory with its identity backend.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest

from conftest import CONFIG
from implementations import Implementation

Step = list[object]
#: The result of each step of a program: null, an error or an index.
Play = Callable[..., list[object]]

#: Reads the library, the first repository, the control mode, a directory of backends
#: or nothing, and the steps; writes the result of each.
PROGRAM = '''
import ctypes, json, sys
from ctypes import POINTER, byref, c_bool, c_char_p, c_int64, c_size_t, c_uint, c_void_p

path, repository, mode, backends, steps = sys.argv[1:]
library = ctypes.CDLL(path)
for name in ("ErrorMessage", "ErrorCodeString"):
    getattr(library, f"TRITONSERVER_{name}").restype = c_char_p
library.TRITONSERVER_ParameterNew.restype = c_void_p

def call(name, *arguments):
    function = getattr(library, f"TRITONSERVER_{name}")
    function.restype = c_void_p
    error = c_void_p(function(*arguments))
    if not error:
        return None
    code = library.TRITONSERVER_ErrorCodeString(error).decode()
    text = library.TRITONSERVER_ErrorMessage(error).decode()
    library.TRITONSERVER_ErrorDelete(error)
    return f"{code}: {text}"

def check_call(name, *arguments):
    error = call(name, *arguments)
    assert error is None, error

options, server = c_void_p(), c_void_p()
check_call("ServerOptionsNew", byref(options))
check_call("ServerOptionsSetModelRepositoryPath", options, repository.encode())
check_call("ServerOptionsSetModelControlMode", options, c_uint(int(mode)))
check_call("ServerOptionsSetLogInfo", options, c_bool(False))
check_call("ServerOptionsSetLogError", options, c_bool(False))
if backends:
    check_call("ServerOptionsSetBackendDirectory", options, backends.encode())
check_call("ServerNew", byref(server), options)
check_call("ServerOptionsDelete", options)

def parameter(directory, name):
    kind, value = (0, name.encode()) if isinstance(name, str) else (1, byref(c_int64(name)))
    return c_void_p(library.TRITONSERVER_ParameterNew(directory.encode(), c_uint(kind), value))

def register(path, names):
    made = [parameter(*pair) for pair in names]
    array = (c_void_p * len(made))(*made)
    error = call("ServerRegisterModelRepository", server, path.encode(), array, c_uint(len(made)))
    for one in made:
        library.TRITONSERVER_ParameterDelete(one)
    return error

def register_nothing(path, count):
    return call("ServerRegisterModelRepository", server, path.encode(), None, c_uint(count))

def unregister(path):
    return call("ServerUnregisterModelRepository", server, path.encode())

def load(name, config=None):
    if config is None:
        return call("ServerLoadModel", server, name.encode())
    array = (c_void_p * 1)(parameter("config", config))
    return call("ServerLoadModelWithParameters", server, name.encode(), array, ctypes.c_uint64(1))

def unload(name):
    return call("ServerUnloadModel", server, name.encode())

def ready(name, version):
    answer = c_bool()
    error = call("ServerModelIsReady", server, name.encode(), c_int64(version), byref(answer))
    return error is None and answer.value

def document(name, *arguments):
    message, base, size = c_void_p(), c_char_p(), c_size_t()
    check_call(name, server, *arguments, byref(message))
    check_call("MessageSerializeToJson", message, byref(base), byref(size))
    found = json.loads(ctypes.string_at(base, size.value))
    check_call("MessageDelete", message)
    return found

def index(only_ready):
    return document("ServerModelIndex", c_uint(only_ready))

def called(name):
    return document("ServerModelConfig", name.encode(), c_int64(-1), c_uint(1))["name"]

def encoded(argument):
    return argument.encode() if isinstance(argument, str) else c_int64(argument)

def control(name, *arguments):
    return call(name, server, *map(encoded, arguments))

def query(name, *arguments):
    return call(name, server, *map(encoded, arguments), byref(c_void_p()))

responses = [globals()[step[0]](*step[1:]) for step in json.loads(steps)]
check_call("ServerDelete", server)
print(json.dumps(responses))
'''

#: The error for a model that is in no repository: ours continues with the reason.
NOT_POLLED = "failed to load '%s', failed to poll from model repository"

NONE, POLL, EXPLICIT = range(3)


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Repositories whose versions identify their directory."""
    (tmp_path / "empty").mkdir()
    for model, version in (("zero/m0", 1), ("one/m0", 2), ("one/m1", 3)):
        (tmp_path / model / str(version)).mkdir(parents=True)
        name = pathlib.Path(model).name
        (tmp_path / model / "config.pbtxt").write_text(f'name: "{name}" {CONFIG}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def play(implementation: Implementation, folder: pathlib.Path) -> Play:
    """Runs a program with these steps on a library."""

    def run(*steps: Step, mode: int = EXPLICIT) -> list[object]:
        given = (implementation.library, "empty", mode, implementation.backends, json.dumps(steps))
        ended = implementation.run("-c", PROGRAM, *given)
        return json.loads(ended.stdout.splitlines()[-1])

    return run


def check(play: Play, *steps: tuple[Step, object], mode: int = EXPLICIT) -> None:
    """Checks each step's result; an expected error may be a prefix."""
    responses = play(*(step for step, _ in steps), mode=mode)
    for (step, expected), response in zip(steps, responses, strict=True):
        if isinstance(expected, str) and isinstance(response, str):
            assert response.startswith(expected), step
        else:
            assert response == expected, step


def not_polled(name: str) -> str:
    return f"Internal: {NOT_POLLED % name}"


# row: MR-18
def test_models_of_a_registered_repository_can_be_loaded(play: Play) -> None:
    check(
        play,
        (["load", "m0"], not_polled("m0")),
        (["register", "zero", []], None),
        (["load", "m0"], None),
        (["ready", "m0", 1], True),
        (["index", 1], [{"name": "m0", "version": "1", "state": "READY"}]),
    )


def test_models_may_have_names_other_than_their_directories(play: Play) -> None:
    check(
        play,
        (["register", "zero", [["m0", "n0"], ["m0", "n1"]]], None),
        (["load", "m0"], not_polled("m0")),
        (["load", "n0"], None),
        (["load", "n1"], None),
        (["ready", "n0", 1], True),
        (["ready", "n1", 1], True),
        (["called", "n0"], "n0"),
    )


def test_a_configuration_sent_with_a_load_uses_the_given_name(play: Play) -> None:
    config = {
        "name": "other",
        "backend": "identity",
        "max_batch_size": 8,
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
    }
    check(
        play,
        (["register", "zero", [["m0", "n0"]]], None),
        (["load", "n0", json.dumps(config)], None),
        (["called", "n0"], "n0"),
    )


def test_the_index_shows_the_given_names(play: Play) -> None:
    check(
        play,
        (["register", "zero", [["m0", "n0"]]], None),
        (["index", 0], [{"name": "n0"}]),
        (["load", "n0"], None),
        (["index", 0], [{"name": "n0", "version": "1", "state": "READY"}]),
    )


def test_a_given_name_comes_before_directories(play: Play) -> None:
    check(
        play,
        (["register", "one", [["m0", "m1"]]], None),
        (["load", "m1"], None),
        (["ready", "m1", 2], True),
        (["load", "m0"], not_polled("m0")),
    )


def test_giving_a_directory_its_own_name_resolves_ambiguity(play: Play) -> None:
    check(
        play,
        (["register", "zero", [["m0", "m0"]]], None),
        (["register", "one", []], None),
        (["load", "m0"], None),
        (["ready", "m0", 1], True),
        (["load", "m1"], None),
        (["ready", "m1", 3], True),
    )


def test_models_of_two_repositories_are_not_unique_until_one_goes(play: Play) -> None:
    check(
        play,
        (["register", "zero", []], None),
        (["register", "one", []], None),
        (["load", "m0"], not_polled("m0")),
        (["load", "m1"], None),
        (["unregister", "one"], None),
        (["load", "m0"], None),
        (["ready", "m0", 1], True),
        (["ready", "m1", 3], True),
    )


def test_models_of_an_unregistered_repository_keep_serving(play: Play) -> None:
    check(
        play,
        (["register", "zero", []], None),
        (["load", "m0"], None),
        (["unregister", "zero"], None),
        (["ready", "m0", 1], True),
        (["load", "m0"], not_polled("m0")),
        (["ready", "m0", 1], True),
        (["register", "zero", [["m0", "n0"]]], None),
        (["load", "m0"], not_polled("m0")),
        (["load", "n0"], None),
        (["ready", "n0", 1], True),
        (["ready", "m0", 1], True),
        (["unload", "m0"], None),
        (["ready", "m0", 1], False),
        (["ready", "n0", 1], True),
    )


# row: MR-18
def test_wrong_registrations_are_refused(play: Play) -> None:
    known = "Already exists: model repository '%s' has already been registered"
    conflict = "failed to register '%s', there is a conflicting mapping for 'n0'"
    check(
        play,
        (["register", "empty", []], known % "empty"),
        (["register", "nowhere", []], "Invalid argument: failed to register 'nowhere', repository not found"),
        (["register", "zero", [["m0", "n0"]]], None),
        (["register", "zero", []], known % "zero"),
        (["register", "one", [["m0", "n0"]]], f"Already exists: {conflict % 'n0'}"),
        (["register", "one", [["m0", "n0"], ["m1", "n0"]]], f"Invalid argument: {conflict % 'one'}"),
        (
            ["register", "one", [["m0", 7]]],
            "Invalid argument: Mapped model name must be a string, found another type for m0",
        ),
        (
            ["register_nothing", "one", 1],
            "Invalid argument: model mappings are not provided while mapping count is non-zero",
        ),
        (["register_nothing", "one", 0], None),
        (["unregister", "nowhere"], "Invalid argument: failed to unregister 'nowhere', repository not found"),
        (["unregister", "one"], None),
        (["unregister", "one"], "Invalid argument: failed to unregister 'one', repository not found"),
        (["unregister", "empty"], None),
    )


@pytest.mark.parametrize("mode", [NONE, POLL])
def test_other_control_modes_are_refused(play: Play, mode: int) -> None:
    refusal = "Unsupported: repository %s is not allowed if model control mode is not EXPLICIT"
    check(
        play,
        (["register", "zero", []], refusal % "registration"),
        (["unregister", "empty"], refusal % "unregistration"),
        mode=mode,
    )


# row: SAPI-05
def test_a_stopped_server_refuses_calls(play: Play) -> None:
    """It still returns its metadata and repositories, and polls have no effect."""
    exiting, not_ready = "Unavailable: Server exiting", "Unavailable: Server not ready"
    unknown = "Not found: Request for unknown model: 'm0' "
    check(
        play,
        (["control", "ServerPollModelRepository"], "Unavailable: "),
        (["register", "zero", []], None),
        (["load", "m0"], None),
        (["control", "ServerStop"], None),
        (["query", "ServerIsLive"], exiting),
        (["query", "ServerIsReady"], exiting),
        (["query", "ServerModelIsReady", "m0", -1], not_ready),
        (["query", "ServerModelIsReady", "none", 1], not_ready),
        (["query", "ServerModelStatistics", "m0", -1], not_ready),
        (["query", "ServerModelStatistics", "", -1], not_ready),
        (["query", "ServerModelIndex", 0], not_ready),
        (["query", "ServerModelMetadata", "m0", -1], unknown),
        (["query", "ServerModelConfig", "m0", -1, 1], unknown),
        (["query", "ServerMetadata"], None),
        (["query", "ServerMetrics"], None),
        (["load", "m0"], not_ready),
        (["load", "m0", "{}"], not_ready),
        (["unload", "m0"], not_ready),
        (["control", "ServerUnloadModelAndDependents", "m0"], not_ready),
        (["control", "ServerPollModelRepository"], None),
        (["register", "one", []], None),
        (["register", "one", []], "Already exists: model repository 'one' has already"),
        (["unregister", "zero"], None),
        (["unregister", "nowhere"], "Invalid argument: failed to unregister 'nowhere'"),
        (["control", "ServerStop"], None),
    )


def test_a_stopped_polling_server_refuses_calls(play: Play) -> None:
    check(
        play,
        (["control", "ServerStop"], None),
        (["control", "ServerPollModelRepository"], None),
        (["register", "zero", []], "Unsupported: repository registration is not allowed"),
        (["unregister", "empty"], "Unsupported: repository unregistration is not allowed"),
        mode=POLL,
    )
