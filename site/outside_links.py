"""A preprocessor of mdBook: links that leave docs, such as those to sources, become their text.

A page of the site can't reach these files. The text shows the file's path to a pointer above it.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
import sys
from typing import Any

LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def without_outside_links(text: str, path: str) -> str:
    """The text of the page at `path`, which is relative to docs."""

    def replaced(match: re.Match[str]) -> str:
        label, target = match[1], match[2]
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        file = posixpath.join("docs", posixpath.dirname(path), target.split("#")[0])
        file = posixpath.normpath(file)
        if file.startswith("docs/"):
            return match[0]
        return f'<span title="{html.escape(file)}">{label}</span>'

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)


def walk(items: list[Any]) -> None:
    """Changes all chapters."""
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            chapter["content"] = without_outside_links(chapter["content"], chapter["path"] or "")
            walk(chapter["sub_items"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    _, book = json.load(sys.stdin)
    walk(book.get("items") or book.get("sections") or [])
    json.dump(book, sys.stdout)
