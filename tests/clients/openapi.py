"""The paths in docs/openapi.yaml, for tests that go through all of them."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import ROOT

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

DOCUMENT = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
METHODS = ("get", "post", "put", "delete")
#: What stands for the names in a path.
NAMES = {"model": "m", "version": "1", "region": "r", "repository": "s"}

#: The categories of restricted APIs by the last word of a path where it decides, and by tag.
_CATEGORIES_OF_WORDS = {
    "config": "model-config",
    "logging": "logging",
    "setting": "trace",
    "traffic": "trace",
}
_CATEGORIES_OF_TAGS = {
    "health": "health",
    "inference": "inference",
    "metadata": "metadata",
    "repository": "model-repository",
    "shared memory": "shared-memory",
    "statistics": "statistics",
}


def path_of(template: str) -> str:
    """A path with names in place of its parameters."""
    return template.format(**NAMES)


def operations(template: str) -> dict[str, dict[str, Any]]:
    """The operations of a path, by method."""
    return {name: one for name, one in DOCUMENT["paths"][template].items() if name in METHODS}


def category_of(template: str) -> str:
    """The category of restricted APIs that a path belongs to."""
    (tag,) = {tag for one in operations(template).values() for tag in one["tags"]}
    return _CATEGORIES_OF_WORDS.get(template.rsplit("/", 1)[-1]) or _CATEGORIES_OF_TAGS[tag]


def is_own(template: str) -> bool:
    """Returns true if Triton lacks the path."""
    return any("Triton does not have it" in one["summary"] for one in operations(template).values())
