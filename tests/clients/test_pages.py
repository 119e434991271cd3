"""Checks that everything shown on these documentation pages works as described."""

from __future__ import annotations

import pathlib
import re

import onnx
import pytest
from onnx import TensorProto, helper

from conftest import ROOT, StartServer
from pages import Reader
from perf_tools import environment, perf_analyzer
from server import Program

pytestmark = pytest.mark.galatea_only

PAGES = {"quick_start.md": 19, "migration.md": 7, "performance.md": 4, "commands.md": 8}


@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_shows(
    program: Program, start_server: StartServer, tmp_path: pathlib.Path, page: str
) -> None:
    """Commands succeed, and print the text that follows them."""
    reader = Reader(program, start_server, tmp_path)
    if page == "commands.md":
        write_examples(tmp_path / "work")
    if "\nperf_analyzer -" in (ROOT / "docs" / page).read_text():
        reader.link("perf_analyzer", *perf_analyzer_and_variables())
    assert reader.read(page) >= PAGES[page]


def write_examples(folder: pathlib.Path) -> None:
    """The prerequisites of the page about commands."""
    rows = ["batch", 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "scale",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, rows)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, rows)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, folder / "scale.onnx")
    (folder / "models" / "scale" / "1").mkdir(parents=True)
    onnx.save(model, folder / "models" / "scale" / "1" / "model.onnx")
    (folder / "traces.json").write_text("[]")


def perf_analyzer_and_variables() -> tuple[pathlib.Path, dict[str, str]]:
    """The program, without which the test is skipped, and the files that it needs."""
    program = perf_analyzer()
    return program, environment(program)


def test_figures_are_those_of_the_results() -> None:
    """Each cell of docs/performance.md occurs in a row of its workload."""
    page = (ROOT / "docs" / "performance.md").read_text()
    results = (ROOT / "bench" / "RESULTS.md").read_text().splitlines()
    rows = re.findall(r"^\| .+ \| ([\w-]+) \| (.+=.+) \| (.+=.+) \|$", page, re.MULTILINE)
    assert len(rows) > 10
    for workload, *cells in rows:
        of_it = [line for line in results if line.startswith(f"| {workload} |")]
        assert any(all(f" {cell} " in line for cell in cells) for line in of_it), workload
