"""Runs the examples on a documentation page, from top to bottom, in an empty directory.

- `sh`: commands. `galatea --...` and `galatea serve ...` start a server, which runs until the next
  one starts. The packages of `pip install` must already be installed; the program under test
  replaces our own.
- `python`: a program. If the words before it end with a file name, the block is the file's
  contents. A file that doesn't exist yet is written.
- `json` and `text` after one of them: its output. After a server, they contain lines of its log.
  Text may omit parts with `...`.
- `pbtxt`: a configuration, preceded by the name of its file. The model gets a version 1.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from conftest import ROOT, StartServer
from python_backend import interpreter_flag
from server import Program, Server, free_ports, wait_until

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w./-]+\.(?:py|pbtxt))`[^`]*\Z")
SECONDS_MAX = 300

#: What `cargo xtask wheel` builds. `test_wheel.py` in tests/python_api installs it.
OUR_PACKAGE = "python/dist/galatea-*.whl"


class Served:
    """A process of `galatea serve`."""

    def __init__(
        self, program: str, arguments: list[str], folder: pathlib.Path, log_path: pathlib.Path
    ) -> None:
        """Starts it on free ports."""
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        self._log_path = log_path
        ports = (
            f"--http-port={self.http_port}", f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
        )
        addresses = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1")
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [program, *arguments, *ports, *addresses], cwd=folder, stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self) -> str:
        """Its output so far."""
        return self._log_path.read_text()

    def stop(self) -> None:
        """Ends it."""
        self._process.terminate()
        assert self._process.wait(SECONDS_MAX) == 0, self.log()


class Reader:
    """Executes a page."""

    def __init__(self, program: Program, start: StartServer, folder: pathlib.Path) -> None:
        """Nothing has been executed yet."""
        self._program = program
        self._start = start
        self._folder = folder / "work"
        self._folder.mkdir()
        self._programs = folder / "programs"
        self._programs.mkdir()
        (self._programs / "galatea").symlink_to(program.path)
        # It isn't a link, because a virtual environment is found next to the program.
        python = self._programs / "python3"
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        self._variables: dict[str, str] = {}
        self._servers = contextlib.ExitStack()
        self._server: Server | Served | None = None
        self._number = 0
        #: What the last block printed, or None behind a server.
        self._printed: str | None = None

    def read(self, page: str) -> int:
        """Executes everything on a page, and returns the number of its blocks."""
        text = (ROOT / "docs" / page).read_text()
        blocks = list(BLOCK.finditer(text))
        with self._servers:
            for block in blocks:
                do: dict[str, Callable[[str, str], None]] = {
                    "sh": self._commands,
                    "python": self._python,
                    "json": self._shows_json,
                    "text": self._shows_text,
                    "pbtxt": self._configuration,
                }
                assert block[1] in do, f"{page}: blocks of {block[1]!r} are not known"
                do[block[1]](block[2], text[: block.start()][-300:])
        return len(blocks)

    def link(self, name: str, target: pathlib.Path, variables: Mapping[str, str]) -> None:
        """Makes a program available to the page's commands, with the variables that it needs."""
        (self._programs / name).symlink_to(target)
        self._variables |= {key: one for key, one in variables.items() if key != "PATH"}

    def _commands(self, text: str, _: str) -> None:
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith(("galatea --", "galatea serve ")):
                text = text.replace(line, "")
                self._run_shell(text)
                self._serve(shlex.split(line)[1:])
                return
            if line.startswith("pip install"):
                packages = shlex.split(line)[2:]
                for package in (one for one in packages if one != OUR_PACKAGE):
                    importlib.metadata.version(re.split(r"[\[=]", package)[0])
                return
        self._run_shell(text)

    def _run_shell(self, text: str) -> None:
        if "curl" in text and shutil.which("curl") is None:
            pytest.skip("needs curl")
        self._run(["sh", "-e", "-c", self._with_ports(text)])

    def _run(self, command: list[str]) -> None:
        path = f"{self._programs}:{os.environ['PATH']}"
        variables = {**os.environ, **self._variables, "PATH": path}
        if self._program.onnxruntime_library is not None:
            library = self._program.onnxruntime_library.resolve()
            variables["GALATEA_ONNXRUNTIME_LIBRARY"] = str(library)
        done = subprocess.run(
            command, cwd=self._folder, env=variables, capture_output=True, text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        self._printed = done.stdout

    def _serve(self, flags: list[str]) -> None:
        """Starts a server once the previous one has ended."""
        self._servers.close()
        if flags[0] == "serve":
            self._serve_files(flags[1:])
            return
        place = flags.index("--model-repository")
        repository = self._folder / flags[place + 1]
        flags = flags[:place] + flags[place + 2 :]
        self._server = self._servers.enter_context(
            self._start(repository, *flags, interpreter_flag())
        )
        self._server.wait_until_ready()
        self._printed = None

    def _serve_files(self, arguments: list[str]) -> None:
        """Starts `galatea serve`, which has no repository."""
        program, *flags = self._program.command(["serve", *arguments, interpreter_flag()])
        if flags[0] == "--onnxruntime-library":
            flags = [flags[2], *flags[3:], flags[0], str(pathlib.Path(flags[1]).resolve())]
        self._number += 1
        server = Served(program, flags, self._folder, self._folder.parent / f"serve{self._number}.log")
        self._servers.callback(server.stop)
        wait_until(lambda: "Try it:" in server.log(), SECONDS_MAX, "the server is ready")
        self._server = server
        self._printed = None

    def _with_ports(self, text: str) -> str:
        """Replaces the usual ports with those of the running server."""
        if self._server is None:
            return text
        one = self._server
        for usual, port in ((8000, one.http_port), (8001, one.grpc_port), (8002, one.metrics_port)):
            text = text.replace(f"localhost:{usual}", f"127.0.0.1:{port}")
        return text

    def _python(self, text: str, before: str) -> None:
        path = self._named_file(before)
        if path is None:
            self._run([sys.executable, "-c", self._with_ports(text)])
        elif path.exists():
            assert text in path.read_text(), (text, path.read_text())
        else:
            path.parent.mkdir(parents=True)
            path.write_text(text)

    def _configuration(self, text: str, before: str) -> None:
        path = self._named_file(before)
        assert path is not None, text
        (path.parent / "1").mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _named_file(self, before: str) -> pathlib.Path | None:
        """The file named by the words right before a block."""
        named = FILE.search(before.strip().rsplit("\n\n", 1)[-1])
        return self._folder / named[1] if named else None

    def _shows_json(self, text: str, _: str) -> None:
        assert self._printed is not None
        assert json.loads(self._printed) == json.loads(text)

    def _shows_text(self, text: str, _: str) -> None:
        text = self._with_ports(text)
        lines = [re.escape(line).replace(r"\.\.\.", ".*") for line in text.splitlines()]
        if self._printed is not None:
            assert re.fullmatch("\n".join(lines) + "\n?", self._printed), (text, self._printed)
            return
        assert self._server is not None
        log = self._server.log
        for line in lines:
            wait_until(lambda line=line: re.search(line, log()) is not None, 60, line)
