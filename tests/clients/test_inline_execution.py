"""Tests that I/O threads execute fast models inline if the backend allows it.

A backend that returns the name of its thread shows which thread executed. The I/O threads of
the doors are called worker-0, worker-1 and so on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from compiling import compile_library
from conftest import StartServer
from server import Server
from test_plugin_backends import number, write_model
from transports import TRANSPORTS, Transport

pytestmark = pytest.mark.galatea_only

SECONDS_MAX = 30
#: More requests than are needed to learn that a model is quick.
MANY = 100

CONFIG = """
backend: "%s"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
%s
"""
MODELS = {
    "predictable": CONFIG % ("predictable", ""),
    "silent": CONFIG % ("silent", ""),
    "unpredictable": CONFIG % ("unpredictable", ""),
    "decoupled": CONFIG % ("predictable", "model_transaction_policy { decoupled: true }"),
    "chain": """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling {
  step { model_name: "predictable" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } }
}
""",
}

#: Answers 1 on a door's thread and 0 on another; with an input of 2 it takes a while.
SOURCE = """
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include "common.h"
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count) {
  (void)instance; (void)count;
  const int32_t* task = NULL;
  uint64_t elements = 0, start = now_ns();
  TRITONBACKEND_Response* response;
  int64_t shape[1] = {1};
  char name[32];
  TRY(read_int32(requests[0], "IN", &task, &elements));
  while (elements == 1 && task[0] == 2 && now_ns() < start + 2000000) {
  }
  pthread_getname_np(pthread_self(), name, sizeof name);
  TRY(TRITONBACKEND_ResponseNew(&response, requests[0]));
  TRY(write_int32(response, "OUT", shape, 1, strncmp(name, "worker-", 7) == 0));
  log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
  log_error(TRITONBACKEND_RequestRelease(requests[0], TRITONSERVER_REQUEST_RELEASE_ALL));
  return NULL;
}
"""
PROMISE = """
TRITONSERVER_Error* GALATEA_ModelInstancePredictable(
    TRITONBACKEND_ModelInstance* instance, bool* predictable) {
  (void)instance;
  *predictable = %s;
  return NULL;
}
"""
BACKENDS = {
    "predictable": SOURCE + PROMISE % "true",
    "unpredictable": SOURCE + PROMISE % "false",
    "silent": SOURCE,
}


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model of each kind."""
    folder = tmp_path_factory.mktemp("errands")
    for name, source in BACKENDS.items():
        code = folder / f"{name}.c"
        code.write_text(source)
        compile_library(code, folder / name / f"libtriton_{name}.so")
    for name, config in MODELS.items():
        write_model(folder / "models", name, config)
    with start_server(folder / "models", f"--backend-directory={folder}") as running:
        yield running.wait_until_ready()
    assert running.process.returncode == 0


def runs_inline(transport: Transport, model: str, task: int = 1) -> bool:
    """Returns true if a door's thread executes the request."""
    return transport.infer(model, number(task))["OUT"].tolist() == [1]


def warm_up(transport: Transport, model: str) -> None:
    """Sends requests until one is executed by the door's thread."""
    deadline = time.monotonic() + SECONDS_MAX
    while not runs_inline(transport, model):
        assert time.monotonic() < deadline, "no request is executed by the door's thread"


def test_quick_requests_execute_inline(transport: Transport) -> None:
    """This also applies to steps of an ensemble."""
    warm_up(transport, "predictable")
    warm_up(transport, "chain")


def test_slow_requests_do_not_execute_inline(transport: Transport) -> None:
    """The first few may execute inline; later ones go to the instance's thread."""
    warm_up(transport, "predictable")
    for _ in range(3):
        runs_inline(transport, "predictable", task=2)
    assert not any(runs_inline(transport, "predictable", task=2) for _ in range(MANY))
    assert not runs_inline(transport, "predictable")
    warm_up(transport, "predictable")


@pytest.mark.parametrize("model", ["silent", "unpredictable"])
def test_only_predictable_backends_execute_inline(model: str, transport: Transport) -> None:
    """Executions of other backends may wait for each other."""
    assert not any(runs_inline(transport, model) for _ in range(MANY))


def test_models_that_send_many_responses_keep_their_thread(server: Server) -> None:
    """They wait for slow readers."""
    with contextlib.closing(TRANSPORTS["stream"](server)) as stream:
        assert not any(runs_inline(stream, "decoupled") for _ in range(MANY))
