"""Tests of streams from decoupled Python models that are unloaded, reloaded or stopped in the
meantime.

As in Triton, the model continues until the last response, and is finalized after it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy
import pytest

from python_backend import (
    PythonServer,
    start_python,  # noqa: F401
    write_model,
)
from server import Server, wait_until
from transports import GrpcStream

EXPLICIT = "--model-control-mode=explicit"
CONFIG = """
max_batch_size: 0
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
# A thread sends one response immediately, and the others once a file exists.
MODEL = """
import os
import threading
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def send(self, sender):
        for number in range(3):
            tensor = pb_utils.Tensor("OUT", numpy.array([number], numpy.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
            while not os.path.exists("%s"):
                time.sleep(0.01)  # sleep: polls until the test lets it go on
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.send, args=(request.get_response_sender(),)).start()

    def finalize(self):
        pb_utils.Logger.log_info("it is finalized")
"""
FINALIZED = "it is finalized"
TENSORS = {"IN": numpy.array([1], numpy.int32)}
END_SECONDS_MAX = 60


def add_model(repository: pathlib.Path, name: str, go_on: pathlib.Path) -> None:
    write_model(repository, name, CONFIG, None)
    (repository / name / "1" / "model.py").write_text(MODEL % go_on)


def control(server: Server, action: str, model: str) -> None:
    reply = server.request("POST", f"/v2/repository/models/{model}/{action}", b"")
    assert reply.status == 200, reply


def values(stream: GrpcStream) -> Iterator[int]:
    while True:
        _, outputs = stream.receive()
        yield int(outputs["OUT"][0])


def is_unloaded(server: Server, model: str) -> bool:
    return f"successfully unloaded '{model}' version 1" in server.log()


@pytest.mark.parametrize("action", ["unload", "load"])
# row: DEC-01 MR-10 MR-12
def test_a_stream_ends_before_its_model(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
    action: str,
) -> None:
    """Others are unloaded in the meantime."""
    repository, go_on = tmp_path / "models", tmp_path / "go_on"
    add_model(repository, "streamer", go_on)
    add_model(repository, "other", go_on)
    with start_python(repository, EXPLICIT, "--load-model=*") as server:
        server.wait_until_ready()
        with GrpcStream(server) as stream:
            stream.send("streamer", TENSORS)
            received = values(stream)
            assert next(received) == 0
            if action == "load":
                # A different file, so that there is something to load.
                path = repository / "streamer" / "1" / "model.py"
                path.write_text(path.read_text() + "# changed\n")
            control(server, action, "streamer")
            control(server, "unload", "other")
            wait_until(lambda: is_unloaded(server, "other"), END_SECONDS_MAX, "the other is gone")
            # A library's instance ends after its version.
            assert not is_unloaded(server, "streamer") or not start_python.is_own
            assert server.log().count(FINALIZED) == 1
            go_on.touch()
            assert [next(received), next(received)] == [1, 2]
        wait_until(lambda: is_unloaded(server, "streamer"), END_SECONDS_MAX, "it is gone")
        wait_until(lambda: server.log().count(FINALIZED) == 2, END_SECONDS_MAX, "it is finalized")
        control(server, "unload", "streamer")
        wait_until(lambda: start_python.regions() == [], END_SECONDS_MAX, "its memory is gone")


@pytest.mark.galatea_only
# row: DEC-01 MR-12
def test_a_stream_without_a_client_does_not_hold_its_model(
    start_python: PythonServer,  # noqa: F811
    tmp_path: pathlib.Path,
) -> None:
    """Triton waits for the last response in this case too."""
    if not start_python.is_own:
        pytest.skip("Triton's backend waits")
    repository, go_on = tmp_path / "models", tmp_path / "go_on"
    add_model(repository, "streamer", go_on)
    with start_python(repository, EXPLICIT, "--load-model=*") as server:
        server.wait_until_ready()
        stream = GrpcStream(server)
        stream.send("streamer", TENSORS)
        assert next(values(stream)) == 0
        stream.close(cancel=True)
        control(server, "unload", "streamer")
        wait_until(lambda: FINALIZED in server.log(), END_SECONDS_MAX, "it is finalized")
        # The model's thread continues, so the process may not end by itself.
        go_on.touch()
        wait_until(lambda: is_unloaded(server, "streamer"), END_SECONDS_MAX, "it is gone")
