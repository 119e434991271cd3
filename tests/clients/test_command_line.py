"""The command line."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from conftest import StartServer
from server import Program, wait_until

RUN_SECONDS_MAX = 60


def run(program: Program, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line that ends by itself."""
    return subprocess.run(
        program.command(flags), capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )


def test_help(program: Program) -> None:
    """Every flag that the README names is in the help."""
    done = run(program, "--help")
    text = done.stdout + done.stderr
    assert done.returncode == 0 or program.is_original
    for flag in ("model-repository", "http-port", "grpc-port", "metrics-port", "log-verbose"):
        assert f"--{flag}" in text


@pytest.mark.parametrize(
    "flags",
    [
        ["--no-such-flag"],
        ["--no-such-flag=1"],
        ["--http-port"],
        ["--http-port=x"],
        ["--http-port=-1"],
        ["--http-port=65536"],
        ["--exit-on-error=perhaps"],
        ["--model-control-mode=sometimes"],
        ["positional"],
    ],
)
def test_bad_flags(program: Program, tmp_path: pathlib.Path, flags: list[str]) -> None:
    """Exit code 1, and a word about what is wrong."""
    if program.is_original and flags[0].startswith("--http-port="):
        pytest.skip("the original finds these out when it binds")
    done = run(program, f"--model-repository={tmp_path}", *flags)
    assert done.returncode == 1
    assert flags[0].lstrip("-").split("=")[0] in done.stdout + done.stderr


def test_unknown_flags_print_the_usage(program: Program, tmp_path: pathlib.Path) -> None:
    """A typing error should not need the manual."""
    done = run(program, f"--model-repository={tmp_path}", "--modell-repository=x")
    assert done.returncode == 1
    text = done.stdout + done.stderr
    assert "modell-repository" in text
    assert "Usage" in text or "usage" in text


@pytest.mark.galatea_only
def test_a_repository_is_needed(program: Program) -> None:
    """The message names the flag."""
    done = run(program)
    assert done.returncode == 1
    assert "--model-repository" in done.stdout + done.stderr


def test_a_repository_that_is_not_there(program: Program, tmp_path: pathlib.Path) -> None:
    """The message names the path."""
    done = run(program, f"--model-repository={tmp_path / 'absent'}")
    assert done.returncode == 1
    assert "absent" in done.stdout + done.stderr


@pytest.mark.parametrize("form", ["equals", "space"])
def test_both_forms_of_values(start_server: StartServer, tmp_path: pathlib.Path, form: str) -> None:
    """--name=value and --name value."""
    flags = ["--id=blue"] if form == "equals" else ["--id", "blue"]
    with start_server(tmp_path, *flags) as server:
        server.wait_until_ready()
        assert server.get("/v2").json()["name"] == "blue"


@pytest.mark.parametrize("word", ["false", "FALSE", "off", "0"])
def test_endpoints_can_be_left_out(
    start_server: StartServer, tmp_path: pathlib.Path, word: str
) -> None:
    """A listener that is off is not there."""
    with start_server(tmp_path, f"--allow-metrics={word}", f"--allow-grpc={word}") as server:
        server.wait_until_ready()
        with pytest.raises(ConnectionRefusedError):
            server.metrics()
        with pytest.raises(ConnectionRefusedError):
            server.request("GET", "/", port=server.grpc_port)


def test_a_port_in_use(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The second server ends and says why."""
    with start_server(tmp_path) as first:
        first.wait_until_ready()
        with start_server(tmp_path, f"--http-port={first.http_port}") as second:
            assert second.wait_for_exit() == 1
            assert str(first.http_port) in second.log()
        assert first.is_ready()


def test_equal_ports_are_refused(program: Program, tmp_path: pathlib.Path) -> None:
    """Two endpoints on one port are found before anything starts."""
    done = run(program, f"--model-repository={tmp_path}", "--http-port=7999", "--grpc-port=7999")
    assert done.returncode == 1
    assert "7999" in done.stdout + done.stderr


def test_the_start_is_announced(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Scripts wait for these lines."""
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        expected = [
            f"Started GRPCInferenceService at {server.grpc_url}",
            f"Started HTTPService at {server.http_url}",
            f"Started Metrics Service at 127.0.0.1:{server.metrics_port}",
        ]
        wait_until(lambda: all(line in server.log() for line in expected), 10, "all are announced")


def test_log_file(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Everything goes to the file."""
    repository = tmp_path / "models"
    repository.mkdir()
    log = tmp_path / "server.log"
    with start_server(repository, f"--log-file={log}") as server:
        server.wait_until_ready()
        wait_until(lambda: "Started HTTPService" in log.read_text(), 10, "the start is logged")


@pytest.mark.galatea_only
def test_smaller_input_limit(start_server: StartServer, models: pathlib.Path) -> None:
    """--http-max-input-size is obeyed."""
    with start_server(models, "--http-max-input-size=1000") as server:
        server.wait_until_ready()
        tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "BYTES"}
        small = server.infer("identity_bytes", {"inputs": [{**tensor, "data": ["x" * 100]}]})
        assert small.status == 200
        large = server.infer("identity_bytes", {"inputs": [{**tensor, "data": ["x" * 1000]}]})
        assert large.status in (400, 413)
        assert "http-max-input-size" in large.error()
