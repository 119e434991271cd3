"""Everything that these pages of the documentation show works as they say."""

from __future__ import annotations

import pathlib
import re

import pytest

from conftest import ROOT, StartServer
from pages import Reader
from perf_tools import environment, perf_analyzer
from server import Program

pytestmark = pytest.mark.galatea_only

PAGES = {"quick_start.md": 15, "migration.md": 7, "performance.md": 4}


@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_shows(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path, page: str
) -> None:
    """Commands succeed, and print what stands behind them."""
    reader = Reader(program, start_server, tmp_path)
    if "\nperf_analyzer -" in (ROOT / "docs" / page).read_text():
        reader.link("perf_analyzer", *perf_analyzer_and_variables())
    assert reader.read(page) >= PAGES[page]


def perf_analyzer_and_variables() -> tuple[pathlib.Path, dict[str, str]]:
    """The program, without which the test is skipped, and what it needs."""
    program = perf_analyzer()
    return program, environment(program)


def test_figures_are_those_of_the_results() -> None:
    """Each cell of docs/performance.md stands in a row of its workload."""
    page = (ROOT / "docs" / "performance.md").read_text()
    results = (ROOT / "bench" / "RESULTS.md").read_text().splitlines()
    rows = re.findall(r"^\| .+ \| ([\w-]+) \| (.+=.+) \| (.+=.+) \|$", page, re.MULTILINE)
    assert len(rows) > 10
    for workload, *cells in rows:
        of_it = [line for line in results if line.startswith(f"| {workload} |")]
        assert any(all(f" {cell} " in line for cell in cells) for line in of_it), workload
