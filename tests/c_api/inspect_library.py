"""Creates requests with the functions of tritonserver.h, and prints what they report.

    python inspect_library.py LIBRARY REPOSITORY BACKENDS

Prints a JSON document with the results of the functions and of the backend `inspector`.
"""

from __future__ import annotations

import ctypes
import json
import queue
import sys
import threading
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_bool,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)

from functions import DONE, TIMEOUT_SECONDS, TYPE_INT32, Functions

QUERY = CFUNCTYPE(
    c_void_p, c_void_p, c_void_p, c_char_p, POINTER(c_size_t), POINTER(c_uint), POINTER(c_int64)
)
ATTRIBUTES = CFUNCTYPE(c_void_p, c_void_p, c_char_p, c_void_p, c_void_p, c_void_p)

START, END = 1, 2


class Program(Functions):
    """A server and its callbacks."""

    def __init__(self, library: str, repository: str, backends: str) -> None:
        super().__init__(library)
        self.queried = threading.Event()
        self.queries: list[object] = []
        self.responses: queue.Queue[int] = queue.Queue()
        self.released: queue.Queue[int] = queue.Queue()
        self.callbacks = (
            QUERY(self.query),
            DONE(lambda response, _flags, _userp: self.responses.put(response)),
            DONE(lambda request, _flags, _userp: self.released.put(request)),
        )
        self.allocator, self.plain_allocator = self.new_allocator(), self.new_allocator()
        self.check_call("ResponseAllocatorSetQueryFunction", self.allocator, self.callbacks[0])
        self.server, options = c_void_p(), c_void_p()
        self.check_call("ServerOptionsNew", byref(options))
        self.check_call("ServerOptionsSetModelRepositoryPath", options, repository.encode())
        self.check_call("ServerOptionsSetBackendDirectory", options, backends.encode())
        self.check_call("ServerOptionsSetBackendConfig", options, b"inspector", b"colour", b"red")
        self.check_call("ServerOptionsSetHostPolicy", options, b"near", b"cpu-cores", b"0-0")
        self.check_call("ServerOptionsSetStrictModelConfig", options, c_bool(False))
        self.check_call("ServerOptionsSetLogInfo", options, c_bool(False))
        self.check_call("ServerNew", byref(self.server), options)
        self.check_call("ServerOptionsDelete", options)

    def query(self, _allocator, userp, name, size, type_, id_) -> None:
        self.queries.append([userp, name.decode(), size[0], type_[0], id_[0]])
        size[0], type_[0], id_[0] = 6, 1, 3
        self.queried.set()

    def request(self, model: str) -> c_void_p:
        request = c_void_p()
        self.check_call(
            "InferenceRequestNew", byref(request), self.server, model.encode(), c_int64(-1)
        )
        return request

    def add_input(self, request: c_void_p, name: str, *values: int) -> None:
        data, shape = (c_int32 * len(values))(*values), (c_int64 * 2)(1, len(values))
        self.buffers[ctypes.addressof(data)] = data
        named = request, name.encode()
        self.check_call("InferenceRequestAddInput", *named, c_uint(TYPE_INT32), shape, c_uint64(2))
        size = c_size_t(ctypes.sizeof(data))
        self.check_call(
            "InferenceRequestAppendInputData", *named, data, size, c_uint(0), c_int64(0)
        )

    def send(self, request: c_void_p, allocator: c_void_p | None = None, userp: int = 0) -> None:
        """Sends a request."""
        self.prepare(request, allocator or self.allocator, userp)
        self.check_call("ServerInferAsync", self.server, request, None)

    def prepare(self, request: c_void_p, allocator: c_void_p, userp: int) -> None:
        """Sets the callbacks of a request."""
        _, response_callback, released = self.callbacks
        self.check_call("InferenceRequestSetReleaseCallback", request, released, None)
        self.check_call(
            "InferenceRequestSetResponseCallback",
            *(request, allocator, c_void_p(userp), response_callback, None),
        )

    def result(self) -> dict[str, object]:
        """Waits for the result of the request."""
        response = c_void_p(self.responses.get(timeout=TIMEOUT_SECONDS))
        request = c_void_p(self.released.get(timeout=TIMEOUT_SECONDS))
        error = self.call("InferenceResponseError", response)
        result = {"error": error} if error else self.describe(response)
        self.check_call("InferenceResponseDelete", response)
        self.check_call("InferenceRequestDelete", request)
        return result

    def describe(self, response: c_void_p) -> dict[str, object]:
        """All properties of a response."""
        model, version, count = c_char_p(), c_int64(), c_uint32()
        self.check_call("InferenceResponseModel", response, byref(model), byref(version))
        self.check_call("InferenceResponseParameterCount", response, byref(count))
        parameters = {}
        for index in range(count.value):
            name, kind, value = c_char_p(), c_uint(), c_void_p()
            places = map(byref, (name, kind, value))
            self.check_call("InferenceResponseParameter", response, c_uint32(index), *places)
            if kind.value == 0:
                parameters[name.value.decode()] = ctypes.string_at(value.value).decode()
            else:
                read = {1: c_int64, 2: c_bool, 3: c_double}[kind.value]
                place = ctypes.cast(value, POINTER(read))
                parameters[name.value.decode()] = place.contents.value
        self.check_call("InferenceResponseOutputCount", response, byref(count))
        name, datatype, shape, rank = c_char_p(), c_uint(), POINTER(c_int64)(), c_uint64()
        base, size, type_, id_, userp = c_void_p(), c_size_t(), c_uint(), c_int64(), c_void_p()
        places = map(byref, (name, datatype, shape, rank, base, size, type_, id_, userp))
        self.check_call("InferenceResponseOutput", response, c_uint32(0), *places)
        text = ctypes.string_at(base.value + 4, size.value - 4).decode()
        return {
            "model": f"{model.value.decode()} {version.value}",
            "id": self.read("InferenceResponseId", response, c_char_p),
            "parameters": parameters,
            "outputs": f"{count.value} {name.value.decode()} {shape[: rank.value]}",
            "memory": [type_.value, id_.value],
            "lines": text.splitlines(),
        }


def getters(program: Program, request: c_void_p) -> dict[str, object]:
    """The results of a request's getters."""
    kinds = {
        "Id": c_char_p,
        "Flags": c_uint32,
        "CorrelationId": c_uint64,
        "CorrelationIdString": c_char_p,
        "Priority": c_uint32,
        "PriorityUInt64": c_uint64,
        "TimeoutMicroseconds": c_uint64,
        "IsCancelled": c_bool,
    }
    return {
        name: program.read(f"InferenceRequest{name}", request, kind) for name, kind in kinds.items()
    }


def full(program: Program) -> dict[str, object]:
    """A request with all properties, some of which were set and removed before."""
    request = program.request("tells")
    before = getters(program, request)
    program.check_call("InferenceRequestSetId", request, b"seven")
    program.check_call("InferenceRequestSetFlags", request, c_uint32(START))
    program.check_call("InferenceRequestSetCorrelationIdString", request, b"words")
    texts = getters(program, request)
    program.check_call("InferenceRequestSetCorrelationId", request, c_uint64(1 << 40))
    program.check_call("InferenceRequestSetPriority", request, c_uint32(3))
    low = program.read("InferenceRequestPriorityUInt64", request, c_uint64)
    program.check_call("InferenceRequestSetPriorityUInt64", request, c_uint64((1 << 40) + 1))
    program.check_call("InferenceRequestSetTimeoutMicroseconds", request, c_uint64(60_000_000))
    after = getters(program, request)
    program.check_call("InferenceRequestSetPriorityUInt64", request, c_uint64(0))
    parameters = {"String": b"v", "Int": c_int64(-3), "Bool": c_bool(True), "Double": c_double(1.5)}
    for kind, value in parameters.items():
        name = f"InferenceRequestSet{kind}Parameter"
        program.check_call(name, request, kind.lower().encode(), value)
    program.add_input(request, "INPUT0", 9, 9)
    program.add_input(request, "INPUT1", 8)
    program.check_call("InferenceRequestRemoveAllInputs", request)
    program.add_input(request, "INPUT0", 5, 6, 7)
    program.add_input(request, "INPUT1", 8)
    program.add_input(request, "INPUT2", 8)
    program.check_call("InferenceRequestRemoveInput", request, b"INPUT2")
    named = (request, b"INPUT1")
    program.check_call("InferenceRequestRemoveAllInputData", *named)
    data = (c_int32 * 1)(4)
    program.buffers[ctypes.addressof(data)] = data
    size = c_size_t(ctypes.sizeof(data))
    program.check_call("InferenceRequestAppendInputData", *named, data, size, c_uint(0), c_int64(0))
    for name in (b"OTHER", b"TOLD"):
        program.check_call("InferenceRequestAddRequestedOutput", request, name)
    program.check_call("InferenceRequestRemoveAllRequestedOutputs", request)
    for name in (b"OTHER", b"TOLD"):
        program.check_call("InferenceRequestAddRequestedOutput", request, name)
    program.check_call("InferenceRequestRemoveRequestedOutput", request, b"OTHER")
    program.send(request, userp=42)
    results = program.result()
    states = {"before": before, "texts": texts, "low": low, "after": after}
    return {**states, "response": results, "queries": list(program.queries)}


def bare(program: Program) -> dict[str, object]:
    """A minimal request, whose allocator has no query function."""
    request = program.request("tells")
    program.add_input(request, "INPUT0", 1)
    program.send(request, program.plain_allocator)
    return program.result()


def described(program: Program) -> dict[str, object]:
    """A request whose input has buffer attributes and data for a host policy."""
    request = program.request("tells")
    data, near = (c_int32 * 2)(2, 3), (c_int32 * 2)(4, 5)
    attributes, shape = c_void_p(), (c_int64 * 2)(1, 2)
    named, size = (request, b"INPUT0"), c_size_t(ctypes.sizeof(data))
    program.check_call("InferenceRequestAddInput", *named, c_uint(TYPE_INT32), shape, c_uint64(2))
    program.check_call("BufferAttributesNew", byref(attributes))
    program.check_call("BufferAttributesSetByteSize", attributes, size)
    program.check_call("BufferAttributesSetMemoryType", attributes, c_uint(0))
    program.check_call(
        "InferenceRequestAppendInputDataWithBufferAttributes", *named, data, attributes
    )
    program.check_call("BufferAttributesDelete", attributes)
    place = size, c_uint(0), c_int64(0), b"near"
    program.check_call("InferenceRequestAppendInputDataWithHostPolicy", *named, near, *place)
    program.send(request, program.plain_allocator)
    results = program.result()["lines"]
    first = next(index for index, line in enumerate(results) if line.startswith("input INPUT0"))
    return results[first : first + 5]


def raw(program: Program) -> dict[str, object]:
    """Requests with raw inputs only."""
    data, results = (c_int32 * 2)(2, 3), {}
    for model in ("raw", "tells"):
        request = program.request(model)
        named = request, b"any"
        program.check_call("InferenceRequestAddRawInput", *named)
        place = c_size_t(ctypes.sizeof(data)), c_uint(0), c_int64(0)
        program.check_call("InferenceRequestAppendInputData", *named, data, *place)
        program.prepare(request, program.plain_allocator, userp=0)
        error = program.call("ServerInferAsync", program.server, request, None)
        lines = [error] if error else program.result()["lines"]
        results[model] = [line for line in lines if "INPUT0" in line or "Raw" in line]
    return results


def late_allocator_functions(program: Program) -> dict[str, object]:
    """A request whose allocator gets functions after the request uses it."""
    described = []

    @ATTRIBUTES
    def describe(_allocator, name, attributes, userp, _buffer_userp) -> None:
        program.check_call("BufferAttributesSetMemoryTypeId", c_void_p(attributes), c_int64(7))
        described.append([name.decode(), userp])

    program.queries.clear()
    request, allocator = program.request("tells"), program.plain_allocator
    program.add_input(request, "INPUT0", 1)
    program.prepare(request, allocator, userp=43)
    program.check_call("ResponseAllocatorSetBufferAttributesFunction", allocator, describe)
    program.check_call("ResponseAllocatorSetQueryFunction", allocator, program.callbacks[0])
    program.check_call("ServerInferAsync", program.server, request, None)
    result = program.result()
    for name in ("BufferAttributes", "Query"):
        program.check_call(f"ResponseAllocatorSet{name}Function", allocator, None)
    return {"queries": list(program.queries), "described": described, "memory": result["memory"]}


def sequence(program: Program) -> list[object]:
    """The last lines of a sequence's output, which describe its state."""
    results = []
    for flags in (START, 0, END):
        request = program.request("counts")
        program.check_call("InferenceRequestSetCorrelationIdString", request, b"one")
        program.check_call("InferenceRequestSetFlags", request, c_uint32(flags))
        program.add_input(request, "INPUT0", 1)
        program.send(request)
        lines = program.result()["lines"]
        results.append([line for line in lines if "correlation text" in line] + lines[-2:])
    return results


def cancelled(program: Program) -> dict[str, object]:
    """A request that is cancelled while the backend holds it."""
    program.queried.clear()
    request = program.request("waits")
    program.add_input(request, "INPUT0", 1)
    program.send(request)
    assert program.queried.wait(TIMEOUT_SECONDS)
    before = program.read("InferenceRequestIsCancelled", request, c_bool)
    program.check_call("InferenceRequestCancel", request)
    after = program.read("InferenceRequestIsCancelled", request, c_bool)
    return {"before": before, "after": after, "error": program.result().get("error")}


def models(program: Program) -> dict[str, object]:
    """The properties of a model."""
    named = (program.server, b"tells", c_int64(-1))
    flags, voidp, ready = c_uint32(), c_void_p(), c_bool()
    found = {}
    program.check_call("ServerModelIsReady", *named, byref(ready))
    found["ready"] = ready.value
    for name in ("BatchProperties", "TransactionProperties"):
        program.check_call(f"ServerModel{name}", *named, byref(flags), byref(voidp))
        found[name] = flags.value
    message, base, size = c_void_p(), c_char_p(), c_size_t()
    program.check_call("ServerModelConfig", *named, c_uint32(1), byref(message))
    program.check_call("MessageSerializeToJson", message, byref(base), byref(size))
    found["max_batch_size"] = json.loads(ctypes.string_at(base, size.value))["max_batch_size"]
    program.check_call("MessageDelete", message)
    return found


def main() -> None:
    """Runs every case."""
    program = Program(*sys.argv[1:])
    cases = [full, bare, described, raw, late_allocator_functions, sequence, cancelled, models]
    json.dump({case.__name__: case(program) for case in cases}, sys.stdout)
    program.check_call("ServerDelete", program.server)
    for allocator in (program.allocator, program.plain_allocator):
        program.check_call("ResponseAllocatorDelete", allocator)


if __name__ == "__main__":
    main()
