"""Checks that docs/compatibility.md agrees with its table and with the marks on the tests."""

from __future__ import annotations

import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests"))

import compatibility  # noqa: E402


def test_every_row_has_what_its_state_needs() -> None:
    """Each row has tests, a note, or a section of the page of differences."""
    assert compatibility.mistakes() == []


def test_the_page_is_up_to_date() -> None:
    """`python tests/compatibility.py` writes the page."""
    assert compatibility.PAGE.read_text() == compatibility.page()


def test_a_mark_must_be_above_a_test() -> None:
    """As a result, a renamed test keeps its mark, and a removed test leaves none."""
    lines = ["#[test]", "// row: CLS-01", "fn classes() {"]
    assert compatibility.marked(lines, 1, "a.rs") == "classes"
    far = [*[""] * 12, "// row: CLS-01", "fn helper() {"]
    for wrong in (far, [*[""] * 12, "# row: CLS-01", "", "def test_classes() -> None:"]):
        with pytest.raises(AssertionError, match=":13: "):
            compatibility.marked(wrong, 12, "a")
