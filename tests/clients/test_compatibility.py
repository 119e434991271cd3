"""docs/compatibility.md agrees with its table and with the marks at the tests."""

from __future__ import annotations

import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests"))

import compatibility  # noqa: E402


def test_every_row_has_what_its_state_needs() -> None:
    """Tests, a note, or a section of the page of differences."""
    assert compatibility.mistakes() == []


def test_the_page_is_up_to_date() -> None:
    """`python tests/compatibility.py` writes it."""
    assert compatibility.PAGE.read_text() == compatibility.page()


def test_a_mark_must_be_above_a_test() -> None:
    """So a test that is renamed takes its mark along, and one that is removed leaves none."""
    lines = ["#[test]", "// row: CLS-01", "fn classes() {"]
    assert compatibility.marked(lines, 1, "a.rs") == "classes"
    far = [*[""] * 12, "// row: CLS-01", "fn helper() {"]
    for wrong in (far, [*[""] * 12, "# row: CLS-01", "", "def test_classes() -> None:"]):
        with pytest.raises(AssertionError, match=":13: "):
            compatibility.marked(wrong, 12, "a")
