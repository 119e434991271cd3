"""Tests of shape tensors, whose values describe a whole batch: requests with different values
wait.

Only TensorRT models have them. A small backend with that name returns what it receives.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

import numpy
import pytest
from tritonclient.utils import InferenceServerException

from compiling import compile_library
from conftest import StartServer
from server import Server
from transports import GrpcCalls, GrpcStream

#: Each response has, for each row of the batch: whether it holds a request, the dimensions of
#: SHAPE as the backend sees them, and SHAPE's two values.
BACKEND = """
#include "common.h"
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count) {
  int32_t rows[16][6] = {{0}};
  (void)instance;
  for (uint32_t row = 0; row < count && row < 16; ++row) {
    TRITONBACKEND_Input* input;
    const int64_t* dims;
    const int32_t* values;
    uint64_t value_count;
    uint32_t rank;
    rows[row][0] = 1;
    if (READY) {
      TRY(read_int32(requests[row], "READY", &values, &value_count));
      rows[row][0] = values[0];
    }
    TRY(TRITONBACKEND_RequestInput(requests[row], "SHAPE", &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, &dims, &rank, NULL, NULL));
    rows[row][1] = (int32_t)rank;
    rows[row][2] = (int32_t)dims[0];
    rows[row][3] = rank > 1 ? (int32_t)dims[1] : -1;
    TRY(read_int32(requests[row], "SHAPE", &values, &value_count));
    rows[row][4] = values[0];
    rows[row][5] = value_count == 2 ? values[1] : -1;
  }
  for (uint32_t row = 0; row < count; ++row) {
    TRITONBACKEND_Response* response = NULL;
    const int64_t shape[2] = {1, (int64_t)count * 6};
    void* buffer;
    TRY(TRITONBACKEND_ResponseNew(&response, requests[row]));
    uint32_t outputs = 0;
    TRY(TRITONBACKEND_RequestOutputCount(requests[row], &outputs));
    if (outputs > 0) {
      TRY(add_output(response, "ROWS", TRITONSERVER_TYPE_INT32, shape, 2, count * 24, &buffer));
      for (uint32_t index = 0; index < count * 6; ++index) {
        ((int32_t*)buffer)[index] = rows[index / 6][index % 6];
      }
    }
    log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    log_error(TRITONBACKEND_RequestRelease(requests[row], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
"""
MODEL = """
platform: "tensorrt_plan"
max_batch_size: 8
input [
  { name: "X" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "SHAPE" data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true }
]
output { name: "ROWS" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""
DYNAMIC = "dynamic_batching { }"
DIRECT = """
sequence_batching {
  direct { }
  control_input {
    name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }
  }
}
"""

Values = tuple[int, int]


@pytest.fixture
def started(
    start_server: StartServer, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> Iterator[Server]:
    """A server whose scheduler waits for a number of requests."""
    batching, waiting = request.param
    source = tmp_path / "tensorrt.c"
    source.write_text(BACKEND.replace("READY)", "1)" if batching == DIRECT else "0)", 1))
    compile_library(source, tmp_path / "backends" / "tensorrt" / "libtriton_tensorrt.so")
    model = tmp_path / "models" / "model"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.plan").write_bytes(b"")
    (model / "config.pbtxt").write_text(MODEL + batching)
    environment = {"TRITONSERVER_DELAY_SCHEDULER": str(waiting)}
    flags = [f"--backend-directory={tmp_path / 'backends'}"]
    with start_server(model.parent, *flags, environment=environment) as server:
        yield server.wait_until_ready()


def send(server: Server, shapes: Sequence[Values], **options: bool) -> list[list[list[int]]]:
    """Sends requests in order on one stream; returns the rows of each one's batch."""
    with GrpcStream(server) as stream:
        for index, values in enumerate(shapes):
            sequence = {"sequence_id": index + 1, **options} if options else {}
            stream.send(
                "model",
                {
                    "X": numpy.full((1, 1), index, numpy.int32),
                    "SHAPE": numpy.array(values, numpy.int32),
                },
                request_id=str(index),
                **sequence,
            )
        received = stream.receive_all(len(shapes))
    rows = (received[str(index)]["ROWS"][0].reshape(-1, 6) for index in range(len(shapes)))
    return [one.tolist() for one in rows]


def seen(values: Values) -> list[int]:
    """A row with a request: the batch size is shown before SHAPE's own dimension."""
    return [1, 2, 1, 2, *values]


@pytest.mark.parametrize("started", [(DYNAMIC, 5)], indirect=True)
# row: DYN-15 CFG-10
def test_requests_with_equal_shapes_share_a_batch(started: Server) -> None:
    """A request with different values closes the batch, and starts another."""
    first, second = (4, 3), (5, 3)
    batches = send(started, [first, first, second, second, first])
    assert batches[0] == batches[1] == [seen(first)] * 2
    assert batches[2] == batches[3] == [seen(second)] * 2
    assert batches[4] == [seen(first)]


@pytest.mark.galatea_only  # Triton compares up to the first byte that is 0.
@pytest.mark.parametrize("started", [(DYNAMIC, 3)], indirect=True)
# row: DYN-15
def test_all_values_count(started: Server) -> None:
    """Values that differ only after a zero byte are different."""
    first, second = (4, 3), (4, 5)
    assert send(started, [first, first, second]) == [[seen(first)] * 2] * 2 + [[seen(second)]]


@pytest.mark.parametrize("started", [(DIRECT, 3)], indirect=True)
# row: SEQ-25 CFG-10
def test_slots_with_other_shapes_wait(started: Server) -> None:
    """The slot of a request that doesn't fit is padded, with the batch's shape."""
    first, second = (4, 3), (5, 3)
    batches = send(
        started, [first, second, first], sequence_start=True, sequence_end=True
    )
    padding = [0, *seen(first)[1:]]
    assert batches[0] == batches[2] == [seen(first), padding, seen(first)]
    rows = [row for row in batches[1] if row[0] == 1]
    assert rows == [seen(second)]


@pytest.mark.parametrize("started", [(DYNAMIC, 0)], indirect=True)
# row: CFG-10
def test_a_shape_tensor_has_no_batch_dimension(started: Server) -> None:
    """It doesn't count towards the batch size, and a shape tensor with a batch dimension is
    refused."""
    x = numpy.zeros((3, 1), numpy.int32)
    calls = GrpcCalls(started)
    number = calls.send("model", {"X": x, "SHAPE": numpy.array([7, 8], numpy.int32)})
    assert calls.wait(number)["ROWS"][0].tolist() == [1, 2, 3, 2, 7, 8]
    number = calls.send("model", {"X": x, "SHAPE": numpy.zeros((3, 2), numpy.int32)})
    with pytest.raises(InferenceServerException) as refused:
        calls.wait(number)
    expected = "unexpected shape for input 'SHAPE' for model 'model'. Expected [-1,2], got [3,2]."
    assert expected in str(refused.value)
