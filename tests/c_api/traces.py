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

from functions import DONE, FINAL, PATIENCE_SECONDS, TYPE_INT32, Functions

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

CUSTOM = 10


class Program(Functions):
    """A server and the traces of one case at a time."""

    def __init__(self, library: str, repository: str, backends: str, caches: str) -> None:
        super().__init__(library)
        self.traces: dict[int, dict[str, object]] = {}
        self.changed = threading.Condition()
        self.answers = self.releases = 0
        self.data = (c_int32 * 3)(1, 2, 3)
        self.callbacks = (
            DONE(self.answered),
            DONE(self.released),
            ACTIVITY(self.activity),
            TENSOR(self.tensor),
            RELEASE(self.release),
        )
        self.allocator, self.server = self.new_allocator(), c_void_p()
        options = c_void_p()
        self.must("ServerOptionsNew", byref(options))
        self.must("ServerOptionsSetModelRepositoryPath", options, repository.encode())
        self.must("ServerOptionsSetBackendDirectory", options, backends.encode())
        if caches:
            self.must("ServerOptionsSetCacheDirectory", options, caches.encode())
        self.must("ServerOptionsSetCacheConfig", options, b"local", b'{"size": "1048576"}')
        self.must("ServerOptionsSetLogInfo", options, ctypes.c_bool(False))
        self.must("ServerNew", byref(self.server), options)
        self.must("ServerOptionsDelete", options)

    def answered(self, response: int | None, flags: int, _userp: object) -> None:
        if response:
            self.must("InferenceResponseDelete", c_void_p(response))
        if flags & FINAL:
            with self.changed:
                self.answers += 1
                self.changed.notify()

    def released(self, request: int, _flags: int, _userp: object) -> None:
        self.must("InferenceRequestDelete", c_void_p(request))
        with self.changed:
            self.releases += 1
            self.changed.notify()

    def told(self, function: str, trace: int, kind: type) -> object:
        """What a function tells of a trace."""
        return self.read(f"InferenceTrace{function}", c_void_p(trace), kind)

    def note(self, trace: int, line: str) -> dict[str, object]:
        """Adds a line to what is known of a trace."""
        number = self.told("Id", trace, c_uint64)
        about = {
            "model": self.told("ModelName", trace, c_char_p),
            "version": self.told("ModelVersion", trace, c_int64),
            "request": self.told("RequestId", trace, c_char_p),
            "parent": self.told("ParentId", trace, c_uint64),
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
            names = json.loads(self.told("Context", trace, c_char_p))
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
        self.must("InferenceTraceDelete", c_void_p(trace))

    def send(self, model: str, level: int) -> None:
        """Sends a request with a trace; its end, answer and release are awaited later."""
        request, trace = c_void_p(), c_void_p()
        self.must("InferenceRequestNew", byref(request), self.server, model.encode(), c_int64(-1))
        self.must("InferenceRequestSetId", request, b"outer")
        self.must(
            "InferenceRequestAddInput",
            request,
            b"INPUT0",
            c_uint(TYPE_INT32),
            (c_int64 * 2)(1, 3),
            c_uint64(2),
        )
        size = c_size_t(ctypes.sizeof(self.data))
        self.must(
            "InferenceRequestAppendInputData",
            request,
            b"INPUT0",
            self.data,
            size,
            c_uint(0),
            c_int64(0),
        )
        answered, released, *told = self.callbacks
        self.must("InferenceRequestSetReleaseCallback", request, released, None)
        self.must(
            "InferenceRequestSetResponseCallback", request, self.allocator, None, answered, None
        )
        self.must("InferenceTraceTensorNew", byref(trace), c_uint(level), c_uint64(0), *told, None)
        self.must("ServerInferAsync", self.server, request, trace)

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
    program.must("ServerStop", program.server)
    program.must("ServerDelete", program.server)


if __name__ == "__main__":
    main()
