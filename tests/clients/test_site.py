"""Checks docs as a site: it contains every page, and mdBook builds it without a dead link."""

from __future__ import annotations

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "site"))

import outside_links  # noqa: E402

DOCS = ROOT / "docs"
SECONDS_MAX = 120


def test_every_page_is_in_the_summary_once() -> None:
    """The chapters are those in the table of contents."""
    chapters = re.findall(r"\]\((\S+)\)", (DOCS / "SUMMARY.md").read_text())
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md"))
    pages.remove("SUMMARY.md")
    assert sorted(chapters) == pages


def test_every_page_is_in_the_index() -> None:
    """The README.md of docs links to all pages, and to the documents that are neither pages nor
    images."""
    linked = re.findall(r"\]\(([\w.-]+)", (DOCS / "README.md").read_text())
    hidden = {"README.md", "SUMMARY.md", "images"}
    assert {path.name for path in DOCS.iterdir()} - hidden <= set(linked)


def test_links_that_leave_docs_become_text() -> None:
    """Other links stay unchanged, and so does code."""
    text = "[a](../README.md#x) [`b`](c.md#d) [e](#f) [g](https://h/../i)\n```\n[a](../b)\n```\n"
    assert outside_links.without_outside_links(text, "page.md") == text.replace(
        "[a](../README.md#x)", '<span title="README.md">a</span>'
    )


class Page(html.parser.HTMLParser):
    """The links of a page, and their possible targets."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects both."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if tag == "a" and name == "href" and value:
                self.links.append(value)


def test_the_site_has_no_dead_link(tmp_path: pathlib.Path) -> None:
    """Skipped without mdBook, whose location may be in GALATEA_MDBOOK."""
    mdbook = os.environ.get("GALATEA_MDBOOK") or shutil.which("mdbook")
    if mdbook is None:
        pytest.skip("needs mdbook")
    command = [mdbook, "build", ROOT / "site", "--dest-dir", tmp_path]
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr and "ERROR" not in done.stderr, done.stderr
    pages = {path: Page(path) for path in tmp_path.glob("**/*.html")}
    assert len(pages) > 20
    dead = []
    for path, page in pages.items():
        if path.name in {"404.html", "print.html", "toc.html"}:
            continue
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
            target = path if not parts.path else target
            known = target in pages and (
                not parts.fragment or urllib.parse.unquote(parts.fragment) in pages[target].anchors
            )
            if not known and not (target.is_file() and not parts.fragment):
                dead.append(f"{path.name}: {link}")
    assert dead == []
