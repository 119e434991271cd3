"""Tests of the systemd service, using systemd's own tool."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess

import pytest
from conftest import DEPLOY, StartServer, find_program

UNIT = DEPLOY / "systemd" / "galatea.service"

#: Tenths of what `systemd-analyze security` calls exposure, from 0 to 100. Up to 20 is "OK".
EXPOSURE_MAX = 15


def settings(name: str) -> list[str]:
    """The values of a setting, which may occur several times."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


@pytest.fixture
def unit(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    """The file with the program under test, and without the manual page, which isn't
    installed."""
    program = request.config.getoption("--galatea").resolve()
    text = UNIT.read_text().replace("/usr/local/bin/galatea", str(program))
    path = tmp_path / UNIT.name
    path.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE))
    return path


def analyze(*arguments: str) -> str:
    """The output of systemd's tool, which must succeed."""
    command = [find_program("systemd-analyze"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_knows_every_setting(unit: pathlib.Path) -> None:
    assert analyze("verify", str(unit)) == ""


def test_a_misspelled_setting_is_noticed(unit: pathlib.Path) -> None:
    unit.write_text(unit.read_text().replace("ProtectSystem=", "ProtectSytem="))
    assert "ProtectSytem" in analyze("verify", str(unit))


def test_the_service_exposes_little(unit: pathlib.Path) -> None:
    analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", str(unit))


def test_an_open_service_is_noticed(unit: pathlib.Path) -> None:
    unit.write_text(re.sub(r"^SystemCallFilter=.*\n", "", unit.read_text(), flags=re.MULTILINE))
    with pytest.raises(AssertionError):
        analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", str(unit))


def test_requests_may_finish() -> None:
    """systemd waits longer than the server does."""
    (command,) = settings("ExecStart")
    (seconds,) = re.findall(r"--exit-timeout-secs=(\d+)", command)
    assert int(settings("TimeoutStopSec")[0]) > int(seconds)


def test_the_server_takes_the_flags(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The settings of the service, and those that its comments show."""
    (command,) = settings("ExecStart")
    (shown,) = re.findall(r'GALATEA_FLAGS="(.*)"', UNIT.read_text())
    _, repository, *flags, variable = shlex.split(command)
    assert repository.startswith("--model-repository=") and variable == "$GALATEA_FLAGS"
    with start_server(tmp_path, *flags, *shown.split()) as server:
        assert server.get("/v2/health/ready").status == 200
