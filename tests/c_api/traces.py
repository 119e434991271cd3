"""Sends traced requests to a server in this process, and prints what their traces were told.

    python traces.py LIBRARY REPOSITORY BACKENDS CACHES CASE...

A case is models to ask one after another, or at once if joined by "+", and the trace
level behind a colon: plain:4, batched+batched:12. Prints a JSON list with an entry for
each case: its traces in the order of their ids.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
)

ALLOCATE = CFUNCTYPE(
    c_void_p,
    c_void_p,
    c_char_p,
    c_size_t,
    c_uint,
    c_int64,
    c_void_p,
    POINTER(c_void_p),
    POINTER(c_void_p),
    POINTER(c_uint),
    POINTER(c_int64),
)
FREE = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_uint, c_int64)
DONE = CFUNCTYPE(None, c_void_p, c_uint, c_void_p)
ACTIVITY = CFUNCTYPE(None, c_void_p, c_uint, c_uint64, c_void_p)
TENSOR = CFUNCTYPE(
    None,
    c_void_p,
    c_uint,
    c_char_p,
    c_uint,
    c_void_p,
    c_size_t,
    POINTER(c_int64),
    c_uint64,
    c_uint,
    c_int64,
    c_void_p,
)
RELEASE = CFUNCTYPE(None, c_void_p, c_void_p)

TYPE_INT32, FINAL, CUSTOM = 8, 1, 10
PATIENCE_SECONDS = 60


class Program:
    """A server and the traces of one case at a time."""

    def __init__(self, library: str, repository: str, backends: str, caches: str) -> None:
        self.library = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self.library.TRITONSERVER_ErrorMessage.restype = c_char_p
        self.library.TRITONSERVER_InferenceTraceActivityString.restype = c_char_p
        self.traces: dict[int, dict[str, object]] = {}
        self.changed = threading.Condition()
        self.answers = self.releases = 0
        self.buffers: dict[int, object] = {}
        self.data = (c_int32 * 3)(1, 2, 3)
        self.callbacks = (
            ALLOCATE(self.allocate),
            FREE(lambda _allocator, buffer, *_: self.buffers.pop(buffer) and None),
            DONE(self.answered),
            DONE(self.released),
            ACTIVITY(self.activity),
            TENSOR(self.tensor),
            RELEASE(self.release),
        )
        self.allocator, self.server = c_void_p(), c_void_p()
        self.call("ResponseAllocatorNew", byref(self.allocator), *self.callbacks[:2], None)
        options = c_void_p()
        self.call("ServerOptionsNew", byref(options))
        self.call("ServerOptionsSetModelRepositoryPath", options, repository.encode())
        self.call("ServerOptionsSetBackendDirectory", options, backends.encode())
        if caches:
            self.call("ServerOptionsSetCacheDirectory", options, caches.encode())
        self.call("ServerOptionsSetCacheConfig", options, b"local", b'{"size": "1048576"}')
        self.call("ServerOptionsSetLogInfo", options, ctypes.c_bool(False))
        self.call("ServerNew", byref(self.server), options)
        self.call("ServerOptionsDelete", options)

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function that returns an error or null."""
        function = getattr(self.library, f"TRITONSERVER_{name}")
        function.restype = c_void_p
        error = c_void_p(function(*arguments))
        if error:
            raise RuntimeError(f"{name}: {self.library.TRITONSERVER_ErrorMessage(error).decode()}")

    def allocate(
        self, _allocator, _name, size, _type, _id, _userp, buffer, buffer_userp, type_, id_
    ) -> None:
        memory = ctypes.create_string_buffer(max(size, 1))
        buffer[0], buffer_userp[0] = ctypes.addressof(memory), None
        type_[0], id_[0] = 0, 0
        self.buffers[ctypes.addressof(memory)] = memory

    def answered(self, response: int | None, flags: int, _userp: object) -> None:
        if response:
            self.call("InferenceResponseDelete", c_void_p(response))
        if flags & FINAL:
            with self.changed:
                self.answers += 1
                self.changed.notify()

    def released(self, request: int, _flags: int, _userp: object) -> None:
        self.call("InferenceRequestDelete", c_void_p(request))
        with self.changed:
            self.releases += 1
            self.changed.notify()

    def read(self, function: str, trace: int, kind: type) -> object:
        """What a function tells of a trace."""
        place = kind()
        self.call(f"InferenceTrace{function}", c_void_p(trace), byref(place))
        return place.value.decode() if kind is c_char_p else place.value

    def note(self, trace: int, line: str) -> dict[str, object]:
        """Adds a line to what is known of a trace."""
        number = self.read("Id", trace, c_uint64)
        about = {
            "model": self.read("ModelName", trace, c_char_p),
            "version": self.read("ModelVersion", trace, c_int64),
            "request": self.read("RequestId", trace, c_char_p),
            "parent": self.read("ParentId", trace, c_uint64),
        }
        with self.changed:
            known = self.traces.setdefault(number, {"told": [], "time": 0, "in_time": True})
            known |= about
            known["told"].append(line)
            self.changed.notify()
            return known

    def activity(self, trace: int, activity: int, time_ns: int, _userp: object) -> None:
        name = self.library.TRITONSERVER_InferenceTraceActivityString(c_uint(activity)).decode()
        if activity == CUSTOM:
            names = json.loads(self.read("Context", trace, c_char_p))
            self.note(trace, f"{name} {time_ns} {names[str(time_ns)]}")
            return
        known = self.note(trace, name)
        known["in_time"] &= known["time"] <= time_ns
        known["time"] = time_ns

    def tensor(
        self, trace, activity, name, datatype, base, byte_size, shape, dims, memory, _id, _userp
    ) -> None:
        what = self.library.TRITONSERVER_InferenceTraceActivityString(c_uint(activity)).decode()
        content = list((c_int32 * (byte_size // 4)).from_address(base))
        shape = [shape[index] for index in range(dims)]
        self.note(trace, f"{what} {name.decode()} {datatype} {shape} {content} {memory}")

    def release(self, trace: int, _userp: object) -> None:
        self.note(trace, "released")
        self.call("InferenceTraceDelete", c_void_p(trace))

    def send(self, model: str, level: int) -> None:
        """Sends a request with a trace; its end, answer and release are awaited later."""
        request, trace = c_void_p(), c_void_p()
        self.call("InferenceRequestNew", byref(request), self.server, model.encode(), c_int64(-1))
        self.call("InferenceRequestSetId", request, b"outer")
        self.call(
            "InferenceRequestAddInput",
            request,
            b"INPUT0",
            c_uint(TYPE_INT32),
            (c_int64 * 2)(1, 3),
            c_uint64(2),
        )
        size = c_size_t(ctypes.sizeof(self.data))
        self.call(
            "InferenceRequestAppendInputData",
            request,
            b"INPUT0",
            self.data,
            size,
            c_uint(0),
            c_int64(0),
        )
        _, _, answered, released, *told = self.callbacks
        self.call("InferenceRequestSetReleaseCallback", request, released, None)
        self.call(
            "InferenceRequestSetResponseCallback", request, self.allocator, None, answered, None
        )
        self.call("InferenceTraceTensorNew", byref(trace), c_uint(level), c_uint64(0), *told, None)
        self.call("ServerInferAsync", self.server, request, trace)

    def run(self, case: str) -> list[dict[str, object]]:
        """The traces of a case."""
        models, level = case.split(":")
        asked = models.split("+")
        self.traces.clear()
        self.answers = self.releases = 0
        for model in asked:
            self.send(model, int(level))

        def is_over() -> bool:
            told = [known["told"][-1] for known in self.traces.values()]
            gone = len(told) >= len(asked) and set(told) == {"released"}
            return gone and self.answers == self.releases == len(asked)

        with self.changed:
            if not self.changed.wait_for(is_over, PATIENCE_SECONDS):
                raise TimeoutError(f"{case}: {self.answers} answers, {self.traces}")
        # Ids differ from run to run, but not their order.
        places = {number: place for place, number in enumerate(sorted(self.traces))}
        for known in self.traces.values():
            known["parent"] = places.get(known["parent"])
            del known["time"]
        return [self.traces[number] for number in places]


def main() -> None:
    """Runs the cases."""
    program = Program(*sys.argv[1:5])
    print(json.dumps([program.run(case) for case in sys.argv[5:]]))
    program.call("ServerStop", program.server)
    program.call("ServerDelete", program.server)


if __name__ == "__main__":
    main()
