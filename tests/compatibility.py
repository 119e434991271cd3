"""Writes docs/compatibility.md: Triton's features, their state, and the tests that demonstrate
them.

The rows are in compatibility.toml. Tests name the rows that they demonstrate in a comment directly
above their first line, `# row: CLS-01 CLS-02` (`//` in Rust). So do the suites in
tests/differential, and scripts that are steps of `cargo xtask test`, at their beginning.

    python tests/compatibility.py
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "compatibility.toml"
PAGE = ROOT / "docs" / "compatibility.md"
DIFFERENCES = ROOT / "docs" / "differences.md"

#: Each state with what it means. All but the last one need a test.
STATES = {
    "works": "as in Triton",
    "differs": "works, and an intended difference is listed in [differences.md](differences.md)",
    "in part": "works but for what the row names",
    "refused": "refused with an error that names it",
    "not yet": "does not exist",
}
MARK = re.compile(r"\s*(?:#|//) row: (.+)")
SOURCES = ("tests/**/*.py", "crates/**/*.rs")
#: What a mark may stand above.
TEST = re.compile(r"(?:async )?def (test_\w+)\(|(?:pub )?(?:async )?fn (\w+)\(")
SUITE = re.compile(r'"([\w-]+)": (?:Suite)?\(')


@dataclasses.dataclass(frozen=True)
class Row:
    """A Triton feature."""

    id: str
    title: str
    state: str
    #: What differs or is missing.
    note: str
    #: The section of differences.md.
    section: str


@dataclasses.dataclass(frozen=True)
class Test:
    """A test, a suite of recorded exchanges, or a script."""

    path: str
    name: str


def areas() -> dict[str, list[Row]]:
    """The rows of each area, by the area's title."""
    table = tomllib.loads(TABLE.read_text())
    found: dict[str, list[Row]] = {}
    for prefix, area in table.items():
        found[area["title"]] = [
            Row(
                f"{prefix}-{number}",
                row["title"],
                row.get("state", "works"),
                row.get("note", ""),
                row.get("section", ""),
            )
            for number, row in area["rows"].items()
        ]
    return found


def marks() -> dict[str, list[Test]]:
    """The tests of each row."""
    found = collections.defaultdict(list)
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            if path != pathlib.Path(__file__).resolve():
                for identifier, test in marks_in(path):
                    found[identifier].append(test)
    return found


def marks_in(path: pathlib.Path) -> Iterator[tuple[str, Test]]:
    """Rows and tests of one file."""
    where = path.relative_to(ROOT).as_posix()
    lines = path.read_text().splitlines()
    for index, line in enumerate(lines):
        match = MARK.fullmatch(line)
        if match is None:
            continue
        name = "" if index == 0 else marked(lines, index, where)
        for identifier in match[1].split():
            yield identifier, Test(where, name)


def marked(lines: list[str], index: int, where: str) -> str:
    """The start of the line below a mark."""
    below = lines[index + 1].strip() if index + 1 < len(lines) else ""
    test, suite = TEST.match(below), SUITE.match(below)
    if test and test[2]:
        before = lines[max(0, index - 12) : index]
        assert any("#[test]" in one or "::test]" in one or "::test(" in one for one in before), (
            f"{where}:{index + 1}: the mark is above a function that is no test"
        )
    if test:
        return test[1] or test[2]
    assert suite, f"{where}:{index + 1}: no test begins below the mark"
    return suite[1] if where.endswith("suites.py") else f"metrics-{suite[1]}"


def mistakes() -> list[str]:
    """The errors in the table and the marks."""
    shown = marks()
    rows = [row for area in areas().values() for row in area]
    found = [f"{one}: a test is marked with this unknown row" for one in shown.keys() - {
        row.id for row in rows
    }]
    sections = set(re.findall(r"\(#([\w-]+)\)", DIFFERENCES.read_text()))
    for row in rows:
        if row.state not in STATES:
            found.append(f"{row.id}: '{row.state}' is no state")
        elif (row.state == "not yet") == bool(shown.get(row.id)):
            found.append(f"{row.id}: '{row.state}' with the tests {shown.get(row.id, [])}")
        if row.state != "works" and not row.note:
            found.append(f"{row.id}: '{row.state}' without a note")
        if (row.state == "differs") != bool(row.section) or row.section not in {"", *sections}:
            found.append(f"{row.id}: '{row.section}' is not the section of a difference")
    return sorted(found)


def page() -> str:
    """The text of docs/compatibility.md."""
    shown = marks()
    rows = [row for area in areas().values() for row in area]
    counts = collections.Counter(row.state for row in rows)
    lines = [
        "# Compatibility",
        "",
        "<!-- Written by tests/compatibility.py. -->",
        "",
        f"Triton's features as {len(rows)} rows, the state of each in Galatea, and the tests that",
        "show it. The features are those of Triton 2.73 (release 26.09). The tests run with",
        "`cargo xtask test --all`, but for those of programs that a machine lacks.",
        "[CONTRIBUTING](../CONTRIBUTING.md#mark-what-a-test-shows) says how a test is marked.",
        "",
        "| state | rows | meaning |",
        "|---|---|---|",
        *(f"| {state} | {counts[state]} | {meaning} |" for state, meaning in STATES.items()),
        "",
        "| area | " + " | ".join(STATES) + " |",
        "|---|" + "---|" * len(STATES),
    ]
    for title, members in areas().items():
        per_state = collections.Counter(row.state for row in members)
        cells = " | ".join(str(per_state[state] or "") for state in STATES)
        lines.append(f"| [{title}](#{anchor(title)}) | {cells} |")
    for title, members in areas().items():
        lines += ["", f"## {title}", ""]
        lines += ["| row | feature | state | shown by |", "|---|---|---|---|"]
        lines += [line_of(row, shown.get(row.id, [])) for row in members]
    return "\n".join(lines) + "\n"


def line_of(row: Row, tests: list[Test]) -> str:
    """A row of the table."""
    state = f"[differs](differences.md#{row.section})" if row.section else row.state
    note = f": {row.note}" if row.note else ""
    return f"| {row.id} | {row.title} | {state}{note} | {', '.join(map(link, tests))} |"


def link(test: Test) -> str:
    """A link to the test's file."""
    name = test.name or pathlib.PurePath(test.path).name
    if test.path.endswith(("suites.py", "metrics_cases.py")):
        return f"[suite `{name}`](../{test.path})"
    return f"[`{name}`](../{test.path})"


def anchor(title: str) -> str:
    """The anchor of a heading, as Markdown renderers create it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    wrong = mistakes()
    PAGE.write_text(page())
    sys.exit("\n".join(wrong) if wrong else 0)
