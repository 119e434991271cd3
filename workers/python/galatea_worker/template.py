"""A template: a process that has imported the modules that workers need, and forks workers.

It executes a single thread and no code of a model. The server sends it questions on one socket,
one at a time:

- ``worker``: forks a worker, which receives the descriptors that came with the question.
- ``template``: forks another template, which imports numpy as well.
- ``reap``: returns how a worker ended. Until then, the number of its process stays reserved.

numpy is hidden in workers until the model imports it. The model then gets the template's numpy
if importing it would have had the same result (`Preloaded`).
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import json
import os
import signal
import socket
import sys
import warnings
from struct import Struct
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from . import lifeline

#: The exit status of a template that gives up: the server then starts workers without it.
_EXIT_UNSUITABLE = 69
#: Modules that workers of typical models import.
_MODULES = ("importlib.util", "galatea_worker.main", "galatea_worker.model",
            "galatea_worker.side", "galatea_worker.coroutines", "galatea_worker.function",
            "triton_python_backend_utils")
_DESCRIPTORS_MAX = 6
_QUESTION_BYTES_MAX = 1 << 16
_SITE_FOLDERS = ("site-packages", "dist-packages")
#: The position of the arguments' beginning among proc(5)'s fields after the name.
_FIELD_OF_ARGUMENTS = 48 - 3

_U32 = Struct("<I")

Forked = Tuple[socket.socket, List[int], List[str]]


class _Ambience:
    """State that an import can depend on, besides files."""

    def __init__(self) -> None:
        self.variables = dict(os.environ)
        self.filters = list(warnings.filters)
        self.processors = os.sched_getaffinity(0)
        self.paths = list(sys.path)

    def is_unchanged(self) -> bool:
        """Tells if the state is unchanged; new paths after the others make no difference."""
        return (self.variables == dict(os.environ) and self.filters == list(warnings.filters)
                and self.processors == os.sched_getaffinity(0)
                and self.paths == sys.path[:len(self.paths)])


class Preloaded:
    """The template's imported numpy, hidden from the model until it imports numpy."""

    def __init__(self, modules: Dict[str, Any], ambience: _Ambience) -> None:
        self._modules = modules
        self._ambience = ambience
        self._spec = modules["numpy"].__spec__
        self.is_hidden = False

    def hide(self) -> None:
        """Hides numpy in a worker."""
        for name in self._modules:
            sys.modules.pop(name, None)
        self.is_hidden = True

    def find(self) -> Any:
        """Returns the spec for the model's import; None if the import must start over."""
        if not self._ambience.is_unchanged():
            return None
        found = importlib.machinery.PathFinder.find_spec("numpy")
        if found is None or found.origin != self._spec.origin:
            return None
        found.loader = self  # type: ignore[assignment]
        return found

    def create_module(self, spec: Any) -> Any:
        """Returns the existing module."""
        return self._modules["numpy"]

    def exec_module(self, module: Any) -> None:
        """Gives the modules that the template has executed to the model."""
        module.__spec__ = self._spec
        self.is_hidden = False
        sys.modules.update(self._modules)
        # Each process has random numbers of its own.
        random = sys.modules.get("numpy.random")
        if random is not None:
            random.seed()


#: The state of a forked process before the model; None in a process that wasn't forked.
_ambience: Optional[_Ambience] = None
_preloaded: Optional[Preloaded] = None
#: True if the model's import of numpy equals a template's; None before the import.
_is_usual: Optional[bool] = None
#: Leaves a process in which numpy can't be imported in the way that the model needs.
begin_anew: Optional[Callable[[], None]] = None


def find_numpy() -> Any:
    """Returns the result of the model's import of numpy; None for the usual search."""
    global _is_usual
    if _preloaded is not None and _preloaded.is_hidden:
        spec = _preloaded.find()
        if spec is None and begin_anew is not None:
            begin_anew()
        return spec
    if _ambience is not None and _is_usual is None:
        _is_usual = _preloaded is not None or _ambience.is_unchanged()
    return None


def wants_numpy() -> bool:
    """True if templates may import numpy for this model."""
    return bool(_is_usual) or _preloaded is not None and not _preloaded.is_hidden


def has_unused() -> bool:
    """True if numpy is present but the model hasn't imported it."""
    return _preloaded is not None and _preloaded.is_hidden


def serve(control: socket.socket, fds: List[int]) -> Forked:
    """Answers the server; returns in each worker that it forks."""
    global _ambience
    for number in (signal.SIGINT, signal.SIGTERM):
        # The server ends its processes, but a service manager signals all processes of a
        # service.
        signal.signal(number, lambda *_: None)
    lifeline.arm(fds[0])
    own = _Own(control, fds[0])
    _ambience = _Ambience()
    for name in _MODULES:
        importlib.import_module(name)
    _be_ready(own)
    while True:
        question, given = own.read()
        kind = question["do"]
        if kind == "reap":
            own.answer({"status": os.waitpid(question["pid"], 0)[1]})
        elif kind == "worker":
            if _fork(own, given) == 0:
                return _become_worker(own, given, question["names"])
        elif kind == "template":
            if _fork(own, given) == 0:
                own.close()
                own = _Own(socket.socket(fileno=given[0]), given[1])
                lifeline.arm(given[1])
                _preload()
                _be_ready(own)
        else:
            _give_up(own, f"no template can {kind!r}")


class _Own:
    """The descriptors of a template."""

    def __init__(self, control: socket.socket, line: int) -> None:
        self._control = control
        self._lifeline = line

    def close(self) -> None:
        """Leaves the descriptors to the template, in a process that it has forked."""
        self._control.close()
        os.close(self._lifeline)

    def read(self) -> Tuple[Dict[str, Any], List[int]]:
        """Returns the next question; the process ends with the server's socket."""
        head, fds, _, _ = socket.recv_fds(self._control, 4, _DESCRIPTORS_MAX)
        for fd in fds:
            os.set_inheritable(fd, False)
        head += self._exactly(4 - len(head))
        size = _U32.unpack(head)[0]
        if size > _QUESTION_BYTES_MAX:
            os._exit(1)
        return json.loads(self._exactly(size)), list(fds)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self._control.recv(count - len(data))
            if not chunk:
                os._exit(0)
            data += chunk
        return data

    def answer(self, answer: Dict[str, Any]) -> None:
        """Answers a question."""
        data = json.dumps(answer).encode()
        try:
            self._control.sendall(_U32.pack(len(data)) + data)
        except OSError:
            os._exit(0)


def _fork(own: _Own, given: List[int]) -> int:
    """Forks, and answers in the template with the number of the new process."""
    try:
        pid = os.fork()
    except OSError as error:
        _close(given)
        own.answer({"error": str(error)})
        return -1
    if pid == 0:
        os.setpgid(0, 0)
        return 0
    try:
        # Both processes do it, because the server may end the group at any time from now on.
        os.setpgid(pid, pid)
    except OSError:
        pass  # it has ended, and left no others
    _close(given)
    own.answer({"pid": pid})
    return pid


def _close(fds: List[int]) -> None:
    for fd in fds:
        os.close(fd)


def _become_worker(own: _Own, given: List[int], names: List[str]) -> Forked:
    """Orders the descriptors of a worker like those of one that starts an interpreter."""
    own.close()
    _rename(names)
    if _preloaded is not None:
        _preloaded.hide()
    return socket.socket(fileno=given[0]), given[1:], names


def _rename(names: List[str]) -> None:
    """Stores the worker's names where the list of processes shows them."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            shown = file.read()
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        room = shown.find(b"\0\0\0template\0") + 1
        line = shown[:room] + b"".join(os.fsencode(name) + b"\0" for name in names)
        if room == 0 or len(line) > len(shown):
            return
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(int(fields[_FIELD_OF_ARGUMENTS]))
            memory.write(line.ljust(len(shown), b"\0"))
    except (OSError, ValueError, IndexError):
        pass  # it is shown as the template then


def _preload() -> None:
    """Imports numpy."""
    global _ambience, _preloaded
    before = set(sys.modules)
    importlib.import_module("numpy")
    modules = {name: module for name, module in sys.modules.items()
               if name not in before and (name + ".").startswith("numpy.")}
    _ambience = _Ambience()
    _preloaded = Preloaded(modules, _ambience)


def _be_ready(own: _Own) -> None:
    """Reports which files were read, if workers can be forked."""
    # A handler may end threads before a fork, as OpenBLAS's does.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        _give_up(own, f"{threads} threads run")
    gc.collect()
    # Pages that the garbage collector doesn't write stay shared.
    gc.freeze()
    own.answer({"files": sorted(_files())})


def _give_up(own: _Own, why: str) -> NoReturn:
    own.answer({"unsuitable": why})
    os._exit(_EXIT_UNSUITABLE)


def _files() -> List[str]:
    """Returns the files that the process depends on: those read, and those it would have read."""
    found = {sys.executable or "", os.path.join(sys.prefix, "pyvenv.cfg")}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            found.add(file)
    with open("/proc/self/maps", "r", encoding="utf-8", errors="surrogateescape") as lines:
        found.update("/" + line.rstrip("\n").partition("/")[2] for line in lines)
    for folder in sys.path:
        found.update(os.path.join(folder, name) for name in
                     ("sitecustomize.py", "usercustomize.py"))
        if os.path.basename(folder) in _SITE_FOLDERS and os.path.isdir(folder):
            found.add(folder)
            found.update(os.path.join(folder, name) for name in os.listdir(folder)
                         if name.endswith(".pth"))
    return [file for file in found if _is_file(file)]


def _is_file(path: str) -> bool:
    """True if the server can examine the file."""
    return (os.path.isabs(path) and len(path) > 1 and path.isprintable()
            and not path.startswith("/memfd:") and not path.endswith(" (deleted)"))
