"""Tests of the memory usage that compiled backends report, in the statistics."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import tritonclient.grpc

from conftest import StartServer
from server import Server
from compiling import compile_library

#: Reports 1,000 bytes of the CPU's memory and 5 of a GPU's for each model, and 100 for
#: each instance, in two parts of which the second counts. An execution makes the
#: instance report the requested number of bytes of another memory, or nothing.
BACKEND = """
#include "common.h"

struct part { TRITONSERVER_MemoryType type; int64_t id; size_t byte_size; };

static uint32_t
describe(const struct part* parts, uint32_t count, TRITONSERVER_BufferAttributes** usage)
{
  for (uint32_t index = 0; index < count; ++index) {
    log_error(TRITONSERVER_BufferAttributesNew(&usage[index]));
    log_error(TRITONSERVER_BufferAttributesSetMemoryType(usage[index], parts[index].type));
    log_error(TRITONSERVER_BufferAttributesSetMemoryTypeId(usage[index], parts[index].id));
    log_error(TRITONSERVER_BufferAttributesSetByteSize(usage[index], parts[index].byte_size));
  }
  return count;
}

static void
forget(TRITONSERVER_BufferAttributes** usage, uint32_t count)
{
  for (uint32_t index = 0; index < count; ++index) {
    log_error(TRITONSERVER_BufferAttributesDelete(usage[index]));
  }
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  const struct part parts[] = {
      {TRITONSERVER_MEMORY_GPU, 1, 5}, {TRITONSERVER_MEMORY_CPU, 0, 1000}};
  TRITONSERVER_BufferAttributes* usage[2];
  uint32_t count = describe(parts, 2, usage);
  TRITONSERVER_Error* failed = TRITONBACKEND_ModelReportMemoryUsage(model, usage, count);
  forget(usage, count);
  return failed;
}

static TRITONSERVER_Error*
report(TRITONBACKEND_ModelInstance* instance, const struct part* parts, uint32_t count)
{
  TRITONSERVER_BufferAttributes* usage[2];
  describe(parts, count, usage);
  TRITONSERVER_Error* failed =
      TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, usage, count);
  forget(usage, count);
  return failed;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
  const struct part parts[] = {
      {TRITONSERVER_MEMORY_CPU, 0, 7}, {TRITONSERVER_MEMORY_CPU, 0, 100}};
  return report(instance, parts, 2);
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count)
{
  const int64_t shape[1] = {1};
  for (uint32_t index = 0; index < count; ++index) {
    const int32_t* elements = NULL;
    uint64_t element_count = 0;
    TRITONBACKEND_Response* response;
    TRY(read_int32(requests[index], "IN", &elements, &element_count));
    const struct part part = {TRITONSERVER_MEMORY_CPU_PINNED, 2, (size_t)*elements};
    log_error(report(instance, &part, *elements == 0 ? 0 : 1));
    TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
    TRITONSERVER_Error* failed = write_int32(response, "OUT", shape, 1, *elements);
    log_error(TRITONBACKEND_ResponseSend(
        response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failed));
    log_error(TRITONBACKEND_RequestRelease(requests[index], 1));
  }
  return NULL;
}
"""
CONFIG = """
backend: "reporter"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group %s
"""


def memory(server: Server, model: str) -> list[dict[str, Any]]:
    """The memory usage in both protocols' statistics."""
    (over_http,) = server.get(f"/v2/models/{model}/stats").json()["model_stats"]
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        (over_grpc,) = client.get_inference_statistics(model).model_stats
    usage = [
        {"type": one.type, "id": one.id, "byte_size": one.byte_size}
        for one in over_grpc.memory_usage
    ]
    assert usage == over_http["memory_usage"]
    return usage


def entry(kind: str, number: int, byte_size: int) -> dict[str, Any]:
    """One row of the statistics."""
    return {"type": kind, "id": number, "byte_size": byte_size}


def report_usage(server: Server, model: str, number: int) -> None:
    """Makes an instance report again."""
    tensor = {"name": "IN", "shape": [1], "datatype": "INT32", "data": [number]}
    assert server.infer(model, {"inputs": [tensor]}).status == 200


@pytest.mark.parametrize(
    ("groups", "instances"),
    [
        ("{ kind: KIND_CPU count: 1 }", 1),
        ("{ kind: KIND_CPU count: 3 }", 3),
        ("[ { kind: KIND_CPU count: 1 }, { kind: KIND_CPU count: 2 passive: true } ]", 3),
    ],
)
# row: STAT-06 BAPI-05
def test_reports_are_in_the_statistics(
    start_server: StartServer, tmp_path: pathlib.Path, groups: str, instances: int
) -> None:
    """The statistics add up the latest reports of a model and its instances."""
    source = tmp_path / "reporter.c"
    source.write_text(BACKEND)
    compile_library(source, tmp_path / "backends" / "reporter" / "libtriton_reporter.so")
    model = tmp_path / "models" / "model"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG % groups)
    flag = f"--backend-directory={tmp_path / 'backends'}"
    with start_server(tmp_path / "models", flag) as server:
        server.wait_until_ready()
        gpu = entry("GPU", 1, 5)
        assert memory(server, "model") == [entry("CPU", 0, 1000 + 100 * instances), gpu]
        if instances > 1 and "passive" not in groups:
            return  # With several instances it is unknown which one executes a request.
        left = entry("CPU", 0, 1000 + 100 * (instances - 1))
        report_usage(server, "model", 64)
        assert memory(server, "model") == [left, entry("CPU_PINNED", 2, 64), gpu]
        report_usage(server, "model", 0)
        assert memory(server, "model") == [left, gpu]
