"""Our answers beside those of the original."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from cases import Case, all_cases

GOLDENS = json.loads(
    (pathlib.Path(__file__).parent / "goldens" / "triton-2.51.json").read_text()
)


def is_error(answer: dict[str, Any]) -> bool:
    """Whether an answer reports a failure, over HTTP or gRPC."""
    return answer["status"] not in (200, "OK")


def has_message(answer: dict[str, Any]) -> bool:
    """Whether a failure says why."""
    body = answer.get("json")
    text = body.get("error") if isinstance(body, dict) else answer.get("text")
    return bool(text)


def comparable(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without what names the program itself."""
    if case.path == "/v2" or case.rpc == "ServerMetadata":
        document = dict(answer.get("json") or {})
        document.pop("version", None)
        return answer | {"json": document}
    if isinstance(answer.get("json"), list):  # the repository index comes in any order
        return answer | {"json": sorted(answer["json"], key=lambda entry: entry["name"])}
    if case.rpc == "RepositoryIndex":
        models = sorted(answer["json"].get("models", []), key=lambda entry: entry["name"])
        return answer | {"json": {"models": models}}
    return answer


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_answers_like_the_original(case: Case, answers: dict[str, dict[str, Any]]) -> None:
    """Equal status; equal headers, JSON and bytes on success; a message on failure."""
    ours = answers[case.name]
    if case.ours:
        assert ours["status"] == case.ours_status, (case.ours, ours)
        return
    golden = GOLDENS[case.name]
    if is_error(golden):
        assert ours["status"] == golden["status"], (ours, golden)
        if has_message(golden):
            assert has_message(ours), (ours, golden)
        return
    assert comparable(case, ours) == comparable(case, golden)
