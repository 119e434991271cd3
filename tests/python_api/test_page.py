"""Checks that the examples in docs/python_api.md work as described."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import galatea
import pytest
from conftest import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Commands that other tests run, those of the wheel, and the tests themselves.
ELSEWHERE = ("cargo ", "git clone", "pip install", "pytest ")
MARK = "-- the end of a block --"


def test_what_the_page_shows(pytestconfig: pytest.Config, tmp_path: pathlib.Path) -> None:
    program = pytestconfig.getoption("--galatea").resolve(strict=True)
    source, expected = [], []
    for kind, text in BLOCK.findall((ROOT / "docs/python_api.md").read_text()):
        if kind == "python":
            source.append(f"{text}print({MARK!r})\n")
            expected.append("")
        elif kind == "text":
            expected[-1] = text
        elif not text.startswith(ELSEWHERE):
            name, *arguments = text.split()
            assert (kind, name) == ("sh", "galatea")
            subprocess.run([program, *arguments], cwd=tmp_path, check=True, capture_output=True)
    assert len(source) > 10
    path = tmp_path / "page.py"
    path.write_text("\n".join(source))
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(galatea.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(f"{MARK}\n")[:-1] == expected
