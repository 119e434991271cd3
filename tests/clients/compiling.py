"""Compiles backends, caches, agents and operators in C with their documented commands.

`cc` is the only program that must be installed: CMake and Ninja come with
tests/requirements.txt.
"""

from __future__ import annotations

import pathlib
import subprocess

import cmake
import ninja

ROOT = pathlib.Path(__file__).resolve().parents[2]

FLAGS = ["-std=gnu11", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]


def compile_library(
    source: pathlib.Path, library: pathlib.Path, *options: str, include: pathlib.Path | None = None
) -> pathlib.Path:
    """Compiles one source with one command, without warnings.

    `include` contains Triton's headers; `options` are added to the flags of every library.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{include or ROOT / 'include'}", f"-I{ROOT / 'examples' / 'backends'}"]
    command = ["cc", *FLAGS, *includes, *options, str(source), "-o", str(library), "-lpthread"]
    subprocess.run(command, check=True)
    return library


def build_examples(source: pathlib.Path, build: pathlib.Path) -> None:
    """Builds a directory of examples with CMake, using its CMakeLists.txt."""
    program = pathlib.Path(cmake.CMAKE_BIN_DIR) / "cmake"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={pathlib.Path(ninja.BIN_DIR) / 'ninja'}"]
    for step in (["-S", source, "-B", build, *generator], ["--build", build]):
        command = list(map(str, [program, *step]))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
