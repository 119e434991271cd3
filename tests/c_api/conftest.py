"""Fixtures: the library under test, compiled programs, and a model repository."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

import implementations
from implementations import Implementation

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Other test files use modules of the clients' tests.
sys.path.append(str(ROOT / "tests" / "clients"))

CONFIG = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""

Compile = Callable[..., pathlib.Path]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the programs under test."""
    for name, what in (
        ("--galatea", "the server"),
        ("--libtritonserver", "the server as a library, libtritonserver.so"),
        ("--onnxruntime-library", "ONNX Runtime's library"),
    ):
        parser.addoption(name, type=pathlib.Path, help=what)


def _file(request: pytest.FixtureRequest, option: str) -> pathlib.Path:
    path = request.config.getoption(option)
    if path is None:
        pytest.fail(f"{option} is needed")
    return path.resolve(strict=True)


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> pathlib.Path:
    """The server as a library."""
    return _file(request, "--libtritonserver")


@pytest.fixture(scope="module", params=["galatea", "triton"])
def implementation(
    request: pytest.FixtureRequest,
    library: pathlib.Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Implementation:
    """Each of the libraries in turn."""
    if request.param == "triton":
        return implementations.triton(tmp_path_factory.mktemp("triton"))
    return Implementation(library, dict(os.environ))


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> pathlib.Path:
    """The server as a program."""
    return _file(request, "--galatea")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A repository with the models `identity`, whose output has labels, and `other`."""
    folder = tmp_path_factory.mktemp("models")
    labelled = 'name: "OUTPUT0" label_filename: "labels.txt"'.join(CONFIG.split('name: "OUTPUT0"'))
    for name, config in (("identity", labelled), ("other", CONFIG)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    (folder / "identity" / "labels.txt").write_text("zero\n\ntwo\n")
    return folder


@pytest.fixture(scope="session")
def compile(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a source against our headers, without a warning."""

    def run(compiler: str, source: pathlib.Path, *options: object) -> pathlib.Path:
        if shutil.which(compiler) is None:
            pytest.skip(f"needs a compiler called {compiler}")
        output = tmp_path_factory.mktemp("compiled") / source.stem
        command = [compiler, "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"]
        command += ["-I", str(ROOT / "include"), "-o", str(output), str(source)]
        subprocess.run([*command, *map(str, options)], check=True)
        return output

    return run
