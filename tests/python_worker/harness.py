"""Plays the server's role: starts a worker as the server does, and uses its protocol."""

from __future__ import annotations

import array
import fcntl
import json
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "clients"))

from server import wait_until  # noqa: E402

WORKER = Path(__file__).resolve().parents[2] / "workers" / "python"
COMMAND = (
    "import socket;s=socket.socket(fileno=0);"
    "n=int.from_bytes(s.recv(4,socket.MSG_WAITALL),\"little\");"
    "exec(compile(s.recv(n,socket.MSG_WAITALL),\"<galatea worker>\",\"exec\"))")
ARENA_BYTES = 1 << 32
ANSWER_SECONDS = 30

EXECUTE, CALL_REPLY, FINALIZE, AUTO_COMPLETE, INITIALIZE = range(1, 6)
RESULT, CALL, OK_JSON, FAILED, DONE, HELLO = 1, 2, 10, 11, 12, 20
LOG, RESPONSE, B_CALL, CANCEL_CALL, RELEASE, CONTROL, METRIC, READY = range(1, 9)
B_CALL_REPLY, CANCELLED, FREE, REPLY, PAUSE, RESUME, IS_READY = range(1, 8)
TYPES = {"BOOL": 1, "UINT8": 2, "INT32": 8, "INT64": 9, "FP16": 10, "FP32": 11,
         "FP64": 12, "BYTES": 13, "BF16": 14}


def bundle():
    """Sources of the worker by module name, as the server sends them."""
    sources = {}
    for path in WORKER.rglob("*.py"):
        parts = path.relative_to(WORKER).with_suffix("").parts
        if parts == ("bootstrap",) or "__pycache__" in parts:
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text()
    return sources


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(data)) + data


class Cursor:
    """Reads values one after the other."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def bytes(self):
        size = self.take("I")
        assert self.at + size <= len(self.data)
        value = bytes(self.data[self.at:self.at + size])
        self.at += size
        return value

    def text(self):
        return self.bytes().decode()

    def end(self):
        assert self.at == len(self.data), self.data[self.at:]


class Tensor:
    """A tensor on the wire: either its content or its location in an arena."""

    def __init__(self, name, kind, shape, content=b"", place=0, offset=0, length=None):
        self.name, self.kind, self.shape = name, kind, list(shape)
        self.content, self.place, self.offset = content, place, offset
        self.length = len(content) if length is None else length

    def encode(self):
        head = text(self.name) + struct.pack(
            f"<BI{len(self.shape)}q", TYPES.get(self.kind, self.kind), len(self.shape),
            *self.shape)
        if self.place == 0:
            return head + b"\0" + text(self.content)
        return head + struct.pack("<BQQ", self.place, self.offset, self.length)


def fp32(name, values, shape=None):
    return Tensor(name, "FP32", shape or [len(values)],
                  struct.pack(f"<{len(values)}f", *values))


def strings(name, values):
    return Tensor(name, "BYTES", [len(values)],
                  b"".join(text(value) for value in values))


def request(key, inputs, id="", correlation=0, flags=0, timeout=0, parameters="",
            trace=None, outputs=()):
    if correlation == 0:
        which = b"\0"
    elif isinstance(correlation, int):
        which = struct.pack("<BQ", 1, correlation)
    else:
        which = b"\2" + text(correlation)
    return (struct.pack("<Q", key) + text(id) + which
            + struct.pack("<IQ", flags, timeout) + text(parameters)
            + (b"\0" if trace is None else b"\1" + text(trace))
            + struct.pack("<I", len(outputs)) + b"".join(map(text, outputs))
            + struct.pack("<I", len(inputs)) + b"".join(t.encode() for t in inputs))


def send_sources(sock, sources=None):
    """The first message to a process."""
    boot = (WORKER / "bootstrap.py").read_bytes()
    body = json.dumps(sources or bundle()).encode()
    sock.sendall(struct.pack("<I", len(boot)) + boot)
    sock.sendall(struct.pack("<I", len(body)) + body)


class Worker:
    """A worker process and the server's ends of its sockets and arenas."""

    def __init__(self, python=None, arena_bytes=ARENA_BYTES, sources=None, stderr=None):
        self._equip(arena_bytes)
        lifeline, pipe = os.pipe()
        self.process = subprocess.Popen(
            [python or sys.executable, "-c", COMMAND, "m", "m_0_0"], stdin=self._commands,
            stdout=subprocess.DEVNULL if stderr else None, stderr=stderr)
        send_sources(self.a, sources)
        socket.send_fds(self.a, [b"x"], [
            self._others.fileno(), self.inputs_fd, self.outputs_fd, lifeline,
            self._results.fileno()])
        os.close(lifeline)
        self.lifeline = pipe
        self._begin()

    def _equip(self, arena_bytes):
        self.inputs_fd = os.memfd_create("inputs")
        self.outputs_fd = os.memfd_create("outputs")
        for fd in (self.inputs_fd, self.outputs_fd):
            os.ftruncate(fd, arena_bytes)
        self.inputs = mmap.mmap(self.inputs_fd, arena_bytes)
        self.outputs = mmap.mmap(self.outputs_fd, arena_bytes)
        self.a, self._commands = socket.socketpair()
        self.results, self._results = socket.socketpair()
        self.b, self._others = socket.socketpair()

    def _begin(self):
        for theirs in (self._commands, self._results, self._others):
            theirs.close()
        self.hello = json.loads(self.expect(HELLO).text())

    # Frames.

    @staticmethod
    def _exactly(sock, count):
        data = bytearray()
        while len(data) < count:
            ready, _, _ = select.select([sock], [], [], sock.gettimeout() or ANSWER_SECONDS)
            if not ready:
                raise TimeoutError("the worker says nothing")
            chunk = sock.recv(count - len(data))
            if not chunk:
                raise EOFError("the worker has closed the socket")
            data += chunk
        return bytes(data)

    def _read(self, sock):
        size = struct.unpack("<I", self._exactly(sock, 4))[0]
        body = self._exactly(sock, size)
        return body[0], Cursor(body[1:])

    def read_a(self):
        return self._read(self.results)

    def read_b(self):
        return self._read(self.b)

    def expect(self, kind):
        found, cursor = self.read_a()
        assert found == kind, (found, cursor.data)
        return cursor

    def expect_b(self, kind):
        found, cursor = self.read_b()
        assert found == kind, (found, cursor.data)
        return cursor

    def send(self, kind, payload=b""):
        self.a.sendall(struct.pack("<IB", len(payload) + 1, kind) + payload)

    def send_b(self, kind, payload=b""):
        self.b.sendall(struct.pack("<IB", len(payload) + 1, kind) + payload)

    def wait_until_read(self):
        """Waits until the worker has received everything that was sent to it."""
        unread = array.array("i", [1])

        def has_read():
            fcntl.ioctl(self.a, termios.TIOCOUTQ, unread)
            return unread[0] == 0

        wait_until(has_read, ANSWER_SECONDS, "the worker has read everything")

    # Commands.

    def setup(self, path, config=None, **more):
        version = Path(path).parent
        config = config or {"name": "m", "max_batch_size": 0,
                            "input": [], "output": [{"name": "OUT"}]}
        args = {"model_config": json.dumps(config), "model_name": "m",
                "model_version": version.name, "model_repository": str(version.parent),
                "model_instance_name": "m_0_0", "model_instance_kind": "CPU",
                "model_instance_device_id": "0"}
        return {"args": args, "model_path": str(path), "decoupled": False,
                "batching": False, "config": config,
                "module_paths": [str(version), str(version.parent)], **more}

    def ask(self, kind, payload=b""):
        """The reply to a command: ('ok', object) or ('failed', code, text)."""
        self.send(kind, payload)
        found, cursor = self.read_a()
        if found == OK_JSON:
            return ("ok", json.loads(cursor.text()))
        assert found == FAILED, (found, cursor.data)
        return ("failed", cursor.take("B"), cursor.text())

    def initialize(self, path, **more):
        return self.ask(INITIALIZE, text(json.dumps(self.setup(path, **more))))

    def auto_complete(self, path, **more):
        return self.ask(AUTO_COMPLETE, text(json.dumps(self.setup(path, **more))))

    def execute(self, *requests):
        self.send_requests(*requests)
        return self.result()

    def send_requests(self, *requests):
        self.send(EXECUTE, struct.pack("<I", len(requests)) + b"".join(requests))

    def result(self):
        return self.read_result(self.expect(RESULT))

    def read_result(self, cursor):
        result = {"outcome": cursor.take("B"), "requests": []}
        if result["outcome"] == 2:
            result["code"], result["message"] = cursor.take("B"), cursor.text()
        else:
            for _ in range(cursor.take("I")):
                key, flags = cursor.take("QI")
                result["requests"].append(
                    {"key": key, "flags": flags, "response": self.response(cursor)})
        result["released"] = [cursor.take("Q") for _ in range(cursor.take("I"))]
        result["sent"] = cursor.take("Q")
        cursor.end()
        return result

    def response(self, cursor):
        kind = cursor.take("B")
        if kind == 0:
            return None
        if kind == 2:
            return {"code": cursor.take("B"), "message": cursor.text()}
        parameters = cursor.text()
        tensors = self.tensors(cursor)
        return {"parameters": parameters, "tensors": {t.name: t for t in tensors}}

    def tensors(self, cursor):
        return [self.tensor(cursor) for _ in range(cursor.take("I"))]

    def tensor(self, cursor):
        name, kind = cursor.text(), cursor.take("B")
        shape = [cursor.take("q") for _ in range(cursor.take("I"))]
        place = cursor.take("B")
        if place == 0:
            return Tensor(name, kind, shape, cursor.bytes())
        offset, length = cursor.take("QQ")
        arena = self.inputs if place == 1 else self.outputs
        return Tensor(name, kind, shape, bytes(arena[offset:offset + length]), place,
                      offset)

    def read_response(self):
        """A RESPONSE frame on B."""
        cursor = self.expect_b(RESPONSE)
        key, flags = cursor.take("QI")
        response = self.response(cursor)
        cursor.end()
        return key, flags, response

    def is_ready(self, number=1):
        """The model's readiness: True, False, or (code, text)."""
        self.send_b(IS_READY, struct.pack("<Q", number))
        cursor = self.expect_b(READY)
        assert cursor.take("Q") == number
        outcome = cursor.take("B")
        answer = bool(outcome) if outcome < 2 else (cursor.take("B"), cursor.text())
        cursor.end()
        return answer

    def finalize(self):
        self.send(FINALIZE)
        self.expect(DONE).end()
        return self.process.wait(ANSWER_SECONDS)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.a.close()
        self.results.close()
        self.b.close()
        for fd in (self.inputs_fd, self.outputs_fd, self.lifeline):
            try:
                os.close(fd)
            except OSError:
                pass


class Template:
    """A process that forks workers, or the template that it has forked."""

    def __init__(self, python=None, environment=None):
        self.control, theirs = socket.socketpair()
        lifeline, self.lifeline = os.pipe()
        self.process = subprocess.Popen(
            [python or sys.executable, "-c", COMMAND, "", "", "template", " " * 1024],
            stdin=theirs, env={**os.environ, **(environment or {})})
        theirs.close()
        self.pid = self.process.pid
        send_sources(self.control)
        socket.send_fds(self.control, [b"x"], [lifeline])
        os.close(lifeline)
        self.children = []
        self.ready = self.answer()

    def answer(self):
        """Its reply."""
        size = struct.unpack("<I", Worker._exactly(self.control, 4))[0]
        return json.loads(Worker._exactly(self.control, size))

    def ask(self, fds=(), **question):
        """Sends it a request, and waits for the reply."""
        data = json.dumps(question).encode()
        socket.send_fds(self.control, [struct.pack("<I", len(data)) + data], fds)
        return self.answer()

    def with_numpy(self):
        """A template that it forks and that imports numpy."""
        other = object.__new__(Template)
        other.control, theirs = socket.socketpair()
        lifeline, other.lifeline = os.pipe()
        other.pid = self.ask([theirs.fileno(), lifeline], do="template")["pid"]
        theirs.close()
        os.close(lifeline)
        other.process, other.children = None, []
        other.ready = other.answer()
        self.children.append(other)
        return other

    def fork(self):
        """A worker that it forks."""
        worker = ForkedWorker(self)
        self.children.append(worker)
        return worker

    def close(self):
        for child in self.children:
            child.close()
        self.control.close()
        os.close(self.lifeline)
        if self.process is not None:
            self.process.wait(ANSWER_SECONDS)


class ForkedWorker(Worker):
    """A worker that a template has forked."""

    def __init__(self, template, names=("m", "m_0_0")):
        self._equip(ARENA_BYTES)
        lifeline, self.lifeline = os.pipe()
        fds = [self._commands.fileno(), self._others.fileno(), self.inputs_fd, self.outputs_fd,
               lifeline, self._results.fileno()]
        self.template = template
        self.pid = template.ask(fds, do="worker", names=list(names))["pid"]
        os.close(lifeline)
        self._begin()

    def status(self):
        """The way in which it ended, once it has."""
        return self.template.ask(do="reap", pid=self.pid)["status"]

    def close(self):
        """Its lifeline ends it."""
        for one in (self.a, self.results, self.b):
            one.close()
        for fd in (self.inputs_fd, self.outputs_fd, self.lifeline):
            os.close(fd)


def write_model(folder, source):
    """Writes model.py as version 1 of the model `m`; returns its path."""
    path = Path(folder) / "m" / "1" / "model.py"
    path.parent.mkdir(parents=True)
    path.write_text(textwrap.dedent(source))
    return path


def floats(tensor):
    return list(array.array("f", tensor.content))
