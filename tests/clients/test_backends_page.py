"""docs/backends.md: each example writes a model that doubles its input, and serves it."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from python_backend import interpreter_flag
from server import Program
from test_serve_command import serving, try_request

pytestmark = pytest.mark.galatea_only

PAGE = (ROOT / "docs" / "backends.md").read_text()
EXAMPLES = PAGE.split("### From installation to a response\n")[1].split("\n## ")[0]
#: The beginning of each example, and the packages that it needs.
PARTS = {
    "ONNX:": ["onnx", "onnxruntime"],
    "OpenVINO:": ["openvino"],
    "PyTorch, a compiled model.": ["torch"],
    "PyTorch, a TorchScript model,": ["torch"],
    "TensorFlow.": ["tensorflow"],
    "A forest:": ["xgboost"],
    "A function in Python,": [],
}
TORCH = {"GALATEA_TORCH_PYTHON", "GALATEA_TEST_TORCH"}


def blocks(beginning: str) -> tuple[str, str]:
    """The code in Python and the arguments of `galatea serve` in an example."""
    _, rest = EXAMPLES.split(f"\n{beginning}")
    code = re.search(r"^```python\n(.*?)^```", rest, re.MULTILINE | re.DOTALL)
    command = re.search(r"^galatea serve (.*)$", rest, re.MULTILINE)
    assert code is not None and command is not None
    return code[1], command[1]


def interpreter(packages: list[str]) -> str:
    """A Python with the packages, or the test is skipped."""
    if packages == ["torch"]:
        if not TORCH <= os.environ.keys():
            pytest.skip("needs a Python with PyTorch in GALATEA_TORCH_PYTHON, and GALATEA_TEST_TORCH")
        return os.environ["GALATEA_TORCH_PYTHON"]
    for package in packages:
        found = importlib.util.find_spec(package)
        # A folder of tests with the package's name is found, too, but has no file.
        if found is None or found.origin is None:
            pytest.skip(f"the package {package} is not installed")
    return sys.executable


def flags(packages: list[str]) -> list[str]:
    """The flags that name what a user's environment has."""
    if packages == ["torch"]:
        return [f"--torch-library={os.environ['GALATEA_TEST_TORCH']}"]
    if packages == ["openvino"]:
        found = importlib.util.find_spec("openvino")
        assert found is not None and found.origin is not None
        libraries = (pathlib.Path(found.origin).parent / "libs").glob("libopenvino_c.so*")
        return [f"--openvino-library={max(libraries)}"]
    return [] if packages else [interpreter_flag()]


def test_all_examples_are_known() -> None:
    """Guards the next test: a change of the page's form must not leave out an example."""
    assert EXAMPLES.count("\ngalatea serve ") == len(PARTS)


@pytest.mark.parametrize("beginning", PARTS)
def test_an_example_of_the_page(program: Program, tmp_path: pathlib.Path, beginning: str) -> None:
    """The request that the command prints doubles its input."""
    packages = PARTS[beginning]
    python = interpreter(packages)
    code, argument = blocks(beginning)
    if packages:
        # TorchScript reads the source of a class.
        (tmp_path / "write.py").write_text(code)
        subprocess.run([python, "write.py"], cwd=tmp_path, check=True, capture_output=True)
    else:
        (tmp_path / argument).write_text(code)
    with serving(program, *flags(packages), tmp_path / argument) as ready:
        (one,) = ready["models"]
        assert one["name"] == "double"
        reply = json.loads(try_request(one, tmp_path))
    (output,) = reply["outputs"]
    assert output["data"] and (beginning == "A forest:" or {value for value in output["data"]} == {1})
