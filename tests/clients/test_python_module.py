"""Tests of the module for Python models: the type and text of each call's result are the
same as in Triton."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from module_cases import CONFIG, FLAGS, ask, unpack
from python_backend import (
    PythonServer,
    start_python,  # noqa: F401
    write_model,
)

#: Recorded from Triton 2.51, whose stub has numpy 1.
GOLDEN = (
    pathlib.Path(__file__).resolve().parents[1]
    / "differential" / "goldens" / "triton-2.51-python-module.json"
)


def expected(text: str) -> str:
    """The differences of Triton 2.73 from 2.51, and of numpy 2 from 1."""
    text = re.sub(r"\b(List|Set|Tuple)\[", lambda found: f"{found[1].lower()}[", text)
    text = text.replace(
        "error: c_python_backend_utils.TritonError = None)",
        "error: c_python_backend_utils.TritonError = None, parameters: object = None)",
    )
    text = text.replace(
        "Unable to cast Python instance to C++ type (",
        "Unable to cast Python instance of type <class 'TYPE'> to C++ type '?' (",
    )
    return text.replace("<class 'numpy.bool_'>", "<class 'numpy.bool'>")


def simple(text: str) -> str:
    """A text without the parts that depend on numpy's version or aren't in the golden file."""
    text = re.sub(r"instance of type <class '[^']*'>", "instance of type <class 'TYPE'>", text)
    return text.replace("<class 'numpy.bool_'>", "<class 'numpy.bool'>")


def test_calls_of_the_module(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
) -> None:
    reason = "some calls leave the stub's memory broken; module_cases.py records them"
    if not start_python.is_own:
        pytest.skip(reason)
    write_model(tmp_path, "probe", CONFIG, "probe")
    golden = unpack(json.loads(GOLDEN.read_text()))
    with start_python(tmp_path, *FLAGS) as server:
        found = ask(f"http://{server.wait_until_ready().http_url}", "probe")
    assert len(golden) > 2500
    for expression, text in golden.items():
        given = found[expression]
        assert given is not None and simple(given) == expected(text), expression
