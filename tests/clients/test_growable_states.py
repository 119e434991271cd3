"""Tests of states with `use_growable_memory`, which grow in place, in this case in CPU memory.

Triton has them only on GPUs. On a CPU, it loads such a model too, but its sequences get no state.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator

import numpy
import pytest
from example_models import sequences
from example_models.repository import write_example

from compiling import compile_library
from conftest import StartServer
from server import Server
from transports import GrpcStream, Transport

#: OUT is the sequence's list with IN behind it. Of the new state, the backend writes only what
#: is new: the others must still be there. An empty list is one zero; -N cuts the list to N.
BACKEND = """
#include <string.h>
#include "common.h"
static TRITONSERVER_Error* append(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  const int32_t* in = NULL;
  const int32_t* list = NULL;
  uint64_t in_count = 0;
  uint64_t length = 0;
  TRITONBACKEND_State* state;
  void* buffer;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  TRY(read_int32(request, "IN", &in, &in_count));
  TRY(read_int32(request, "LIST_IN", &list, &length));
  const uint64_t before = list[0] == 0 ? 0 : length;
  length = in[0] < 0 ? (uint64_t)-in[0] : before + in_count;
  const int64_t shape[2] = {1, (int64_t)length};
  TRY(TRITONBACKEND_StateNew(
      &state, request, "LIST_OUT", TRITONSERVER_TYPE_INT32, shape, 2));
  TRY(TRITONBACKEND_StateBuffer(
      state, &buffer, length * sizeof(int32_t), &memory_type, &memory_type_id));
  int32_t* grown = buffer;
  if (in[0] >= 0) {
    memcpy(grown + before, in, in_count * sizeof(int32_t));
  }
  TRY(TRITONBACKEND_StateUpdate(state));
  TRY(add_output(
      response, "OUT", TRITONSERVER_TYPE_INT32, shape, 2, length * sizeof(int32_t), &buffer));
  memcpy(buffer, grown, length * sizeof(int32_t));
  return NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count) {
  (void)instance;
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response = NULL;
    TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
    TRITONSERVER_Error* wrong = append(requests[index], response);
    log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, wrong));
    TRITONSERVER_ErrorDelete(wrong);
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
"""
GROWABLE = "use_same_buffer_for_input_output: true use_growable_memory: true"
LIST = """
backend: "lists"
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group { kind: KIND_CPU count: 1 }
sequence_batching {
  %s
  state {
    input_name: "LIST_IN" output_name: "LIST_OUT" data_type: TYPE_INT32 dims: [ -1 ]
    initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }
    use_same_buffer_for_input_output: true use_growable_memory: true
  }
}
"""
MODELS = {
    "direct": LIST % "direct { }",
    "oldest": LIST % "oldest { max_candidate_sequences: 4 }",
}

_ids = itertools.count(1)


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a C backend and an ONNX model."""
    folder = tmp_path_factory.mktemp("growable")
    source = folder / "lists.c"
    source.write_text(BACKEND)
    compile_library(source, folder / "backends" / "lists" / "libtriton_lists.so")
    repository = folder / "models"
    for name, config in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    write_example(repository, "history", sequences.history(sequences.Batching(sequences.DIRECT)))
    config = repository / "history" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace("initial_state", f"{GROWABLE} initial_state", 1))
    assert GROWABLE in config.read_text()
    flags = [f"--backend-directory={folder / 'backends'}"]
    with start_server(repository, *flags) as running:
        yield running.wait_until_ready()


@pytest.mark.galatea_only
@pytest.mark.parametrize("model", list(MODELS))
# row: IMP-09
def test_a_state_grows_and_keeps_its_contents(transport: Transport, model: str) -> None:
    """It grows to several times its initial memory, and may also shrink."""
    sequence, expected = next(_ids), []
    for step in range(1, 31):
        if step % 10 == 0:
            new, expected = [-100], expected[:100]
        else:
            new = list(range(step * 1000, step * 1000 + 300))
            expected = [*expected, *new]
        outputs = transport.infer(
            model,
            {"IN": numpy.array([new], numpy.int32)},
            sequence_id=sequence,
            sequence_start=step == 1,
        )
        assert outputs["OUT"][0].tolist() == expected


@pytest.mark.galatea_only
@pytest.mark.parametrize("model", list(MODELS))
# row: IMP-09 SEQ-15
def test_sequences_grow_by_themselves(server: Server, model: str) -> None:
    """Neither another sequence nor a padded row changes a sequence's list."""
    lists: dict[int, list[int]] = {next(_ids): [] for _ in range(3)}
    order = [*lists] * 3 + [list(lists)[-1]] * 40 + [*lists] * 30
    with GrpcStream(server) as stream:
        for index, sequence in enumerate(order):
            own = lists[sequence]
            stream.send(
                model,
                {"IN": numpy.array([[index + 1]], numpy.int32)},
                request_id=str(index),
                sequence_id=sequence,
                sequence_start=not own,
            )
            own.append(index + 1)
        received = stream.receive_all(len(order))
    for sequence, own in lists.items():
        mine = [index for index, one in enumerate(order) if one == sequence]
        for length, index in enumerate(mine, 1):
            assert received[str(index)]["OUT"][0].tolist() == own[:length]


@pytest.mark.galatea_only
# row: IMP-09 IMP-07
def test_a_model_of_onnx_has_such_a_state(transport: Transport, server: Server) -> None:
    """Each of its states gets memory of its own size, and a warning says so."""
    sequence = next(_ids)
    for step in range(5):
        outputs = transport.infer(
            "history",
            {"INPUT": numpy.array([[step]], numpy.int32)},
            sequence_id=sequence,
            sequence_start=step == 0,
        )
        assert outputs["SEEN_NEXT"][0].tolist() == [0, *range(step + 1)]
    text = "'sequence_batching.state.use_growable_memory' changes nothing: each new state gets"
    assert f"model 'history': {text}" in server.log()
    assert f"model 'direct': {text}" not in server.log()
    config = server.get("/v2/models/history/config").json()
    assert config["sequence_batching"]["state"][0]["use_growable_memory"] is True
