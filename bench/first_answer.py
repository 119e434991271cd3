"""Times the examples of docs/backends.md as a new user would: from `pip install` to a response.

    cargo build --release -p galatea
    python bench/first_answer.py --galatea target/release/galatea [PACKAGE ...]

Each example gets a new virtual environment, and pip downloads all packages again. With package names, only
the examples that install these packages are run. The examples need up to 7 GB of disk space for a
short time, and curl. See bench/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "backends.md"
HEADING = "### From installation to a response\n"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass
class Model:
    """The code that writes a model, and the arguments of the command that serves it."""

    code: str
    arguments: list[str]


@dataclasses.dataclass
class Example:
    """An installation, and the models that it can serve."""

    packages: list[str]
    models: list[Model] = dataclasses.field(default_factory=list)


def examples() -> list[Example]:
    """The examples of the page that install something."""
    found: list[Example] = []
    code = ""
    section = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    for language, block in BLOCK.findall(section):
        words = shlex.split(block) if language == "sh" else []
        if words[:2] == ["pip", "install"]:
            found.append(Example(words[2:]))
        elif words[:2] == ["galatea", "serve"] and code:
            found[-1].models.append(Model(code, words[2:]))
            code = ""
        elif language == "python" and not block.startswith("def predict"):
            code = block
    return found


def install(example: Example, folder: pathlib.Path) -> tuple[dict[str, str], float]:
    """A new virtual environment's variables, and the seconds that its creation took."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    commands = folder / "venv" / "bin"
    subprocess.run(
        [commands / "pip", "install", "--quiet", "--no-cache-dir", *example.packages], check=True
    )
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(folder / "venv")}
    return environment, time.monotonic() - began


def serve(
    galatea: pathlib.Path, model: Model, folder: pathlib.Path, environment: dict[str, str]
) -> tuple[float, float]:
    """The seconds to write a model, and from the command to the response."""
    began = time.monotonic()
    (folder / "write.py").write_text(model.code)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run(
        [python, "write.py"], cwd=folder, env=environment, check=True, capture_output=True
    )
    written = time.monotonic()
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    process = subprocess.Popen(
        [galatea, "serve", "--json", *ports, *model.arguments],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        request = ready["models"][0]["request"]
        response = subprocess.run(["sh", "-c", request], capture_output=True, check=True)
        assert json.loads(response.stdout)["outputs"], response
        return written - began, time.monotonic() - written
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--galatea", type=pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    options = parser.parse_args()
    print("| packages | model | pip s | write s | start to response s | all s |")
    print("|---|---|---|---|---|---|")
    for example in examples():
        if options.packages and not set(options.packages) & set(example.packages):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            environment, pip = install(example, folder)
            for model in example.models:
                write, answer = serve(options.galatea.resolve(), model, folder, environment)
                packages, arguments = " ".join(example.packages), " ".join(model.arguments)
                figures = " | ".join(f"{s:.1f}" for s in (pip, write, answer, pip + write + answer))
                print(f"| {packages} | {arguments} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
