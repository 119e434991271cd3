"""Tests of the command line."""

from __future__ import annotations

import dataclasses
import http.client
import pathlib
import re
import subprocess

import pytest

from conftest import StartServer
from server import Program, free_ports, wait_until

RUN_SECONDS_MAX = 60


def run(program: Program, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that ends by itself."""
    return subprocess.run(
        program.command(flags), capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )


def test_help(program: Program) -> None:
    """The help lists every flag that the README names."""
    done = run(program, "--help")
    text = done.stdout + done.stderr
    assert done.returncode == 0 or program.is_triton
    for flag in ("model-repository", "http-port", "grpc-port", "metrics-port", "log-verbose"):
        assert f"--{flag}" in text


@pytest.mark.galatea_only
# row: DEP-08
def test_the_program_may_have_tritons_name(program: Program, tmp_path: pathlib.Path) -> None:
    """A link with the name of Triton's program behaves like the program."""
    link = tmp_path / "tritonserver"
    link.symlink_to(program.path)
    renamed = dataclasses.replace(program, path=link)
    for flags in [("--help",), ("--version",), ("--help=man",), ("check", str(tmp_path)), ("x",)]:
        ours, theirs = run(program, *flags), run(renamed, *flags)
        assert (ours.returncode, ours.stdout, ours.stderr) == (
            theirs.returncode,
            theirs.stdout,
            theirs.stderr,
        )
    models = tmp_path / "models"
    models.mkdir()
    port = free_ports(1)[0]
    command = renamed.command(
        [f"--model-repository={models}", f"--http-port={port}", "--allow-grpc=false"]
    )
    with subprocess.Popen([*command, "--allow-metrics=false"], stderr=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL) as server:  # fmt: skip
        try:
            wait_until(lambda: is_ready(port), RUN_SECONDS_MAX, "the server is ready")
        finally:
            server.terminate()
    assert server.returncode == 0


@pytest.mark.galatea_only
def test_the_version_names_the_commit(program: Program) -> None:
    """It is on the second line, because scripts read the first. A build without git has no
    commit."""
    first, *rest = run(program, "--version").stdout.splitlines()
    assert re.fullmatch(r"galatea \d+\.\d+\.\d+", first)
    assert len(rest) <= 1 and all(re.fullmatch("commit [0-9a-f]{12}", line) for line in rest)


def is_ready(port: int) -> bool:
    """Returns true if a server on this port is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=RUN_SECONDS_MAX)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--no-such-flag", "unrecognized option"),
        ("--no-such-flag=1", "unrecognized option"),
        ("--http-port", "the option requires an argument"),
        ("--http-port=x", "Invalid option value. Got x"),
        ("--http-port=2147483648", "Provided option value is out of bound. Got 2147483648"),
        (
            "--cuda-memory-pool-byte-size=1",
            "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument "
            "requires format <first>:<second>. Found: 1",
        ),
        ("--exit-on-error=perhaps", "invalid value for bool option: perhaps"),
        ("--model-control-mode=sometimes", "invalid argument for --model-control-mode"),
        ("positional", ""),
    ],
)
# row: CLI-07
def test_bad_flags(program: Program, tmp_path: pathlib.Path, flag: str, reason: str) -> None:
    """The exit code is 1. After the error, the command prints what the flag accepts, not all
    flags."""
    done = run(program, f"--model-repository={tmp_path}", flag)
    assert done.returncode == 1
    name = flag.split("=")[0]
    message = (
        f'Bad option: "{name}".\n{reason}\n' if reason else f"Unexpected argument: {name}\n"
    )
    if program.is_triton:
        assert name.lstrip("-") in done.stdout + done.stderr
    else:
        assert done.stderr.startswith(message)
        assert len(done.stderr.splitlines()) < 12


# row: CLI-01
def test_unknown_flags_print_the_usage(program: Program, tmp_path: pathlib.Path) -> None:
    """The usage text helps after a typing error."""
    done = run(program, f"--model-repository={tmp_path}", "--modell-repository=x")
    assert done.returncode == 1
    text = done.stdout + done.stderr
    assert "modell-repository" in text
    assert "Usage" in text or "usage" in text
    if not program.is_triton:
        assert text.splitlines()[2] == 'Did you mean "--model-repository"?'


@pytest.mark.galatea_only
def test_units_of_the_cache_are_not_read(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """As in Triton; a line at startup says so."""
    with start_server(tmp_path, "--cache-config=local,size=4096KB") as server:
        server.wait_until_ready()
        line = "'--cache-config=local,size=4096KB' means 4096 bytes: 'KB' is not read"
        assert line in server.log()


@pytest.mark.galatea_only
# row: CLI-02
def test_a_repository_is_required(program: Program) -> None:
    """The message names the flag."""
    done = run(program)
    assert done.returncode == 1
    assert "--model-repository must be specified" in done.stderr


def test_a_missing_repository(program: Program, tmp_path: pathlib.Path) -> None:
    """The message names the path."""
    done = run(program, f"--model-repository={tmp_path / 'absent'}")
    assert done.returncode == 1
    path = str(tmp_path / "absent")
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("error:")]
    assert lines == [f"error: creating server: Internal - failed to stat file {path}"]


@pytest.mark.parametrize("form", ["equals", "space"])
# row: CLI-01 CLI-03
def test_both_forms_of_values(start_server: StartServer, tmp_path: pathlib.Path, form: str) -> None:
    """--name=value and --name value."""
    flags = ["--id=blue"] if form == "equals" else ["--id", "blue"]
    with start_server(tmp_path, *flags) as server:
        server.wait_until_ready()
        assert server.get("/v2").json()["name"] == "blue"


@pytest.mark.parametrize("word", ["false", "FALSE", "off", "0"])
# row: CLI-27
def test_endpoints_can_be_left_out(
    start_server: StartServer, tmp_path: pathlib.Path, word: str
) -> None:
    """A disabled endpoint doesn't listen."""
    with start_server(tmp_path, f"--allow-metrics={word}", f"--allow-grpc={word}") as server:
        server.wait_until_ready()
        with pytest.raises(ConnectionRefusedError):
            server.metrics()
        with pytest.raises(ConnectionRefusedError):
            server.request("GET", "/", port=server.grpc_port)


def test_a_port_in_use(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The second server ends, and logs the reason."""
    with start_server(tmp_path) as first:
        first.wait_until_ready()
        with start_server(tmp_path, f"--http-port={first.http_port}") as second:
            assert second.wait_for_exit() == 1
            reason = f"Unavailable - Socket '127.0.0.1:{first.http_port}' already in use "
            assert second.log().splitlines()[-1].startswith("E")
            assert second.log().endswith(f'] "failed to start HTTP service: {reason}"\n')
        assert first.is_ready()


# row: CLI-15 CLI-12 CLI-13
def test_servers_share_a_port_if_all_agree(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Both serve the port, and when one ends, the other continues."""
    flags = ("--reuse-http-port=true", "--reuse-grpc-port=true")
    http_port, grpc_port, *metrics_ports = free_ports(4)
    first_ports = (http_port, grpc_port, metrics_ports[0])
    with start_server(tmp_path, *flags, ports=first_ports) as first:
        first.wait_until_ready()
        second_ports = (http_port, grpc_port, metrics_ports[1])
        with start_server(tmp_path, *flags, ports=second_ports) as second:
            announced = f"Started HTTPService at 127.0.0.1:{http_port}"
            wait_until(lambda: announced in second.log(), 60, "the second one is there")
            first.terminate()
            assert first.wait_for_exit() == 0
            second.wait_until_ready()
            # Without the flag, the port is already in use.
            with start_server(tmp_path, ports=(http_port, *free_ports(2))) as third:
                assert third.wait_for_exit() == 1
                assert "already in use" in third.log()
            assert second.is_ready()


@pytest.mark.parametrize(
    ("flags", "is_overridden"),
    [
        (["--strict-model-config=true"], False),
        (["--strict-model-config=false"], False),
        (["--strict-model-config=false", "--disable-auto-complete-config"], True),
        (["--disable-auto-complete-config", "--strict-model-config=false"], True),
        (["--strict-model-config=true", "--disable-auto-complete-config"], False),
    ],
)
# row: CLI-06
def test_the_deprecated_flag_for_complete_configurations(
    start_server: StartServer, tmp_path: pathlib.Path, flags: list[str], is_overridden: bool
) -> None:
    """Its warnings come before the log, without a log line's prefix."""
    deprecated = (
        "Warning: '--strict-model-config' has been deprecated! Please use "
        "'--disable-auto-complete-config' instead."
    )
    overriding = (
        "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of "
        "'--disable-auto-complete-config'!"
    )
    with start_server(tmp_path, *flags) as server:
        server.wait_until_ready()
        warnings = [line for line in server.log().splitlines() if line.startswith("Warning: ")]
    assert warnings == [deprecated, overriding][: 2 if is_overridden else 1]


# row: LOGF-01
def test_raw_log_messages(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """TRITON_SERVER_ESCAPE_LOG_MESSAGES=0 leaves out the quotes."""
    raw = {"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"}
    with start_server(tmp_path, environment=raw) as server:
        server.wait_until_ready()
        lines = server.log().splitlines()
        (line,) = (line for line in lines if "Started HTTPService at" in line)
        assert line.endswith(f"] Started HTTPService at 127.0.0.1:{server.http_port}")


# row: CLI-15
def test_equal_ports_are_refused(program: Program, tmp_path: pathlib.Path) -> None:
    """Two endpoints on one port are found before anything starts."""
    done = run(program, f"--model-repository={tmp_path}", "--http-port=7999", "--grpc-port=7999")
    assert done.returncode == 1
    message = "cannot listen to HTTP requests and GRPC requests at the same address and port"
    assert message in done.stdout + done.stderr


# row: CLI-26
def test_the_start_is_announced(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Scripts wait for these lines."""
    with start_server(tmp_path) as server:
        server.wait_until_ready()
        expected = [
            f"Started GRPCInferenceService at {server.grpc_url}",
            f"Started HTTPService at {server.http_url}",
            f"Started Metrics Service at 127.0.0.1:{server.metrics_port}",
        ]
        wait_until(lambda: all(line in server.log() for line in expected), 60, "all are announced")


# row: CLI-16 LOGF-03
def test_log_file(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The whole log goes to the file."""
    repository = tmp_path / "models"
    repository.mkdir()
    log = tmp_path / "server.log"
    with start_server(repository, f"--log-file={log}") as server:
        server.wait_until_ready()
        wait_until(lambda: "Started HTTPService" in log.read_text(), 60, "the start is logged")
        assert "Started HTTPService" not in server.log()


def test_a_log_file_that_can_not_be_written(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """The server serves, and the log goes to the console."""
    with start_server(tmp_path, f"--log-file={tmp_path}/nowhere/server.log") as server:
        server.wait_until_ready()
        assert "Started HTTPService" in server.log()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("other=1", "Invalid argument - Failed to initialize LocalCache: config didn't contain"),
        ("size=x", "Internal - Failed to initialize LocalCache: stoull"),
        ("size=-1", "Internal - Failed to initialize LocalCache: failed to allocate buffer"),
        ("size=0", "Internal - Failed to initialize LocalCache: Could not initialize buffer"),
    ],
)
def test_wrong_cache_settings(
    program: Program, tmp_path: pathlib.Path, setting: str, reason: str
) -> None:
    """The error is the same as Triton's."""
    done = run(program, f"--model-repository={tmp_path}", f"--cache-config=local,{setting}")
    assert done.returncode == 1
    assert f"error: creating server: {reason}" in done.stdout + done.stderr


def test_an_unknown_setting_of_a_host_policy(program: Program, tmp_path: pathlib.Path) -> None:
    """The check comes after the parsing of the command line, so there is no usage text."""
    done = run(program, f"--model-repository={tmp_path}", "--host-policy=a,gpus=1")
    assert done.returncode == 1
    text = done.stdout + done.stderr
    assert text.startswith("Failed to build Triton option:\nerror: setting host policy: Unsupp")
    assert "Usage" not in text


def test_two_caches(program: Program, tmp_path: pathlib.Path) -> None:
    flags = ("--cache-config=local,size=1048576", "--cache-config=redis,host=localhost")
    done = run(program, f"--model-repository={tmp_path}", *flags)
    assert done.returncode == 1
    reason = "Invalid argument - found multiple cache configurations, but only a single cache is"
    assert f"error: creating server: {reason} currently supported" in done.stdout + done.stderr


@pytest.mark.galatea_only
@pytest.mark.parametrize("endpoint", ["http", "metrics"])
def test_an_address_that_stands_for_nothing(
    program: Program, tmp_path: pathlib.Path, endpoint: str
) -> None:
    """Triton listens on an address that can't be reached."""
    done = run(program, f"--model-repository={tmp_path}", f"--{endpoint}-address=no.such.host")
    assert done.returncode == 1
    assert "can't listen at no.such.host:" in done.stdout + done.stderr


def test_unknown_cache_settings_are_ignored(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Settings that the local cache doesn't have."""
    flags = ("--cache-config=local,size=1048576x", "--cache-config=local,other=1")
    with start_server(tmp_path, *flags) as server:
        server.wait_until_ready()


@pytest.mark.galatea_only
# row: CLI-12
def test_smaller_input_limit(start_server: StartServer, models: pathlib.Path) -> None:
    """--http-max-input-size is obeyed."""
    with start_server(models, "--http-max-input-size=1000") as server:
        server.wait_until_ready()
        tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "BYTES"}
        small = server.infer("identity_bytes", {"inputs": [{**tensor, "data": ["x" * 100]}]})
        assert small.status == 200
        large = server.infer("identity_bytes", {"inputs": [{**tensor, "data": ["x" * 1000]}]})
        assert large.status == 400
        assert "http-max-input-size" in large.error()
