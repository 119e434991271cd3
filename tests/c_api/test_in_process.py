"""Tests of the examples: a server inside programs in C and Python."""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from conftest import CONFIG

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/c_api"

#: A repository agent that refuses every model.
NEVER = """
#include <stddef.h>
#include "triton/core/tritonrepoagent.h"
TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model,
    const TRITONREPOAGENT_ActionType action) {
  (void)agent; (void)model;
  if (action != TRITONREPOAGENT_ACTION_LOAD) return NULL;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "not today");
}
"""


#: Creates and deletes servers; then waits until the process has its initial threads.
DELETED = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from in_process import Server

def threads():
    return sorted(file.read_text() for file in pathlib.Path("/proc/self/task").glob("*/comm"))

before = threads()
for _ in range(3):
    server = Server(*sys.argv[2:])
    server.load("identity")
    assert server.infer("identity", [1]) == [1]
    assert threads() != before
    server.close()
patience = time.monotonic() + 60
while threads() != before:
    assert time.monotonic() < patience, threads()
    time.sleep(0.01)  # sleep: polls until the threads have ended
"""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Runs a program and returns its result."""
    text = [str(part) for part in command]
    return subprocess.run(text, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="session")
def example(compile: Callable[..., pathlib.Path], library: pathlib.Path) -> pathlib.Path:
    """The C program."""
    options = ["-std=gnu11", library, f"-Wl,-rpath,{library.parent}", "-lpthread"]
    return compile("cc", EXAMPLES / "in_process.c", *options)


# row: BEK-06
def test_the_c_program_gets_its_responses(
    example: pathlib.Path, repository: pathlib.Path
) -> None:
    ended = run(example, repository, 100)
    assert ended.returncode == 0, ended.stderr
    assert "server API 1.34" in ended.stdout
    assert "100 responses equal their requests" in ended.stdout
    assert '"inference_count":100' in ended.stdout


def test_the_c_program_reports_failures(example: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ended = run(example, tmp_path)
    assert ended.returncode == 1
    assert "loading the model: " in ended.stderr
    ended = run(example, tmp_path / "missing")
    assert ended.returncode == 1
    assert "creating server: Internal - failed to stat file " in ended.stderr


def test_the_python_program_gets_its_responses(
    library: pathlib.Path, repository: pathlib.Path
) -> None:
    ended = run(sys.executable, EXAMPLES / "in_process.py", library, repository)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["triton", "[1, 2, 3]"]


# row: SAPI-12
def test_several_servers_in_one_process(library: pathlib.Path, repository: pathlib.Path) -> None:
    """Each server has its own models, and one continues serving when another ends."""
    sys.path.insert(0, str(EXAMPLES))
    from in_process import Server

    first, second = (Server(str(library), str(repository)) for _ in range(2))
    first.load("identity")
    with pytest.raises(RuntimeError, match="identity"):
        second.infer("identity", [1])
    second.load("identity")
    assert second.infer("identity", [1, 2]) == [1, 2]
    first.close()
    assert second.infer("identity", [3]) == [3]
    with pytest.raises(RuntimeError, match="released"):
        first.load("other")
    second.close()


def test_a_deleted_server_leaves_no_threads(
    library: pathlib.Path, repository: pathlib.Path
) -> None:
    ended = run(sys.executable, "-c", DELETED, EXAMPLES, library, repository)
    assert ended.returncode == 0, ended.stderr


# row: SAPI-08
def test_labels_of_classes(library: pathlib.Path, repository: pathlib.Path) -> None:
    """The labels of the model's label file; null without a label."""
    sys.path.insert(0, str(EXAMPLES))
    from in_process import Server

    class WithLabels(Server):
        """The program reads labels instead of values."""

        def _read(self, response: ctypes.c_void_p) -> list[bytes | None]:
            return [self.label(response, 0, place) for place in (0, 1, 2, 3, 2**64 - 1)]

        def label(self, response: ctypes.c_void_p, output: int, place: int) -> bytes | None:
            label = ctypes.c_char_p()
            self._call(
                "InferenceResponseOutputClassificationLabel",
                response,
                ctypes.c_uint32(output),
                ctypes.c_size_t(place),
                ctypes.byref(label),
            )
            return label.value

    server = WithLabels(str(library), str(repository))
    for name, expected in (("identity", [b"zero", None, b"two", None, None]), ("other", [None] * 5)):
        server.load(name)
        assert server.infer(name, [1]) == expected
    server.close()


def test_the_agent_directory_is_an_option(
    library: pathlib.Path,
    repository: pathlib.Path,
    tmp_path: pathlib.Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Agents from this directory are called for loaded models. The log contains their reason."""
    sys.path.insert(0, str(EXAMPLES))
    from in_process import Server

    class WithAgents(Server):
        """Sets the agent directory before the server is created."""

        def _call(self, name: str, *arguments: object) -> None:
            if name == "ServerNew":
                directory = str(tmp_path / "agents").encode()
                super()._call("ServerOptionsSetRepoAgentDirectory", arguments[1], directory)
            super()._call(name, *arguments)

    (tmp_path / "agents" / "never").mkdir(parents=True)
    source = tmp_path / "never.c"
    source.write_text(NEVER)
    agent = tmp_path / "agents" / "never" / "libtritonrepoagent_never.so"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-I", str(ROOT / "include")]
    subprocess.run(["cc", *flags, "-o", str(agent), str(source)], check=True)
    models = tmp_path / "models"
    shutil.copytree(repository, models)
    with (models / "other" / "config.pbtxt").open("a") as config:
        config.write('model_repository_agents { agents { name: "never" } }')
    server = WithAgents(str(library), str(models))
    with pytest.raises(RuntimeError, match="failed to poll from model repository"):
        server.load("other")
    assert "Poll failed for model directory 'other': not today" in "".join(capfd.readouterr())
    server.load("identity")
    assert server.infer("identity", [1]) == [1]
    server.close()


# row: SAPI-05
def test_a_program_polls_the_repository(library: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The repository is only read when the program polls."""
    sys.path.insert(0, str(EXAMPLES))
    from in_process import MODEL_CONTROL_POLL, Server

    server = Server(str(library), str(tmp_path), MODEL_CONTROL_POLL)
    (tmp_path / "identity" / "1").mkdir(parents=True)
    (tmp_path / "identity" / "config.pbtxt").write_text(CONFIG)
    with pytest.raises(RuntimeError, match="identity"):
        server.infer("identity", [1])
    server.poll()
    assert server.infer("identity", [1]) == [1]
    server.close()
    server = Server(str(library), str(tmp_path))
    with pytest.raises(RuntimeError, match="not poll"):
        server.poll()
    server.close()


def test_a_backend_library_is_hosted(
    compile: Callable[..., pathlib.Path], library: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The backend finds the server's functions, although Python loads the library without
    RTLD_GLOBAL."""
    model = tmp_path / "identity"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG.replace('"identity"', '"echo"'))
    source = ROOT / "examples/backends/identity.c"
    built = compile("cc", source, "-shared", "-fPIC", "-I", source.parent, "-lpthread")
    built.rename(model / "libtriton_echo.so")
    ended = run(sys.executable, EXAMPLES / "in_process.py", library, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["triton", "[1, 2, 3]"]


# row: MET-16
def test_custom_metrics_are_shown(library: pathlib.Path, repository: pathlib.Path) -> None:
    """The server's metrics include a gauge of this program."""
    import ctypes

    sys.path.insert(0, str(EXAMPLES))
    from in_process import Server

    server = Server(str(library), str(repository))
    family, metric, metrics = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    call = server._call
    call(
        "MetricFamilyNew", ctypes.byref(family), ctypes.c_uint(1), b"own_gauge", b"One of our own"
    )
    call("MetricNew", ctypes.byref(metric), family, None, ctypes.c_uint64(0))
    call("MetricSet", metric, ctypes.c_double(2.5))
    call("ServerMetrics", server._server, ctypes.byref(metrics))
    call("MetricsFormatted", metrics, ctypes.c_uint(0), ctypes.byref(text), ctypes.byref(size))
    shown = ctypes.string_at(text, size.value).decode()
    assert "# HELP own_gauge One of our own\n# TYPE own_gauge gauge\nown_gauge 2.5\n" in shown
    call("MetricsDelete", metrics)
    call("MetricDelete", metric)
    call("MetricFamilyDelete", family)
    server.close()
