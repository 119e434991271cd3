"""Tests of the package's types: its own, those of the extension, and those that programs see."""

from __future__ import annotations

import pathlib
import re
import sys

import galatea
import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "tests/clients"))

from environments import TYPE_CHECKER, environment, run  # noqa: E402

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Each line with a comment `error: TEXT` is one that mypy must refuse so, and no other.
PROGRAM = """
import galatea
from galatea import tritonserver
from galatea.tritonfrontend import KServeHttp

options = galatea.Options(model_repository="models", log_info=1)  # error: expected "bool"
server: tritonserver.Server = galatea.Server(options).start(wait_until_ready=True)
server.load("words", {"config": 1.5})  # error: incompatible type "str": "float"
words = server.model("words", "1")  # error: expected "int"
for response in words.infer(inputs={"text": ["one"]}):
    response.outputs["output"].shape.append(1)  # error: has no attribute "append"
    text: str = response.request_id  # error: expression has type "str | None"
for response in words.async_infer(inputs={}):  # error: has no attribute "__iter__"
    pass
KServeHttp.Options(port="8000")  # error: expected "int"
galatea.Metric(galatea.MetricKind.COUNTER)  # error: expected "MetricFamily"
error: type[galatea.TritonError] = galatea.NotFoundError
server.stopp()  # error: maybe "stop"
"""


@pytest.fixture(scope="module")
def python() -> pathlib.Path:
    """An environment with mypy."""
    return environment("stubs", *TYPE_CHECKER)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """mypy's cached knowledge of numpy, which the tests share."""
    return tmp_path_factory.mktemp("mypy")


def check(python: pathlib.Path, cache: pathlib.Path, program: pathlib.Path) -> tuple[int, str]:
    """mypy's findings in a program that uses the package."""
    site = pathlib.Path(galatea.__file__).parents[1]
    options = ("--strict", f"--cache-dir={cache}")
    return run(python, "-m", "mypy", *options, program, MYPYPATH=str(site))


def test_the_package_is_strictly_typed(python: pathlib.Path, cache: pathlib.Path) -> None:
    settings = ROOT / "python/pyproject.toml"
    package = ROOT / "python/galatea"
    options = (f"--config-file={settings}", f"--cache-dir={cache}")
    status, output = run(python, "-m", "mypy", *options, package)
    assert status == 0, output


def test_the_types_of_the_extension_are_true(python: pathlib.Path, cache: pathlib.Path) -> None:
    """stubtest compares them with the extension."""
    site = pathlib.Path(galatea.__file__).parents[1]
    status, output = run(
        python, "-m", "mypy.stubtest", "--concise", "galatea._galatea",
        PYTHONPATH=str(site), MYPY_CACHE_DIR=str(cache),
    )
    assert status == 0, output


def test_the_page_is_strictly_typed(
    python: pathlib.Path, cache: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n".join(BLOCK.findall((ROOT / "docs/python_api.md").read_text())))
    status, output = check(python, cache, program)
    assert status == 0, output


def test_mistakes_in_programs_are_found(
    python: pathlib.Path, cache: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    _, output = check(python, cache, program)
    found = {
        int(line): text
        for line, text in re.findall(r"^.*program\.py:(\d+): error: (.*)$", output, re.MULTILINE)
    }
    expected = {
        number: line.split("# error: ")[1]
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "# error: " in line
    }
    assert sorted(found) == sorted(expected), output
    for number, text in expected.items():
        assert text in found[number]
