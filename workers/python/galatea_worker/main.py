"""Main loop of a worker: reads the server's commands from socket A and performs them."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from typing import Any, Dict, List, Optional

from . import lifeline, sender, state
from .channel import Closed, FRAME_BYTES_MAX, NoChannel, SideChannel, reader
from .errors import (TritonModelException, WireError, complain, die_of_nonsense, forget,
                     format_exception, leave)
from .execute import Executor
from .numbers import (
    AUTO_COMPLETE, B_RELEASE, CALL_REPLY, DONE, EXECUTE, FAILED, FINALIZE, HELLO, INITIALIZE,
    OK_JSON)
from .request import Own
from .wire import StructError, finish, get_text, pack_u32, put_offsets, put_text

PROTOCOL = 1
_INTERNAL = 1


class Worker:
    """The process that runs one instance of a model."""

    def __init__(self, commands: socket.socket, results: socket.socket,
                 sock_b: socket.socket) -> None:
        # Together these are A. With one socket for both directions, a thread that waits for
        # bytes also wakes when the bytes that it sent are read.
        self._commands = commands
        self._results = results
        self._sock_b = sock_b
        self._reader = reader(commands)
        self._model: Any = None
        self._executor: Optional[Executor] = None
        self._pid = os.getpid()

    def say(self, kind: int, payload: bytes) -> None:
        """Sends a frame on A."""
        self._results.sendall(pack_u32(len(payload) + 1) + bytes((kind,)) + payload)

    def exchange(self, body: bytes) -> Any:
        """Sends a body on A and waits for the next frame."""
        if len(body) > FRAME_BYTES_MAX:
            raise TritonModelException(
                f"a call of {len(body)} bytes is longer than {FRAME_BYTES_MAX} bytes")
        self._results.sendall(pack_u32(len(body)) + body)
        return self._reader.read()

    def hello(self) -> None:
        """Sends the first frame, which introduces the worker."""
        version = "%d.%d.%d" % sys.version_info[:3]
        self.say(HELLO, put_text(json.dumps(
            {"protocol": PROTOCOL, "python": version, "pid": self._pid})))

    def loop(self) -> None:
        """Performs the server's commands until it ends the loop."""
        read = self._reader.read
        while True:
            data = read()
            executor = self._executor
            kind = data[4]
            # A late reply to an interrupted call reveals nothing about the last result.
            if executor is not None and kind != CALL_REPLY:
                executor.server_has_read()
            if kind == EXECUTE:
                if executor is None:
                    raise WireError("requests before the model is initialized")
                frame = executor.execute(data)
                del data
                self._results.sendall(frame)
            elif self._command(kind, data):
                return

    def _command(self, kind: int, data: Any) -> bool:
        """Performs one of the rare commands; returns True if it was the last one."""
        if kind == FINALIZE:
            finish(data, 5)
            self._finalize()
            return True
        if kind == CALL_REPLY:
            from . import bls
            bls.skip_reply(data)
        elif kind in (INITIALIZE, AUTO_COMPLETE):
            text, position = get_text(data, 5)
            finish(data, position)
            setup = json.loads(text)
            if not isinstance(setup, dict):
                raise WireError("a setup that isn't an object")
            action = self._initialize if kind == INITIALIZE else self._auto_complete
            self._answer(action, setup)
        else:
            raise WireError(f"a frame of kind {kind} on socket A")
        return False

    def _answer(self, action: Any, setup: Any) -> None:
        """Answers with the result of `action`, or with the exception's text."""
        try:
            answer = json.dumps(action(setup))
        except BaseException as error:  # a model may call sys.exit here as well
            from . import model
            text = model.failure_text(error, setup)
            forget(error)
            self.say(FAILED, bytes((_INTERNAL,)) + put_text(text))
            return
        self.say(OK_JSON, put_text(answer))

    def _auto_complete(self, setup: Dict[str, Any]) -> Dict[str, Any]:
        from . import model
        return model.auto_complete(setup)

    def _initialize(self, setup: Dict[str, Any]) -> Dict[str, Any]:
        from . import coroutines, model
        args = setup.get("args") or {}
        state.decoupled = bool(setup.get("decoupled"))
        state.model_name = str(args.get("model_name") or state.model_name)
        state.model_path = setup["model_path"]
        self._start_side_reader()
        template = sys.modules.get("galatea_worker.template")
        if template is not None:
            template.begin_anew = self._begin_anew
        self._model = model.initialize(setup)
        if template is not None:
            template.begin_anew = None
            if template.has_unused():
                self._begin_anew()
        version = str(args.get("model_version") or "")
        own = Own(state.model_name, int(version) if version.isdigit() else -1,
                  model.output_names(args))
        self._executor = Executor(self._model, own)
        state.initialized = True
        execute = getattr(self._model, "execute", None)
        has_check = hasattr(self._model, "is_ready")
        if has_check:
            from . import readiness
            readiness.start(self._model)
        return {"is_ready": has_check,
                "numpy": template is not None and template.wants_numpy(),
                "async": coroutines.is_coroutine_function(execute)}

    def _begin_anew(self) -> None:
        """Hands the model over to a process that imports numpy itself."""
        self.say(OK_JSON, put_text(json.dumps({"anew": True})))
        leave(0)

    def _finalize(self) -> None:
        """Finalizes the model. From here on, SIGTERM ends the process."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        state.finalizing = True
        if self._model is not None:
            if "galatea_worker.coroutines" in sys.modules:
                from . import coroutines
                coroutines.stop()
            if hasattr(self._model, "finalize"):
                try:
                    self._model.finalize()
                except BaseException as error:
                    from .logger import log_internal
                    log_internal(1, format_exception(error))
        self._executor = None
        self._model = None
        self.say(DONE, b"")
        # Objects that the interpreter's end frees need no answer any more.
        state.INPUTS.notify = lambda offsets: None
        state.side = NoChannel()

    def _start_side_reader(self) -> None:
        """Starts the thread that reads socket B."""
        from . import side
        thread = threading.Thread(
            target=side.run, args=(self._sock_b,), name="galatea side channel",
            daemon=True)
        thread.start()

    def after_fork(self) -> None:
        """A forked child must not speak in the model's name."""
        self._commands.close()
        self._results.close()
        state.exchange = state.read_a = NoChannel.refuse
        state.INPUTS.notify = lambda offsets: None
        state.OUTPUTS.lose()
        state.side.close_in_child()
        sender.after_fork()

    def is_child(self) -> bool:
        """True if this process was forked from the worker."""
        return os.getpid() != self._pid


def _notify_released(offsets: List[int]) -> None:
    """Releases input blocks between executions."""
    state.side.post(bytes((B_RELEASE,)) + put_offsets(offsets))


def _ignore(*_: Any) -> None:
    """Handler of signals that the server, not the worker, acts on."""


def run(sock_a: socket.socket, fds: List[int], names: List[str]) -> None:
    """Runs the worker; returns when the server has ended it."""
    state.model_name, state.instance_name = (names + ["", ""])[:2]
    sock_b = socket.socket(fileno=fds[0])
    state.INPUTS.open(fds[1])
    state.OUTPUTS.open(fds[2])
    os.close(fds[1])
    os.close(fds[2])
    state.side = SideChannel(sock_b)
    state.INPUTS.notify = _notify_released
    lifeline.arm(fds[3])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
    worker = Worker(sock_a, socket.socket(fileno=fds[4]), sock_b)
    state.exchange = worker.exchange
    state.read_a = worker._reader.read
    os.register_at_fork(after_in_child=worker.after_fork)
    try:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        pass
    _guard(worker)


def _guard(worker: Worker) -> None:
    """Runs the loop; an invalid message from the server ends the process."""
    try:
        worker.hello()
        worker.loop()
        return
    except Closed:
        code = 1
    except (WireError, StructError, IndexError, UnicodeDecodeError, OverflowError,
            json.JSONDecodeError, KeyError) as error:
        die_of_nonsense(error)
    except OSError as error:
        if worker.is_child():
            complain("a process that was forked from a model returned from it")
        elif not isinstance(error, (BrokenPipeError, ConnectionResetError)):
            complain(f"the connection to the server failed: {error}")
        code = 1
    except Exception as error:  # a signal handler of the model may raise anywhere
        complain(f"the worker failed: {format_exception(error)!r}")
        code = 1
    leave(code)
