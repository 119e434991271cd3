"""Serves Python models with Triton's own program and Python backend, both on our library.
The tests are the same as in tests/clients, which start the program.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from test_triton_program import PACKAGES, install_program

pytestmark = pytest.mark.skipif(
    not PACKAGES, reason="needs Triton's packages in GALATEA_TRITON_PACKAGES"
)

CLIENTS = pathlib.Path(__file__).resolve().parents[1] / "clients"


@pytest.mark.parametrize("what", ["models", "calls"])
def test_models_in_python(tmp_path: pathlib.Path, library: pathlib.Path, what: str) -> None:
    program, environment = install_program(tmp_path, library)
    libraries = shlex.quote(environment["LD_LIBRARY_PATH"])
    start = tmp_path / "start"
    start.write_text(
        f'#!/bin/bash\nLD_LIBRARY_PATH={libraries} exec {shlex.quote(str(program))} "$@"\n'
    )
    start.chmod(0o755)
    command = [sys.executable, "-m", "pytest", "-q", CLIENTS / f"test_python_{what}.py"]
    command += ["--triton", "--galatea", start, "--basetemp", tmp_path / "tests"]
    # Our own Python backend serves the models too.
    environment = {**os.environ, "GALATEA_LIBRARY_UNDER_TRITON": "1"}
    done = subprocess.run(
        command, cwd=CLIENTS, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-20000:]
    assert "passed" in done.stdout
