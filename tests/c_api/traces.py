"""Sends traced requests to a server in this process, and prints their traces.

    python traces.py LIBRARY REPOSITORY BACKENDS CACHES CASE...

A case consists of the models of requests that are sent at the same time, joined by "+", and the
trace level after a colon: plain:4, batched+batched:12. Prints a JSON list with an entry for each
case, which contains its traces in the order of their IDs.
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

from functions import DONE, FINAL, TIMEOUT_SECONDS, TYPE_INT32, Functions

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
        self.final_responses = self.releases = 0
        self.data = (c_int32 * 3)(1, 2, 3)
        self.callbacks = (
            DONE(self.on_response),
            DONE(self.released),
            ACTIVITY(self.activity),
            TENSOR(self.tensor),
            RELEASE(self.release),
        )
        self.allocator, self.server = self.new_allocator(), c_void_p()
        options = c_void_p()
        self.check_call("ServerOptionsNew", byref(options))
        self.check_call("ServerOptionsSetModelRepositoryPath", options, repository.encode())
        self.check_call("ServerOptionsSetBackendDirectory", options, backends.encode())
        if caches:
            self.check_call("ServerOptionsSetCacheDirectory", options, caches.encode())
        self.check_call("ServerOptionsSetCacheConfig", options, b"local", b'{"size": "1048576"}')
        self.check_call("ServerOptionsSetLogInfo", options, ctypes.c_bool(False))
        self.check_call("ServerNew", byref(self.server), options)
        self.check_call("ServerOptionsDelete", options)

    def on_response(self, response: int | None, flags: int, _userp: object) -> None:
        if response:
            self.check_call("InferenceResponseDelete", c_void_p(response))
        if flags & FINAL:
            with self.changed:
                self.final_responses += 1
                self.changed.notify()

    def released(self, request: int, _flags: int, _userp: object) -> None:
        self.check_call("InferenceRequestDelete", c_void_p(request))
        with self.changed:
            self.releases += 1
            self.changed.notify()

    def trace_property(self, function: str, trace: int, kind: type) -> object:
        """The value that a function returns for a trace."""
        return self.read(f"InferenceTrace{function}", c_void_p(trace), kind)

    def record_line(self, trace: int, line: str) -> dict[str, object]:
        """Adds a line to the activities of a trace."""
        number = self.trace_property("Id", trace, c_uint64)
        about = {
            "model": self.trace_property("ModelName", trace, c_char_p),
            "version": self.trace_property("ModelVersion", trace, c_int64),
            "request": self.trace_property("RequestId", trace, c_char_p),
            "parent": self.trace_property("ParentId", trace, c_uint64),
        }
        with self.changed:
            known = self.traces.setdefault(number, {"activities": [], "time": 0, "in_time": True})
            known |= about
            known["activities"].append(line)
            self.changed.notify()
            return known

    def activity(self, trace: int, activity: int, time_ns: int, _userp: object) -> None:
        name = self.library.TRITONSERVER_InferenceTraceActivityString(c_uint(activity)).decode()
        if activity == CUSTOM:
            names = json.loads(self.trace_property("Context", trace, c_char_p))
            self.record_line(trace, f"{name} {time_ns} {names[str(time_ns)]}")
            return
        known = self.record_line(trace, name)
        known["in_time"] &= known["time"] <= time_ns
        known["time"] = time_ns

    def tensor(
        self, trace, activity, name, datatype, base, byte_size, shape, dims, memory, _id, _userp
    ) -> None:
        what = self.library.TRITONSERVER_InferenceTraceActivityString(c_uint(activity)).decode()
        content = list((c_int32 * (byte_size // 4)).from_address(base))
        shape = [shape[index] for index in range(dims)]
        self.record_line(trace, f"{what} {name.decode()} {datatype} {shape} {content} {memory}")

    def release(self, trace: int, _userp: object) -> None:
        self.record_line(trace, "released")
        self.check_call("InferenceTraceDelete", c_void_p(trace))

    def send(self, model: str, level: int) -> None:
        """Sends a request with a trace, without waiting for it."""
        request, trace = c_void_p(), c_void_p()
        self.check_call(
            "InferenceRequestNew", byref(request), self.server, model.encode(), c_int64(-1)
        )
        self.check_call("InferenceRequestSetId", request, b"outer")
        self.check_call(
            "InferenceRequestAddInput",
            request,
            b"INPUT0",
            c_uint(TYPE_INT32),
            (c_int64 * 2)(1, 3),
            c_uint64(2),
        )
        size = c_size_t(ctypes.sizeof(self.data))
        self.check_call(
            "InferenceRequestAppendInputData",
            request,
            b"INPUT0",
            self.data,
            size,
            c_uint(0),
            c_int64(0),
        )
        response_callback, release_callback, *trace_callbacks = self.callbacks
        self.check_call("InferenceRequestSetReleaseCallback", request, release_callback, None)
        self.check_call(
            "InferenceRequestSetResponseCallback",
            request,
            self.allocator,
            None,
            response_callback,
            None,
        )
        self.check_call(
            "InferenceTraceTensorNew",
            byref(trace),
            c_uint(level),
            c_uint64(0),
            *trace_callbacks,
            None,
        )
        self.check_call("ServerInferAsync", self.server, request, trace)

    def run(self, case: str) -> list[dict[str, object]]:
        """The traces of a case."""
        models, level = case.split(":")
        models_requested = models.split("+")
        self.traces.clear()
        self.final_responses = self.releases = 0
        for model in models_requested:
            self.send(model, int(level))

        def is_over() -> bool:
            last = [known["activities"][-1] for known in self.traces.values()]
            all_released = len(last) >= len(models_requested) and set(last) == {"released"}
            return all_released and self.final_responses == self.releases == len(models_requested)

        with self.changed:
            if not self.changed.wait_for(is_over, TIMEOUT_SECONDS):
                raise TimeoutError(f"{case}: {self.final_responses} responses, {self.traces}")
        # IDs differ from run to run, but their order doesn't.
        places = {number: place for place, number in enumerate(sorted(self.traces))}
        for known in self.traces.values():
            known["parent"] = places.get(known["parent"])
            del known["time"]
        return [self.traces[number] for number in places]


def main() -> None:
    """Runs the cases."""
    program = Program(*sys.argv[1:5])
    print(json.dumps([program.run(case) for case in sys.argv[5:]]))
    program.check_call("ServerStop", program.server)
    program.check_call("ServerDelete", program.server)


if __name__ == "__main__":
    main()
