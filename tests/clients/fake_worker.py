"""A worker of a Python model that follows the protocol until it is told not to.

It is started instead of the interpreter: `write_interpreter` writes the program. The file `way`
next to it specifies what the fake worker does wrong; without the file, it does nothing wrong.
"""

import array
import json
import os
import pathlib
import signal
import socket
import struct
import sys

EXECUTE, FINALIZE, INITIALIZE = 1, 3, 5
RESULT, CALL, OK_JSON, FAILED, DONE, HELLO = 1, 2, 10, 11, 12, 20
B_RESPONSE, B_RELEASE, B_READY = 2, 5, 8
BYTES, INT32 = 13, 8
GARBAGE = b"\xff" * 4096
ARENA_BYTES = 64 << 30


def hang() -> None:
    """Does nothing until the server ends the process."""
    while True:
        signal.pause()


def text(value: str) -> bytes:
    """A string on the wire."""
    return struct.pack("<I", len(value.encode())) + value.encode()


def tensor(name: str, datatype: int, shape: list[int], place: bytes) -> bytes:
    """A tensor with its location."""
    dims = struct.pack(f"<I{len(shape)}q", len(shape), *shape)
    return text(name) + bytes((datatype,)) + dims + place


def inline(content: bytes) -> bytes:
    """Content within the frame."""
    return b"\0" + struct.pack("<I", len(content)) + content


def element(value: bytes) -> bytes:
    """An element of a tensor of strings."""
    return struct.pack("<I", len(value)) + value


#: The only output of a good response.
GOOD = tensor("OUT", BYTES, [1], inline(element(b"good")))


def response(outputs: list[bytes], parameters: str = "") -> bytes:
    """A response with tensors."""
    return b"\1" + text(parameters) + struct.pack("<I", len(outputs)) + b"".join(outputs)


def result(key: int, body: bytes, flags: int = 1) -> bytes:
    """The result of a request."""
    return struct.pack("<QI", key, flags) + body


def results(*found: bytes, released: tuple[int, ...] = (), sent: int = 0) -> bytes:
    """The payload of a RESULT frame."""
    trailer = struct.pack(f"<I{len(released)}QQ", len(released), *released, sent)
    return b"\0" + struct.pack("<I", len(found)) + b"".join(found) + trailer


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame with its length."""
    return struct.pack("<IB", len(payload) + 1, kind) + payload


def wrong_results(key: int) -> dict[str, bytes]:
    """RESULT payloads that no worker sends, by what is wrong with them."""
    good = response([GOOD])
    one = lambda output: results(result(key, response([output])))  # noqa: E731
    return {
        "unknown_key": results(result(key + 1000, good)),
        "no_key": results(),
        "key_twice": results(result(key, good), result(key, good)),
        "released_twice": results(result(key, good), released=(0, 0)),
        "released_nonsense": results(result(key, good), released=(12345,)),
        "unknown_outcome": b"\x09" + results()[1:],
        "unknown_response": results(result(key, b"\x09")),
        "unknown_datatype": one(tensor("OUT", 99, [1], inline(b"x"))),
        "unknown_place": one(tensor("OUT", INT32, [1], b"\x09")),
        "negative_shape": one(tensor("OUT", INT32, [-1], inline(bytes(4)))),
        "overflowing_shape": one(tensor("OUT", INT32, [1 << 40, 1 << 40], inline(bytes(4)))),
        "name_is_not_utf8": results(result(key, b"\1" + text("") + struct.pack("<I", 1)
                                           + struct.pack("<I", 2) + b"\xff\xfe" + GOOD[7:])),
        "parameters_are_no_object": results(result(key, response([GOOD], "[1]"))),
        "parameters_nested": results(result(key, response([GOOD], '{"a":{}}'))),
        "too_many_outputs": results(result(key, b"\1" + text("") + struct.pack("<I", 1 << 30))),
        "cut": results(result(key, good))[:-3],
        "surplus": results(result(key, good)) + b"x",
    }


def wrong_tensors() -> dict[str, bytes]:
    """Outputs whose content doesn't match their description: only their own request fails."""
    place = lambda kind, offset, length: struct.pack("<BQQ", kind, offset, length)  # noqa: E731
    return {
        "too_short": tensor("OUT", INT32, [2], inline(bytes(4))),
        "too_long": tensor("OUT", INT32, [1], inline(bytes(8))),
        "elements_cut": tensor("OUT", BYTES, [1], inline(b"\xff\0\0\0x")),
        "elements_missing": tensor("OUT", BYTES, [2], inline(element(b"x"))),
        "behind_the_arena": tensor("OUT", INT32, [1], place(2, ARENA_BYTES - 2, 4)),
        "far_away": tensor("OUT", INT32, [1], place(2, (1 << 64) - 4, 4)),
        "never_written": tensor("OUT", INT32, [1 << 28], place(2, 0, 1 << 30)),
        "input_not_in_use": tensor("OUT", INT32, [1], place(1, 4096, 4)),
    }


class Fake:
    """The worker."""

    def __init__(self, a: socket.socket, folder: pathlib.Path) -> None:
        self.a = a
        for _ in range(2):  # the first code, and the modules
            (size,) = struct.unpack("<I", self.exactly(4))
            self.exactly(size)
        _, ancillary, _, _ = a.recvmsg(1, socket.CMSG_SPACE(64))
        fds = array.array("i")
        fds.frombytes(ancillary[0][2])
        self.b = socket.socket(fileno=fds[0])
        self.results = socket.socket(fileno=fds[4])
        self.folder = folder

    def exactly(self, count: int) -> bytes:
        """Reads this number of bytes from the socket for executions."""
        data = bytearray()
        while len(data) < count:
            chunk = self.a.recv(count - len(data))
            if not chunk:
                sys.exit(0)
            data += chunk
        return bytes(data)

    def read(self) -> tuple[int, bytes]:
        """The next frame's kind and payload."""
        (size,) = struct.unpack("<I", self.exactly(4))
        body = self.exactly(size)
        return body[0], body[1:]

    def way(self, *states: str) -> str:
        """Returns what goes wrong in this state. It goes wrong once."""
        path = self.folder / "way"
        try:
            found = path.read_text()
        except OSError:
            return ""
        if found.partition(":")[0] not in states:
            return ""
        path.unlink()
        return found

    def run(self) -> None:
        """Communicates with the server."""
        way = self.way("hello", "initialize")
        self.misbehave(way, "hello")
        hello = {"protocol": 1, "python": "3.9.0", "pid": os.getpid()}
        self.results.sendall(frame(HELLO, text(json.dumps(hello))))
        while True:
            kind, payload = self.read()
            if kind == INITIALIZE:
                self.misbehave(way, "initialize")
                self.results.sendall(frame(OK_JSON, text('{"is_ready": false, "async": false}')))
            elif kind == EXECUTE:
                self.execute(payload)
            elif kind == FINALIZE:
                self.misbehave(self.way("finalize"), "finalize")
                self.results.sendall(frame(DONE))
                return

    def misbehave(self, way: str, state: str) -> None:
        """Follows `way`, if it applies to this state."""
        wanted, _, what = way.partition(":")
        if wanted != state:
            return
        if what == "garbage":
            self.results.sendall(GARBAGE)
        elif what == "garbage_beside":
            self.b.sendall(GARBAGE)
        elif what == "unknown_kind":
            self.results.sendall(frame(77))
        elif what == "unknown_kind_beside":
            self.b.sendall(frame(77))
        elif what == "result":
            self.results.sendall(frame(RESULT, results()))
        elif what == "empty":
            self.results.sendall(bytes(4))
        elif what == "endless_length":
            self.results.sendall(b"\xff\xff\xff\xff")
        elif what == "half_a_frame":
            self.results.sendall(frame(OK_JSON, text("{}"))[:-1])
            self.a.close()
            self.results.close()
            self.b.close()
            hang()
        elif what == "silence":
            hang()
        elif what == "leave":
            os._exit(5)
        hang()

    def execute(self, payload: bytes) -> None:
        """Responds to the requests in a batch."""
        (count,) = struct.unpack_from("<I", payload)
        assert count == 1
        (key,) = struct.unpack_from("<Q", payload, 4)
        way = self.way("execute", "execute_twice", "result", "tensor", "sent", "beside")
        self.misbehave(way, "execute")
        good = results(result(key, response([GOOD])))
        _, _, what = way.partition(":")
        if way.startswith("result:"):
            self.results.sendall(frame(RESULT, wrong_results(key)[what]))
        elif way.startswith("tensor:"):
            body = response([wrong_tensors()[what]])
            self.results.sendall(frame(RESULT, results(result(key, body))))
        elif way.startswith("sent:"):
            # The sender sends the response, and the result states this.
            body = response([wrong_tensors()[what]])
            self.b.sendall(frame(B_RESPONSE, struct.pack("<QI", key, 1) + body))
            self.results.sendall(frame(RESULT, results(result(key, b"\0"), sent=1)))
        elif way == "beside:twice":
            sent = frame(B_RESPONSE, struct.pack("<QI", key, 1) + response([GOOD]))
            self.b.sendall(sent + sent)
            self.results.sendall(frame(RESULT, results(result(key, response([GOOD])), sent=2)))
        elif way == "beside:unknown":
            sent = frame(B_RESPONSE, struct.pack("<QI", key + 7, 1) + response([GOOD]))
            self.b.sendall(sent)
            self.results.sendall(frame(RESULT, good))
        elif way == "beside:released":
            self.b.sendall(frame(B_RELEASE, struct.pack("<IQ", 1, 8192)))
            hang()
        elif way == "beside:ready":
            self.b.sendall(frame(B_READY, struct.pack("<QB", 3, 1)))
            hang()
        elif way == "beside:promised":
            # It announces frames that it never sends.
            self.results.sendall(frame(RESULT, results(result(key, response([GOOD])), sent=1 << 40)))
        elif way == "execute_twice":
            self.results.sendall(frame(RESULT, good) * 2)
        else:
            self.results.sendall(frame(RESULT, good))


def write_interpreter(folder: pathlib.Path) -> pathlib.Path:
    """A program that is started as an interpreter, but is a fake worker."""
    program = folder / "interpreter"
    here = pathlib.Path(__file__).resolve()
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(here.parent)!r})\n"
                       f"import fake_worker\nfake_worker.main({str(folder)!r})\n")
    program.chmod(0o755)
    return program


def main(folder: str) -> None:
    """Runs the fake worker."""
    Fake(socket.socket(fileno=0), pathlib.Path(folder)).run()
