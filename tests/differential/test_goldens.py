"""Compares our responses with Triton's."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from cases import Case
from cloud_cases import REDIRECT
from suites import SUITES

EVERY_CASE = [
    pytest.param(suite, case, id=case.name if suite == "basic" else f"{suite}: {case.name}")
    for suite, definition in SUITES.items()
    for case in definition.cases()
]


@functools.cache
def goldens(suite: str) -> dict[str, Any]:
    """Triton's recorded responses."""
    return json.loads(SUITES[suite].golden_path.read_text())


def is_error(reply: dict[str, Any]) -> bool:
    """Returns true if a response reports a failure, over HTTP or gRPC."""
    return reply["status"] not in (200, "OK")


def error_text(reply: dict[str, Any]) -> str | None:
    """The reason why a request failed."""
    body = reply.get("json")
    return body.get("error") if isinstance(body, dict) else reply.get("text")


def has_message(reply: dict[str, Any]) -> bool:
    """Returns true if a failure has a message."""
    return bool(error_text(reply))


def comparable(case: Case, reply: dict[str, Any]) -> dict[str, Any]:
    """The response without the program's own name and version."""
    is_redirect = (REDIRECT, "v2") in case.headers
    if case.path == "/v2" or is_redirect or case.rpc == "ServerMetadata":
        document = dict(reply.get("json") or {})
        document.pop("version", None)
        return reply | {"json": document}
    if isinstance(reply.get("json"), list):  # the repository index comes in any order
        return reply | {"json": sorted(reply["json"], key=lambda entry: entry["name"])}
    if case.rpc == "RepositoryIndex":
        models = sorted(reply["json"].get("models", []), key=lambda entry: entry["name"])
        return reply | {"json": {"models": models}}
    if (case.method, case.path) == ("GET", "/models"):  # and so does SageMaker's list
        models = sorted(reply["json"]["models"], key=json.dumps)
        return reply | {"json": {"models": models}}
    if case.any_order:
        return reply | {"json": sorted_outputs(reply["json"])}
    return reply


def sorted_outputs(response: dict[str, Any]) -> dict[str, Any]:
    """An inference response, with its outputs and their contents by name."""
    contents = response.get("raw_output_contents") or [None] * len(response["outputs"])
    pairs = sorted(
        zip(response["outputs"], contents, strict=True), key=lambda pair: pair[0]["name"]
    )
    return response | {"outputs": pairs, "raw_output_contents": None}


def compare_streams(ours: dict[str, Any], golden: dict[str, Any]) -> None:
    """The status and all responses are equal."""
    assert ours["status"] == golden["status"], (ours, golden)
    assert ours.get("text") == golden.get("text"), (ours, golden)
    assert ours["responses"] == golden["responses"]


@pytest.mark.parametrize(("suite", "case"), EVERY_CASE)
def test_responds_like_triton(
    suite: str, case: Case, responses_to: Callable[[str], dict[str, Any]]
) -> None:
    """The status and headers are equal; on success, so are the JSON and bytes; on failure, so
    is the text."""
    ours = responses_to(suite)[case.name]
    if case.ours:
        assert ours["status"] == case.ours_status, (case.ours, ours)
        return
    golden = goldens(suite)[case.name]
    if case.messages is not None:
        compare_streams(ours, golden)
        return
    if is_error(golden):
        assert ours["status"] == golden["status"], (ours, golden)
        if not case.ours_headers:
            assert ours.get("headers") == golden.get("headers"), (ours, golden)
        if case.ours_text:
            assert has_message(ours), (ours, golden)
        else:
            assert error_text(ours) == error_text(golden), (ours, golden)
        return
    assert comparable(case, ours) == comparable(case, golden)
