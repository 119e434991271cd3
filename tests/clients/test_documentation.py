"""Checks that the settings in docs/schedulers.md are accepted, and that the tests it names
exist."""

from __future__ import annotations

import pathlib
import re

import pytest

from conftest import ROOT, StartServer

pytestmark = pytest.mark.galatea_only

PAGE = (ROOT / "docs" / "schedulers.md").read_text()
# Every second part is between fences.
BLOCKS = re.split(r"^```\w*\n", PAGE, flags=re.MULTILINE)[1::2]
BEGINNINGS = ("backend", "dynamic_batching", "sequence_batching")
SETTINGS = [block for block in BLOCKS if block.startswith(BEGINNINGS)]
BASE = """\
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def test_the_page_has_settings() -> None:
    """This guards the next test: if the page's format changes, the test must not end up
    without settings."""
    assert len(SETTINGS) == 4


def test_the_settings_are_accepted(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Each block loads in an otherwise minimal model."""
    for number, block in enumerate(SETTINGS):
        (tmp_path / f"model_{number}" / "1").mkdir(parents=True)
        text = block if block.startswith("backend") else BASE + block
        (tmp_path / f"model_{number}" / "config.pbtxt").write_text(text)
    with start_server(tmp_path) as server:
        server.wait_until_ready()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", PAGE))))
def test_the_named_tests_exist(name: str) -> None:
    """Each name is a test in a file of this directory."""
    folder = pathlib.Path(__file__).parent
    assert any(f"def {name}(" in path.read_text() for path in folder.glob("test_*.py"))


def test_users_read_of_no_doors() -> None:
    """It is a word in the code: HTTP and gRPC services. Paths may contain it."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if page.name not in ("glossary.md", "compatibility.md"):
            words = re.findall(r"\bdoors?\b", page.read_text(), re.IGNORECASE)
            assert not words, page
