"""Tests of the private modules of Triton's package: the C API in Python, and the names of types."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import gc
import json
import pathlib
import queue
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import galatea
import numpy
import pytest
from conftest import ROOT, write_model

sys.path.append(str(ROOT / "python/aliases"))

import tritonserver  # noqa: E402
from tritonserver import _c  # noqa: E402

#: How long a response or an event may take.
SECONDS_MAX = 30

CONFIG = """
backend: "identity"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
PRIORITIES = "dynamic_batching { priority_levels: 5 default_priority_level: 3 }"
ENSEMBLE = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1, -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1, -1 ] } ]
ensemble_scheduling { step {
  model_name: "plain"
  model_version: -1
  input_map { key: "INPUT0" value: "IN" }
  output_map { key: "OUTPUT0" value: "OUT" }
} }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with `plain`, `levels` (which has priorities) and `ensemble`."""
    repository = tmp_path_factory.mktemp("bindings")
    for name, config in (
        ("plain", CONFIG), ("levels", CONFIG + PRIORITIES), ("ensemble", ENSEMBLE)
    ):
        write_model(repository, name, config)
    made = _c.TRITONSERVER_Server(_options(repository))
    yield made
    made.stop()


def _options(repository: pathlib.Path) -> Any:
    options = _c.TRITONSERVER_ServerOptions()
    options.set_model_repository_path(str(repository))
    options.set_server_id("bindings")
    return options


def _request(server: Any, *values: int) -> tuple[Any, Any]:
    """A request to `plain`, and the memory of its input."""
    request = _c.TRITONSERVER_InferenceRequest(server, "plain", -1)
    array = numpy.array([values], numpy.int32)
    request.id = "seven"
    request.add_input("INPUT0", _c.TRITONSERVER_DataType.INT32, array.shape)
    cpu = _c.TRITONSERVER_MemoryType.CPU
    request.append_input_data("INPUT0", array.ctypes.data, array.nbytes, cpu, 0)
    return request, array


def _read(response: Any) -> list[list[int]]:
    name, data_type, shape, address, byte_size, memory_type, _ = response.output(0)
    assert (name, data_type) == ("OUTPUT0", _c.TRITONSERVER_DataType.INT32)
    assert memory_type == _c.TRITONSERVER_MemoryType.CPU
    content = ctypes.string_at(address, byte_size)
    return numpy.frombuffer(content, numpy.int32).reshape(shape).tolist()  # type: ignore


def test_a_response_arrives_in_a_future(server: Any) -> None:
    request, _memory = _request(server, 1, 2, 3)
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    request.get_next_response(future)
    with pytest.raises(galatea.AlreadyExistsError):
        request.get_next_response(concurrent.futures.Future())
    server.infer_async(request)
    response, flags = future.result(SECONDS_MAX)
    assert flags == _c.FINAL
    response.throw_if_response_error()
    assert (response.model, response.id) == (("plain", 1), "seven")
    parameters = [response.parameter(index) for index in range(response.parameter_count)]
    assert [(kind.name, value) for _, kind, value in parameters] == [
        ("STRING", "an example string parameter"), ("INT", 42), ("BOOL", False), ("DOUBLE", 123.123),
    ]
    assert response.output_count == 1
    assert _read(response) == [[1, 2, 3]]
    assert response.output_classification_label(0, 0) == ""
    with pytest.raises(galatea.InvalidArgumentError, match="out of bounds"):
        response.parameter(4)


def test_a_response_arrives_in_a_loop(server: Any) -> None:
    async def ask() -> Any:
        request, _memory = _request(server, 4)
        server.infer_async(request)
        future = asyncio.get_running_loop().create_future()
        request.get_next_response(future)
        return await asyncio.wait_for(future, SECONDS_MAX)

    response, _ = asyncio.run(ask())
    assert _read(response) == [[4]]


def test_a_response_keeps_its_server(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path, "plain", CONFIG)
    server = _c.TRITONSERVER_Server(_options(tmp_path))
    request, _memory = _request(server, 5)
    server.infer_async(request)
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    request.get_next_response(future)
    response, _ = future.result(SECONDS_MAX)
    del server, request, future
    gc.collect()
    assert _read(response) == [[5]]


def test_a_server_may_be_dropped_on_its_own_thread(tmp_path: pathlib.Path) -> None:
    slow = 'parameters { key: "execute_delay_ms" value { string_value: "500" } }'
    write_model(tmp_path, "plain", CONFIG + slow)
    options = _options(tmp_path)
    options.set_exit_timeout(10 * SECONDS_MAX)
    server = _c.TRITONSERVER_Server(options)
    dropped = threading.Event()
    weakref.finalize(server, dropped.set)
    request, _memory = _request(server, 6)
    server.infer_async(request)
    del server, request
    assert dropped.wait(SECONDS_MAX)


def test_an_error_is_an_exception(server: Any) -> None:
    with pytest.raises(galatea.NotFoundError, match="unknown model"):
        _c.TRITONSERVER_InferenceRequest(server, "absent", -1)
    request = _c.TRITONSERVER_InferenceRequest(server, "plain", -1)
    with pytest.raises(galatea.InvalidArgumentError, match="expected 1 inputs but got 0"):
        server.infer_async(request)
    assert not tritonserver._c._inference._sent
    with pytest.raises(TypeError):
        request.flags = -1
    with pytest.raises(TypeError):
        request.add_input("INPUT0", 8, [1])


# row: SAPI-06
def test_a_priority_is_one_that_the_model_has(server: Any) -> None:
    levels = _c.TRITONSERVER_InferenceRequest(server, "levels", -1)
    assert levels.priority_uint64 == 3
    for asked, kept in ((2, 2), (5, 5), (6, 3), (0, 3)):
        levels.priority = asked
        assert levels.priority_uint64 == levels.priority == kept
    plain = _c.TRITONSERVER_InferenceRequest(server, "plain", -1)
    plain.priority = 1
    assert plain.priority_uint64 == 0
    ensemble = _c.TRITONSERVER_InferenceRequest(server, "ensemble", -1)
    ensemble.priority_uint64 = 1 << 32
    assert ensemble.priority_uint64 == 1 << 32
    overflow = "request priority overflows uint32_t, use .*UInt64, priority=4294967296"
    with pytest.raises(galatea.InvalidArgumentError, match=overflow):
        ensemble.priority  # noqa: B018


def test_a_trace_reports_to_functions(server: Any) -> None:
    seen: list[Any] = []
    released: queue.Queue[int] = queue.Queue()
    functions = (
        lambda trace, activity, _time, user: user.append((trace.model_name, activity.name)),
        lambda _trace, activity, name, _type, _base, size, shape, *rest: rest[-1].append(
            (name, activity.name, size, shape.tolist())
        ),
        lambda trace, _user: released.put(trace.id),
    )
    level = int(_c.TIMESTAMPS) | int(_c.TENSORS)
    trace = _c.TRITONSERVER_InferenceTrace(level, 9, *functions, seen)
    number = trace.id
    assert trace.parent_id == 9
    request, _memory = _request(server, 6, 7)
    server.infer_async(request, trace)
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    request.get_next_response(future)
    response, _ = future.result(SECONDS_MAX)
    del response, future
    assert released.get(timeout=SECONDS_MAX) == number
    assert ("plain", "COMPUTE_START") in seen
    assert ("INPUT0", "TENSOR_QUEUE_INPUT", 8, [1, 2]) in seen
    assert ("OUTPUT0", "TENSOR_BACKEND_OUTPUT", 8, [1, 2]) in seen
    with pytest.raises(TypeError):
        _c.TRITONSERVER_InferenceTrace(level, 9, functions[0], seen)


def test_a_server_answers_questions(server: Any) -> None:
    assert server.is_live() and server.is_ready() and server.model_is_ready("plain", 1)
    metadata = json.loads(server.metadata().serialize_to_json())
    assert metadata["name"] == "bindings"
    assert server.model_batch_properties("plain", -1) == (int(_c.FIRST_DIM), 0)
    index = json.loads(server.model_index(_c.READY).serialize_to_json())
    assert {one["name"] for one in index} == {"plain", "levels", "ensemble"}
    with pytest.raises(galatea.UnavailableError, match="explicit model load"):
        server.load_model("plain")


def test_custom_metrics(server: Any) -> None:
    kind = _c.TRITONSERVER_MetricKind.COUNTER
    family = _c.TRITONSERVER_MetricFamily(kind, "bound_total", "A counter")
    label = _c.TRITONSERVER_Parameter("book", "one")
    metric = _c.TRITONSERVER_Metric(family, [label])
    metric.increment(2)
    assert (metric.value, metric.kind) == (2, kind)
    with pytest.raises(galatea.UnsupportedError):
        metric.set_value(1)
    prometheus = _c.TRITONSERVER_MetricFormat.PROMETHEUS
    assert 'bound_total{book="one"} 2' in server.metrics().formatted(prometheus)


def test_names_of_values() -> None:
    assert _c.TRITONSERVER_DataTypeString(_c.TRITONSERVER_DataType.INVALID) == "<invalid>"
    assert _c.TRITONSERVER_StringToDataType("BF16") == _c.TRITONSERVER_DataType.BF16
    assert _c.TRITONSERVER_DataTypeByteSize(_c.TRITONSERVER_DataType.FP16) == 2
    assert _c.api_version()[0] == 1
    attributes = _c.TRITONSERVER_BufferAttributes()
    attributes.memory_type = _c.TRITONSERVER_MemoryType.CPU_PINNED
    assert attributes.memory_type == _c.TRITONSERVER_MemoryType.CPU_PINNED


def test_private_modules_have_the_types() -> None:
    api = tritonserver._api
    assert api._response.InferenceResponse is galatea.InferenceResponse
    assert api._model.Model is galatea.Model
    assert api._allocators.MemoryAllocator is galatea.MemoryAllocator
    tables = api._datautils
    assert tables.TRITON_TO_NUMPY_DTYPE[galatea.DataType.BYTES] is numpy.object_
    assert tables.NUMPY_TO_TRITON_DTYPE[numpy.float16] == galatea.DataType.FP16
    assert tables.STRING_TO_TRITON_MEMORY_TYPE["GPU"] == galatea.MemoryType.GPU
    with pytest.raises(galatea.InvalidArgumentError, match="Can't convert DISK to"):
        tables.STRING_TO_TRITON_MEMORY_TYPE["DISK"]
