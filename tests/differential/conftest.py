"""Starts our server over the models that the cases name."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Callable

import pytest

import exchange
from suites import SUITES

ROOT = pathlib.Path(__file__).resolve().parents[2]

Responses = dict[str, dict[str, object]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The server under test and the library that it loads."""
    parser.addoption("--galatea", type=pathlib.Path, default=ROOT / "target/debug/galatea")
    parser.addoption("--onnxruntime-library", type=pathlib.Path)


@pytest.fixture(scope="session")
def responses_to(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Responses]:
    """Our server's responses to every case of a suite, which runs once."""
    program = [str(request.config.getoption("--galatea"))]
    library = request.config.getoption("--onnxruntime-library")
    if library:
        program.append(f"--onnxruntime-library={library}")
    known: dict[str, Responses | Exception] = {}

    def exchange_suite(suite: str) -> Responses | Exception:
        try:
            return exchange.responses_of(program, SUITES[suite], tmp_path_factory.mktemp(suite))
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            return error

    def responses(suite: str) -> Responses:
        response = (
            known[suite] if suite in known else known.setdefault(suite, exchange_suite(suite))
        )
        if isinstance(response, Exception):
            raise response
        return response

    return responses
