"""Tests of repository agents: the examples, one that keeps a journal, and broken ones.

Galatea and Triton use the same journal library, and its output is compared with the calls that both
make.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from compiling import build_examples, compile_library
from conftest import ROOT, StartServer
from constant_models import added_value, constant_model, write_model
from server import Program, Reply, Server, wait_until

EXAMPLES = ROOT / "examples" / "agents"
EXPLICIT = "--model-control-mode=explicit"
WAIT_SECONDS_MAX = 30.0
CONFIG = 'backend: "onnxruntime" max_batch_size: 8 '

#: Agents that can't be used, by name.
BROKEN = {
    "no_action": """
        TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent) {
          (void)agent;
          return NULL;
        }
    """,
    "too_new": """
        TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent) {
          uint32_t major, minor;
          TRITONSERVER_Error* error = TRITONREPOAGENT_ApiVersion(&major, &minor);
          (void)agent;
          if (error != NULL || (major == 99 && minor >= 0)) return error;
          return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "made for version 99");
        }
        TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
            TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model,
            const TRITONREPOAGENT_ActionType action) {
          (void)agent; (void)model; (void)action;
          return NULL;
        }
    """,
    "lacks_symbol": """
        void undefined_function(void);
        TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
            TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model,
            const TRITONREPOAGENT_ActionType action) {
          (void)agent; (void)model; (void)action;
          undefined_function();
          return NULL;
        }
    """,
}


def compile_agent(source: pathlib.Path, folder: pathlib.Path, name: str) -> None:
    """Builds an agent as its author would."""
    library = folder / name / f"libtritonrepoagent_{name}.so"
    compile_library(source, library, "-Wno-type-limits")


def build_checksum() -> pathlib.Path:
    """Builds the Rust agent."""
    command = ["cargo", "build", "--locked", "-p", "galatea-checksum-agent"]
    messages = subprocess.run(
        [*command, "--message-format=json-render-diagnostics"],
        check=True,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ).stdout
    built = [json.loads(line) for line in messages.splitlines()]
    names = [name for message in built for name in message.get("filenames", [])]
    return pathlib.Path(next(name for name in names if name.endswith("_checksum.so")))


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory of agents."""
    folder = tmp_path_factory.mktemp("agents")
    build = tmp_path_factory.mktemp("build")
    compile_agent(pathlib.Path(__file__).with_name("agents") / "journal.c", folder, "journal")
    for name, body in BROKEN.items():
        source = build / f"{name}.c"
        source.write_text(f'#include "triton/core/tritonrepoagent.h"\n#include <stddef.h>\n{body}')
        compile_agent(source, folder, name)
    build_examples(EXAMPLES, build)
    shutil.copytree(build / "unmask", folder / "unmask")
    (folder / "checksum").mkdir()
    shutil.copy(build_checksum(), folder / "checksum")
    (folder / "text").mkdir()
    (folder / "text" / "libtritonrepoagent_text.so").write_text("not a library")
    (folder / "half").mkdir()
    whole = (folder / "journal" / "libtritonrepoagent_journal.so").read_bytes()
    (folder / "half" / "libtritonrepoagent_half.so").write_bytes(whole[: len(whole) // 2])
    return folder


def agents_config(*agents: dict[str, Any]) -> str:
    """The part of a configuration that names agents; `agent` is the name."""

    def one(parameters: dict[str, Any]) -> str:
        name = parameters.get("agent", "journal")
        pairs = "".join(
            f'parameters {{ key: "{key}" value: "{value}" }} '
            for key, value in parameters.items()
            if key != "agent"
        )
        return f'{{ name: "{name}" {pairs}}}'

    return f"model_repository_agents {{ agents [ {', '.join(map(one, agents))} ] }}"


TWO = agents_config({"name": "a"}, {"name": "b"})


@dataclasses.dataclass
class Workspace:
    """A repository, the agents and the journal."""

    start_server: StartServer
    agents: pathlib.Path
    folder: pathlib.Path
    server: Server | None = None
    seen: int = 0

    @property
    def repository(self) -> pathlib.Path:
        """The model repository."""
        return self.folder / "models"

    @contextlib.contextmanager
    def started(self, *flags: str) -> Iterator[Server]:
        """A server whose agents keep a journal."""
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        self.repository.mkdir(exist_ok=True)
        environment = {"JOURNAL": str(self.folder / "journal"), "TMPDIR": str(temporary)}
        directory = f"--repoagent-directory={self.agents}"
        with self.start_server(
            self.repository, directory, *flags, environment=environment
        ) as server:
            self.server = server
            yield server

    def add_model(self, name: str, agents: str, value: int = 1, **options: Any) -> None:
        """Writes a model with agents."""
        config = options.pop("config", CONFIG)
        (self.repository / name).mkdir(parents=True, exist_ok=True)
        write_model(self.repository, name, value, config=config + agents, **options)

    def replace(self, path: str, content: bytes) -> None:
        """Replaces a file, so that a poll at any moment finds one of the two."""
        new = self.folder / "new"
        new.write_bytes(content)
        new.replace(self.repository / path)

    def post(self, path: str, parameters: dict[str, Any] | None = None) -> Reply:
        """Sends a POST request."""
        assert self.server is not None
        body = b"" if parameters is None else json.dumps({"parameters": parameters}).encode()
        return self.server.request("POST", path, body)

    def load(self, name: str, parameters: dict[str, Any] | None = None) -> Reply:
        """Requests a load."""
        return self.post(f"/v2/repository/models/{name}/load", parameters)

    def refused(self, name: str) -> str:
        """Requests a load that fails, and returns everything that is reported about it."""
        assert self.server is not None
        reply = self.load(name)
        assert reply.status in (400, 500), reply
        return reply.error() + self.server.log()

    def unload(self, name: str) -> None:
        """Requests an unload."""
        assert self.post(f"/v2/repository/models/{name}/unload").status == 200

    def check_journal(self, *expected: str) -> None:
        """Waits for the expected lines since the last check, and compares them."""
        wanted = [line for part in expected for line in part.split(", ")]
        path = self.folder / "journal"

        def lines() -> list[str]:
            return path.read_text().splitlines()[self.seen :] if path.exists() else []

        with contextlib.suppress(AssertionError):
            wait_until(lambda: len(lines()) >= len(wanted), WAIT_SECONDS_MAX, "it is written")
        assert lines() == wanted
        self.seen += len(wanted)

    def temporary_entries(self) -> list[str]:
        """The entries of the directory for temporary files."""
        return sorted(os.listdir(self.folder / "temporary"))


@pytest.fixture
def workspace(start_server: StartServer, agents: pathlib.Path, tmp_path: pathlib.Path) -> Workspace:
    """A repository without models, and the agents."""
    return Workspace(start_server, agents, tmp_path)


def begins(number: int, name: str, batches: int = 8) -> str:
    """The journal of an agent that is called for a load."""
    return f"{number} {name} INITIALIZE, {number} {name} LOAD, " + (
        f"{number} {name} sees type 0 batches of {batches}"
    )


def loads(first: int) -> str:
    """A load with the agents a and b."""
    return f"{begins(first, 'a')}, {begins(first + 1, 'b')}"


def loaded(first: int) -> str:
    """The journal of a successful load."""
    return f"{first + 1} b LOAD_COMPLETE, {first} a LOAD_COMPLETE"


def unloading(first: int) -> str:
    """The journal before the unload."""
    return f"{first} a UNLOAD, {first + 1} b UNLOAD"


def unloaded(first: int) -> str:
    """The journal after the unload."""
    return (
        f"{first + 1} b UNLOAD_COMPLETE, {first} a UNLOAD_COMPLETE, "
        f"{first} a FINALIZE, {first + 1} b FINALIZE"
    )


def md5(content: bytes) -> str:
    """The checksum."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


# row: CLI-23 CFG-16 XAPI-04
def test_matching_checksums_load_the_model(workspace: Workspace) -> None:
    """Several files have both kinds of checksums."""
    model = constant_model(5)
    (workspace.repository / "m").mkdir(parents=True)
    (workspace.repository / "m" / "labels").write_text("text")
    sums = {
        "agent": "checksum",
        "MD5:1/model.onnx": md5(model),
        "md5:labels": md5(b"text").upper(),
        "SHA256:1/model.onnx": hashlib.sha256(model).hexdigest(),
    }
    workspace.add_model("m", agents_config(sums), 5)
    with workspace.started() as server:
        server.wait_until_ready()
        assert added_value(server, "m") == 5


@pytest.mark.parametrize(
    ("sums", "reason"),
    [
        (
            {"MD5:1/model.onnx": "invalid_checksum"},
            "Mismatched MD5 hash for file 1/model.onnx, expect: invalid_checksum, got: ",
        ),
        ({"SHA256:1/model.onnx": "0"}, "Mismatched SHA256 hash for file 1/model.onnx"),
        ({"MD5:2/model.onnx": "0"}, "failed to open file for read 2/model.onnx: No such file"),
        ({"MD5:../m/1/model.onnx": "0"}, "is not in the model's directory"),
        ({"CRC:1/model.onnx": "0"}, "Unsupported checksum algorithm: CRC"),
        ({"1/model.onnx": "0"}, "failed to parse key: 1/model.onnx"),
    ],
)
# row: XAPI-04
def test_wrong_checksums_refuse_the_model(
    workspace: Workspace, sums: dict[str, str], reason: str
) -> None:
    """The error names the mismatch."""
    workspace.add_model("m", agents_config({"agent": "checksum", **sums}))
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert reason in workspace.refused("m")
        # The repaired model loads.
        workspace.add_model("m", agents_config({"agent": "checksum"}))
        assert workspace.load("m").status == 200
        assert added_value(server, "m") == 1


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        ("nobody", "unable to find 'libtritonrepoagent_nobody.so' for repo agent 'nobody'"),
        ("no_action", "unable to find required entrypoint 'TRITONREPOAGENT_ModelAction'"),
        ("too_new", "made for version 99"),
        ("lacks_symbol", "undefined symbol: undefined_function"),
        ("text", "unable to load shared library"),
        pytest.param(
            "half",
            "libtritonrepoagent_half.so' is cut short",
            marks=pytest.mark.galatea_only,  # It crashes Triton.
        ),
    ],
)
def test_unusable_agents_refuse_the_model(workspace: Workspace, agent: str, reason: str) -> None:
    """The reason names the agent's error."""
    workspace.add_model("m", agents_config({"agent": agent}))
    workspace.add_model("other", "")
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert reason in workspace.refused("m")
        assert workspace.load("other").status == 200


@pytest.mark.galatea_only
def test_agent_names_cannot_leave_the_agent_directory(workspace: Workspace) -> None:
    """This also applies to existing directories."""
    shutil.copytree(workspace.agents / "journal", workspace.folder / "journal_outside")
    names = ["../journal_outside", "journal/../journal", "..", "", "/journal"]
    for index, name in enumerate(names):
        workspace.add_model(f"m{index}", agents_config({"agent": name}))
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        for index in range(5):
            reply = workspace.load(f"m{index}")
            assert reply.status == 500
            expected = f"failed to load 'm{index}', failed to poll from model repository"
            assert reply.error() == expected
            assert "must not lead to another directory" in server.log()
    workspace.check_journal()


# row: XAPI-03
def test_an_agent_generates_the_model_files(workspace: Workspace) -> None:
    """The original files can't be loaded; the agent's directory is removed at the end."""
    content = bytes(byte ^ 42 for byte in constant_model(7))
    folder = workspace.repository / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx.masked").write_bytes(content)
    (folder / "config.pbtxt").write_text(CONFIG + agents_config({"agent": "unmask", "key": "42"}))
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert workspace.load("m").status == 200
        assert added_value(server, "m") == 7
        if not server.is_triton:
            (place,) = workspace.temporary_entries()
            assert (workspace.folder / "temporary" / place).stat().st_mode & 0o777 == 0o700
        workspace.unload("m")
        if not server.is_triton:
            wait_until(
                lambda: not workspace.temporary_entries(),
                WAIT_SECONDS_MAX,
                "the directory is removed",
            )
        (folder / "config.pbtxt").write_text(
            CONFIG + agents_config({"agent": "unmask", "key": "41"})
        )
        workspace.refused("m")
        if not server.is_triton:
            wait_until(
                lambda: not workspace.temporary_entries(),
                WAIT_SECONDS_MAX,
                "the directory is removed",
            )
        (folder / "config.pbtxt").write_text(CONFIG + agents_config({"agent": "unmask"}))
        assert "unmask needs the parameter 'key'" in workspace.refused("m")


# row: XAPI-02
def test_the_life_cycle_of_a_model(workspace: Workspace) -> None:
    """Load, reload, unload, load, stop."""
    workspace.add_model("m", TWO)
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert workspace.load("m").status == 200
        workspace.check_journal("begin", loads(1), loaded(1))
        assert workspace.load("m").status == 200  # nothing changed
        workspace.add_model("m", TWO, 2)
        assert workspace.load("m").status == 200
        workspace.check_journal(loads(3), unloading(1), loaded(3), unloaded(1))
        assert added_value(server, "m") == 2
        workspace.unload("m")
        workspace.check_journal(unloading(3), unloaded(3), "end")
        assert workspace.load("m").status == 200
        workspace.check_journal("begin", loads(1), loaded(1))
    workspace.check_journal(unloading(1), unloaded(1), "end")


def test_a_load_that_fails(workspace: Workspace) -> None:
    """The agents are notified, and the next load starts a new life cycle."""
    workspace.add_model("m", TWO)
    (workspace.repository / "m" / "1" / "model.onnx").write_bytes(b"damaged")
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        workspace.refused("m")
        failed = [loads(1), "2 b LOAD_FAIL, 1 a LOAD_FAIL"]
        if server.is_triton:  # which keeps the model for the agents
            workspace.check_journal("begin", *failed)
            return
        workspace.check_journal("begin", *failed, "1 a FINALIZE, 2 b FINALIZE", "end")
        workspace.add_model("m", TWO)
        assert workspace.load("m").status == 200
        workspace.check_journal("begin", loads(1), loaded(1))
        (workspace.repository / "m" / "1" / "model.onnx").write_bytes(b"damaged")
        workspace.refused("m")
        workspace.check_journal(
            loads(3), "4 b LOAD_FAIL, 3 a LOAD_FAIL, 3 a FINALIZE, 4 b FINALIZE"
        )
        assert added_value(server, "m") == 1


@pytest.mark.parametrize(
    ("position", "call", "expected"),
    [
        (0, "INITIALIZE", "1 a INITIALIZE, 1 a FINALIZE"),
        (
            1,
            "INITIALIZE",
            f"{begins(1, 'a')}, 2 b INITIALIZE, 2 b FINALIZE, 1 a LOAD_FAIL, 1 a FINALIZE",
        ),
        (0, "LOAD", "1 a INITIALIZE, 1 a LOAD, 1 a LOAD_FAIL, 1 a FINALIZE"),
        (
            1,
            "LOAD",
            f"{begins(1, 'a')}, 2 b INITIALIZE, 2 b LOAD, 2 b LOAD_FAIL, 2 b FINALIZE, "
            "1 a LOAD_FAIL, 1 a FINALIZE",
        ),
    ],
)
# row: CFG-20 XAPI-03
def test_an_agent_that_refuses_ends_the_load(
    workspace: Workspace, position: int, call: str, expected: str
) -> None:
    """Agents before it are notified of the failure; those after it aren't called."""
    named: list[dict[str, Any]] = [{"name": "a"}, {"name": "b"}]
    named[position]["fail"] = call
    workspace.add_model("m", agents_config(*named, {"name": "c"}))
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        text = f"the journal '{'ab'[position]}' refuses {call}"
        assert text in workspace.refused("m")
        workspace.check_journal("begin", expected, "end")
        assert workspace.load("m").status != 200
        workspace.check_journal("begin", expected, "end")


@pytest.mark.parametrize(
    ("position", "call"),
    [
        (0, "LOAD_COMPLETE"),
        (1, "UNLOAD"),
        (0, "UNLOAD_COMPLETE"),
        (0, "FINALIZE"),
        (1, "FINALIZE"),
        pytest.param(1, "LOAD_COMPLETE", marks=pytest.mark.galatea_only),
        pytest.param(0, "UNLOAD", marks=pytest.mark.galatea_only),
    ],
)
def test_later_errors_of_agents_are_only_logged(
    workspace: Workspace, position: int, call: str
) -> None:
    """They are logged."""
    named: list[dict[str, Any]] = [{"name": "a"}, {"name": "b"}]
    named[position]["fail"] = call
    workspace.add_model("m", agents_config(*named))
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert workspace.load("m").status == 200
        assert added_value(server, "m") == 1
        workspace.unload("m")
        workspace.check_journal("begin", loads(1), loaded(1), unloading(1), unloaded(1), "end")
        if not server.is_triton:  # which says nothing of UNLOAD_COMPLETE
            assert f"the journal '{'ab'[position]}' refuses {call}" in server.log()


def test_a_moved_model_keeps_its_configuration(workspace: Workspace) -> None:
    """The next agent sees the new directory, and its versions and files are used."""
    other = workspace.folder / "other"
    write_model(other.parent, "other", 4, (1, 2), config='backend: "onnxruntime" max_batch_size: 4')
    bare = workspace.folder / "bare"
    write_model(bare.parent, "bare", 6, (1, 3))
    agents = agents_config(
        {"name": "a", "move": other}, {"name": "b", "acquire": bare}, {"name": "c"}
    )
    workspace.add_model("m", agents, versions=())
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert workspace.load("m").status == 200
        calls = [begins(1, "a"), begins(2, "b", 4), begins(3, "c", -1)]
        complete = "3 c LOAD_COMPLETE, 2 b LOAD_COMPLETE, 1 a LOAD_COMPLETE"
        workspace.check_journal("begin", *calls, complete)
        assert server.get("/v2/models/m/config").json()["max_batch_size"] == 8
        assert server.get("/v2/models/m").json()["versions"] == ["3"]
        assert added_value(server, "m") == 6
        # Only a change in the repository counts.
        write_model(bare.parent, "bare", 7, (1, 3))
        assert workspace.load("m").status == 200
        assert added_value(server, "m") == 6
        if not server.is_triton:  # which keeps versions whose own files did not change
            workspace.add_model("m", agents, versions=())
            assert workspace.load("m").status == 200
            assert added_value(server, "m") == 7


@pytest.mark.galatea_only
def test_an_invalid_directory_refuses_the_model(workspace: Workspace) -> None:
    """The reason names the directory."""
    workspace.add_model("m", agents_config({"name": "a", "move": "/nowhere/at/all"}))
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert "its repository agents moved it: can't open '/nowhere/at/all'" in workspace.refused(
            "m"
        )


def test_calls_that_agents_may_not_make(workspace: Workspace) -> None:
    """The calls are refused with Triton's messages."""
    workspace.add_model("m", agents_config({"name": "a", "misuse": "1"}))
    late = (
        "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is "
    )
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert workspace.load("m").status == 200
        workspace.unload("m")
        wait_until(
            lambda: "end" in (workspace.folder / "journal").read_text().splitlines(),
            WAIT_SECONDS_MAX,
            "the agent is finalised",
        )
    lines = (workspace.folder / "journal").read_text().splitlines()
    expected = [
        "begin",
        *begins(1, "a").split(", "),
        "1 a release of nothing: No mutable location to be deleted",
        "1 a a remote place: Unexpected artifact type, expects "
        "'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'",
        "1 a parameter 99: index out of range for model parameters",
        "1 a configuration 2: model configuration version 2 not supported, supported versions "
        "are: 1",
        "1 a acquire: allowed",
        "1 a acquire again: allowed",
        "1 a the same: 1",
        "1 a release: allowed",
    ]
    for action in ("LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"):
        expected += [f"1 a {action}", f"1 a a late move: {late}TRITONREPOAGENT_ACTION_{action}"]
    assert lines == [*expected, "1 a FINALIZE", "end"]


def test_a_configuration_sent_with_a_load_names_its_own_agents(workspace: Workspace) -> None:
    """The load is sent with and without files."""
    workspace.add_model("m", TWO)

    def override(batches: int, name: str | None) -> str:
        config: dict[str, Any] = {"name": "m", "backend": "onnxruntime", "max_batch_size": batches}
        if name is not None:
            agent = {"name": "journal", "parameters": {"name": name}}
            config["model_repository_agents"] = {"agents": [agent]}
        return json.dumps(config)

    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert workspace.load("m").status == 200
        workspace.check_journal("begin", loads(1), loaded(1))
        assert workspace.load("m", {"config": override(3, None)}).status == 200
        workspace.check_journal(unloading(1), unloaded(1), "end")
        assert workspace.load("m", {"config": override(2, "c")}).status == 200
        workspace.check_journal("begin", begins(1, "c", 2), "1 c LOAD_COMPLETE")
        file = base64.b64encode(constant_model(9)).decode()
        parameters = {"config": override(5, "d"), "file:1/model.onnx": file}
        assert workspace.load("m", parameters).status == 200
        assert added_value(server, "m") == 9
        ended = "1 c UNLOAD_COMPLETE, 1 c FINALIZE"
        workspace.check_journal(begins(2, "d", 5), "1 c UNLOAD, 2 d LOAD_COMPLETE", ended)
        assert workspace.load("m").status == 200
        workspace.check_journal(
            loads(3), "2 d UNLOAD", loaded(3), "2 d UNLOAD_COMPLETE, 2 d FINALIZE"
        )
        assert added_value(server, "m") == 1


def test_polls_call_agents_when_the_model_changes(workspace: Workspace) -> None:
    """A model that they refuse is still served, and every poll calls them again."""
    workspace.add_model("m", TWO)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    with workspace.started(*flags) as server:
        server.wait_until_ready()
        workspace.check_journal("begin", loads(1), loaded(1))
        workspace.add_model(
            "n", ""
        )  # once it serves, a poll has passed that found nothing new of m
        wait_until(
            lambda: server.get("/v2/models/n/ready").status == 200, WAIT_SECONDS_MAX, "n serves"
        )
        workspace.replace("m/1/model.onnx", constant_model(2))
        workspace.check_journal(loads(3), unloading(1), loaded(3), unloaded(1))
        refusing = CONFIG + agents_config({"name": "c", "fail": "LOAD"})
        workspace.replace("m/config.pbtxt", refusing.encode())
        refused = "{0} c INITIALIZE, {0} c LOAD, {0} c LOAD_FAIL, {0} c FINALIZE"
        path = workspace.folder / "journal"

        def wait_for_refusals(count: int) -> None:
            enough = lambda: path.read_text().count("c FINALIZE") >= count  # noqa: E731
            wait_until(enough, WAIT_SECONDS_MAX, f"it is refused {count} times")

        wait_for_refusals(1)
        workspace.replace("m/1/model.onnx", constant_model(3))
        # The next poll may have started before that.
        wait_for_refusals(path.read_text().count("c FINALIZE") + 2)
        assert added_value(server, "m") == 2
        lines = path.read_text().splitlines()[workspace.seen :]
        assert lines[:8] == f"{refused.format(5)}, {refused.format(6)}".split(", ")
        shutil.rmtree(workspace.repository / "m")
        wait_until(
            lambda: "end" in path.read_text().splitlines(), WAIT_SECONDS_MAX, "it is unloaded"
        )
        lines = path.read_text().splitlines()
        assert lines[-7:] == f"{unloading(3)}, {unloaded(3)}, end".split(", ")


def test_a_model_refused_at_start_does_not_affect_others(workspace: Workspace) -> None:
    """Its reason is in the log; the index contains only the name."""
    workspace.add_model("m", TWO)
    workspace.add_model("n", agents_config({"name": "n", "fail": "LOAD"}))
    with workspace.started("--exit-on-error=false") as server:
        server.wait_until_live()
        wait_until(lambda: "| server_id" in server.log(), WAIT_SECONDS_MAX, "it has begun")
        assert added_value(server, "m") == 1
        assert "| Repository Agent | Path" in server.log()
        assert "libtritonrepoagent_journal.so |" in server.log()
        index = workspace.post("/v2/repository/index").json()
        assert {"name": "n"} in index
        assert "the journal 'n' refuses LOAD" in server.log()


def test_the_program_ends_if_a_model_is_refused_at_start(workspace: Workspace) -> None:
    """A refused model has the same effect as any other failure."""
    workspace.add_model("n", agents_config({"name": "n", "fail": "LOAD"}))
    with workspace.started() as server:
        assert server.wait_for_exit() == 1
    workspace.check_journal("begin, 1 n INITIALIZE, 1 n LOAD, 1 n LOAD_FAIL, 1 n FINALIZE, end")


@pytest.mark.galatea_only
def test_a_model_with_agents_is_reloaded_as_a_whole(workspace: Workspace) -> None:
    """This applies even if only its instances changed or one version was added."""
    policy = "version_policy { all { } } "
    workspace.add_model("m", TWO, config=CONFIG + policy, versions=(1, 2))
    with workspace.started(EXPLICIT) as server:
        server.wait_until_ready()
        assert workspace.load("m").status == 200
        workspace.check_journal("begin", loads(1), loaded(1))
        workspace.add_model("m", TWO, config=CONFIG + policy, versions=(3,))
        assert workspace.load("m").status == 200
        workspace.check_journal(loads(3), unloading(1), loaded(3), unloaded(1))
        more = "instance_group { count: 3 kind: KIND_CPU } "
        workspace.add_model("m", TWO, config=CONFIG + policy + more, versions=())
        assert workspace.load("m").status == 200
        workspace.check_journal(loads(5), unloading(3), loaded(5), unloaded(3))


@pytest.mark.galatea_only
def test_a_check_calls_agents_and_releases_the_model(
    program: Program, workspace: Workspace, agents: pathlib.Path
) -> None:
    """Their refusal is an error of the model."""
    workspace.add_model("good", agents_config({"name": "a"}))
    workspace.add_model("bad", agents_config({"agent": "checksum", "MD5:1/model.onnx": "0"}))
    command = [str(program.path), "check", "--json", f"--repoagent-directory={agents}"]
    if program.onnxruntime_library is not None:
        command += ["--onnxruntime-library", str(program.onnxruntime_library)]
    environment = {**os.environ, "JOURNAL": str(workspace.folder / "journal")}
    checked = subprocess.run(
        [*command, str(workspace.repository)], env=environment, stdout=subprocess.PIPE, check=False
    )
    assert checked.returncode == 1
    errors = {model["name"]: model["errors"] for model in json.loads(checked.stdout)["models"]}
    assert errors["good"] == []
    assert "Mismatched MD5 hash for file 1/model.onnx" in errors["bad"][0]["message"]
    workspace.check_journal("begin", begins(1, "a"), "1 a LOAD_FAIL, 1 a FINALIZE, end")
