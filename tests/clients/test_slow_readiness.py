"""Checks that a backend whose readiness call is slow doesn't block other requests."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from compiling import compile_library
from conftest import StartServer
from raw_http import Connection, get
from server import Server, wait_until
from test_plugin_backends import PLAIN, write_model
from transports import RESPONSE_SECONDS_MAX
from wire import Tap

#: Records each readiness call, and returns when a file exists.
SLOW = """
#include <stdio.h>
#include <unistd.h>
#include "triton/core/tritonbackend.h"
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  (void)instance;
  FILE* asked = fopen("%(folder)s/asked", "a");
  if (asked != NULL) {
    fputs("asked\\n", asked);
    fclose(asked);
  }
  while (access("%(folder)s/go", F_OK) != 0) usleep(1000); /* sleep: polls until released */
  return NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    const uint32_t count) {
  (void)instance; (void)requests; (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "not for this");
}
"""

#: More than may run at once, and enough for every I/O thread to have some.
QUESTIONS = 40


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """The directory shared with the backend; at the end the backend is released."""
    yield tmp_path
    (tmp_path / "go").touch()


@pytest.fixture
def slow(start_server: StartServer, folder: pathlib.Path) -> Iterator[Server]:
    """A server with the model `slow`, and `plain`, which has no readiness call."""
    source = folder / "slow.c"
    source.write_text(SLOW % {"folder": folder})
    compile_library(source, folder / "backends" / "slow" / "libtriton_slow.so")
    write_model(folder / "models", "slow", PLAIN % "slow")
    plain = (PLAIN % "identity").replace('"IN"', '"INPUT0"').replace('"OUT"', '"OUTPUT0"')
    write_model(folder / "models", "plain", plain)
    with start_server(folder / "models", f"--backend-directory={folder / 'backends'}") as running:
        yield running.wait_until_live()


def readiness_calls(folder: pathlib.Path) -> int:
    """The number of readiness calls."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / "asked").read_text().count("asked")
    return 0


@pytest.mark.galatea_only
@pytest.mark.parametrize("path", ["/v2/models/slow/ready", "/v2/health/ready"])
def test_other_http_connections_are_not_blocked(
    slow: Server, folder: pathlib.Path, path: str
) -> None:
    """Other requests complete while many readiness requests wait; these then complete too."""
    with contextlib.ExitStack() as stack:
        before = [stack.enter_context(Connection(slow)) for _ in range(QUESTIONS)]
        questions = [stack.enter_context(Connection(slow)) for _ in range(QUESTIONS)]
        for connection in questions:
            connection.send(get(path))
        wait_until(
            lambda: readiness_calls(folder) >= 16, RESPONSE_SECONDS_MAX, "the backend is asked"
        )
        after = [stack.enter_context(Connection(slow)) for _ in range(QUESTIONS)]
        for connection in before + after:
            for other in ("/v2/health/live", "/v2/models/plain/ready"):
                connection.send(get(other))
                assert connection.read_response() == (200, b""), other
        assert readiness_calls(folder) == 16, "the others wait for their turn"
        (folder / "go").touch()
        for connection in questions:
            assert connection.read_response() == (200, b"")
    assert readiness_calls(folder) == QUESTIONS


@pytest.mark.galatea_only
def test_other_grpc_calls_are_not_blocked(slow: Server, folder: pathlib.Path) -> None:
    """Calls of the same connection continue, and a cancelled call doesn't reach the backend."""
    with (
        contextlib.closing(Tap(slow)) as tap,
        grpc.insecure_channel(tap.grpc_url) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        model = service_pb2.ModelReadyRequest(name="slow")
        waiting = [stub.ModelReady.future(model) for _ in range(QUESTIONS - 1)]
        waiting += [stub.ServerReady.future(service_pb2.ServerReadyRequest())]
        wait_until(
            lambda: readiness_calls(folder) >= 16, RESPONSE_SECONDS_MAX, "the backend is asked"
        )
        # Calls aren't sent in the order in which they were started, so any of the others may have
        # been among the first.
        given_up = stub.ModelReady.future(model)
        wait_until(
            lambda: len(tap.requests) == QUESTIONS + 1, RESPONSE_SECONDS_MAX, "all have left"
        )
        given_up.cancel()
        plain = service_pb2.ModelReadyRequest(name="plain")
        for _ in range(QUESTIONS):
            live = stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=RESPONSE_SECONDS_MAX)
            assert live.live
            assert stub.ModelReady(plain, timeout=RESPONSE_SECONDS_MAX).ready
        assert readiness_calls(folder) == 16, "the others wait for their turn"
        (folder / "go").touch()
        assert all(call.result(RESPONSE_SECONDS_MAX).ready for call in waiting)
    assert readiness_calls(folder) == QUESTIONS
