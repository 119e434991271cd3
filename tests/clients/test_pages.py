"""Everything that these pages of the documentation show works as they say."""

from __future__ import annotations

import pathlib

import pytest

from conftest import StartServer
from pages import Reader
from server import Program

pytestmark = pytest.mark.galatea_only

PAGES = {"quick_start.md": 15}


@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_shows(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path, page: str
) -> None:
    """Commands succeed, and print what stands behind them."""
    assert Reader(program, start_server, tmp_path).read(page) >= PAGES[page]
