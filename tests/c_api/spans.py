"""Sends traced requests to pipelines, and prints the times at which their steps waited and
executed.

    python spans.py LIBRARY REPOSITORY COUNT SIZE PIPELINE...

Prints a JSON object with a list for each pipeline: for each of COUNT requests, with an
image of SIZE by SIZE, the activities of each model and their nanoseconds.
"""

from __future__ import annotations

import array
import ctypes
import json
import sys
from ctypes import byref, c_int64, c_size_t, c_uint, c_uint64, c_void_p

from functions import TIMEOUT_SECONDS
from traces import CUSTOM, Program

TYPE_FP32, TIMESTAMPS, CHANNELS = 11, 4, 3


class Spans(Program):
    """A server and the times of one request at a time."""

    def __init__(self, library: str, repository: str, size: int) -> None:
        super().__init__(library, repository, "/nowhere", "")
        count = CHANNELS * size * size
        self.shape = (c_int64 * 4)(1, CHANNELS, size, size)
        values = array.array("f", (number % 7 / 7 for number in range(count)))
        self.data = (ctypes.c_float * count).from_buffer(values)
        self.times: dict[str, dict[str, int]] = {}

    def activity(self, trace: int, activity: int, time_ns: int, _userp: object) -> None:
        assert activity != CUSTOM
        name = self.library.TRITONSERVER_InferenceTraceActivityString(c_uint(activity)).decode()
        with self.changed:
            model = self.trace_property("ModelName", trace, ctypes.c_char_p)
            self.times.setdefault(model, {})[name] = time_ns

    def release(self, trace: int, _userp: object) -> None:
        self.check_call("InferenceTraceDelete", c_void_p(trace))
        with self.changed:
            self.released_traces += 1
            self.changed.notify()

    def trace_request(self, pipeline: str, traces: int) -> dict[str, dict[str, int]]:
        """The times of one request, which produces this many traces."""
        self.times, self.released_traces, self.final_responses, self.releases = {}, 0, 0, 0
        request, trace = c_void_p(), c_void_p()
        self.check_call(
            "InferenceRequestNew", byref(request), self.server, pipeline.encode(), c_int64(-1)
        )
        about = (request, b"image")
        self.check_call(
            "InferenceRequestAddInput", *about, c_uint(TYPE_FP32), self.shape, c_uint64(4)
        )
        size = c_size_t(ctypes.sizeof(self.data))
        place = (c_uint(0), c_int64(0))
        self.check_call("InferenceRequestAppendInputData", *about, self.data, size, *place)
        response_callback, release_callback, *trace_callbacks = self.callbacks
        self.check_call("InferenceRequestSetReleaseCallback", request, release_callback, None)
        to = (self.allocator, None, response_callback, None)
        self.check_call("InferenceRequestSetResponseCallback", request, *to)
        level = (c_uint(TIMESTAMPS), c_uint64(0))
        self.check_call("InferenceTraceTensorNew", byref(trace), *level, *trace_callbacks, None)
        self.check_call("ServerInferAsync", self.server, request, trace)
        with self.changed:
            over = lambda: (
                self.released_traces == traces and self.final_responses == self.releases == 1
            )
            if not self.changed.wait_for(over, TIMEOUT_SECONDS):
                raise TimeoutError(f"{pipeline}: {self.times}")
        return self.times


def main() -> None:
    """Runs the pipelines, each a chain of an ensemble and three models."""
    library, repository, count, size, *pipelines = sys.argv[1:]
    program = Spans(library, repository, int(size))
    print(
        json.dumps(
            {one: [program.trace_request(one, 4) for _ in range(int(count))] for one in pipelines}
        )
    )
    program.check_call("ServerStop", program.server)
    program.check_call("ServerDelete", program.server)


if __name__ == "__main__":
    main()
