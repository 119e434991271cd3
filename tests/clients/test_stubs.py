"""Tests of workers/stubs: types of `triton_python_backend_utils`, installed and used by mypy."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
import sys

import pytest

from conftest import ROOT
from environments import TYPE_CHECKER, environment, run

pytestmark = pytest.mark.galatea_only

STUBS = ROOT / "workers" / "stubs"
WORKER = ROOT / "workers" / "python"
MODULE = STUBS / "triton_python_backend_utils-stubs" / "__init__.pyi"

#: Each line with a comment `error: TEXT` is one that mypy must refuse so, and no other.
MODEL = '''
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size("8")  # error: incompatible type "str"; expected "int"
        return config

    def initialize(self, args: dict[str, str]) -> None:
        family = pb_utils.MetricFamily("name", "text", pb_utils.MetricFamily.COUNTER)
        self.counter = family.Metric(labels={"a": "b"})
        self.counter.add(1)  # error: "Metric" has no attribute "add"
        pb_utils.Logger.log("text", pb_utils.Logger.WARNING)
        pb_utils.Logger.log_warning("text")  # error: "log_warning"

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            wrong: str = pb_utils.get_input_tensor_by_name(request, 1)  # error: "int"
            error = pb_utils.TritonError("text", pb_utils.TritonError.INVALID_ARG)
            pb_utils.Tensor("OUT", [1, 2])  # error: "list[int]"; expected "ndarray
            tensor = pb_utils.Tensor("OUT", values + np.float32(1))
            responses.append(pb_utils.InferenceResponse([tensor], error))
            pb_utils.InferenceResponse(output_tensors=tensor)  # error: "Tensor"; expected
        return responses

    async def call(self, tensor: pb_utils.Tensor) -> Any:
        request = pb_utils.InferenceRequest(
            model_name="m", requested_output_names=["OUT"], inputs=[tensor])
        pb_utils.InferenceRequest(model_name="m")  # error: No overload variant
        for response in request.exec(decoupled=True):
            response.output_tensors()[0].as_numpy()
        for response in request.exec():  # error: "InferenceResponse" has no attribute "__iter__"
            pass
        answer = await request.async_exec()
        answer.output_tensor()  # error: "output_tensor"; maybe "output_tensors"
        sender = request.get_response_sender()
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return answer
'''


@pytest.fixture(scope="module")
def python() -> pathlib.Path:
    """An environment with mypy, into which pip has just installed the stubs."""
    found = environment("stubs", *TYPE_CHECKER)
    options = ("--quiet", "--force-reinstall", "--no-deps", "--no-build-isolation")
    status, output = run(found, "-m", "pip", "install", *options, STUBS)
    assert status == 0, output
    return found


def test_mypy_knows_the_module(python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Errors in a model are reported, and correct code isn't."""
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    cache = tmp_path / "cache"
    _, output = run(python, "-m", "mypy", "--strict", f"--cache-dir={cache}", model)
    found = {
        int(line): text
        for line, text in re.findall(r"^.*model\.py:(\d+): error: (.*)$", output, re.MULTILINE)
    }
    expected = {
        number: line.split("# error: ")[1]
        for number, line in enumerate(MODEL.splitlines(), 1)
        if "# error: " in line
    }
    assert sorted(found) == sorted(expected), output
    for number, text in expected.items():
        assert text in found[number]


def test_the_stubs_are_those_of_the_module(
    python: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """stubtest compares them with the module that workers use."""
    status, output = run(
        python, "-m", "mypy.stubtest", "--concise", f"--allowlist={STUBS / 'allowlist.txt'}",
        "triton_python_backend_utils", PYTHONPATH=str(WORKER), MYPY_CACHE_DIR=str(tmp_path),
    )
    assert status == 0, output


def test_requests_have_the_same_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """stubtest skips these, because the stubs specify more than Python's functions can."""
    monkeypatch.syspath_prepend(str(WORKER))
    for name in [one for one in sys.modules if one.startswith("galatea_worker")]:
        monkeypatch.delitem(sys.modules, name)
    from galatea_worker.request import InferenceRequest

    expected = list(inspect.signature(InferenceRequest.__init__).parameters)
    (found,) = [
        node for node in ast.parse(MODULE.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "InferenceRequest"
    ]
    variants = [
        one.args for one in found.body
        if isinstance(one, ast.FunctionDef) and one.name == "__init__"
    ]
    assert len(variants) == 2
    for variant in variants:
        assert [one.arg for one in variant.args + variant.kwonlyargs] == expected


def test_every_public_name_has_a_text() -> None:
    """Editors show them."""
    for node in ast.parse(MODULE.read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name[0] != "_":
            assert ast.get_docstring(node), node.name
