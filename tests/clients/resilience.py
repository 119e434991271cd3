"""The final checks of every test with hostile input: the server runs, serves and hasn't
grown."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server import Server, resident_kilobytes, wait_until

MEBIBYTE = 1 << 20

#: Longer than any error text that a server may send.
TEXT_BYTES_MAX = 100 << 10

#: What allocators may keep after a burst.
KEPT_MEBIBYTES = 96

GOOD_MODEL = "identity_int32"
GOOD_REQUEST = {
    "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]
}


def write_identity(repository: pathlib.Path, name: str, extra: str = "") -> pathlib.Path:
    """Writes an identity model, which needs no files."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'backend: "identity" max_batch_size: 8 '
        'input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } '
        'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ' + extra
    )
    return folder


def peak_kilobytes(server: Server) -> int:
    """The largest resident memory since the last `reset_peak`."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


def reset_peak(server: Server) -> None:
    """Makes the kernel restart its measurement of the largest resident memory."""
    pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


def check_serving(server: Server) -> None:
    """The process is running, and responds to a good request."""
    assert server.process.poll() is None, server.log()[-4000:]
    reply = server.infer(GOOD_MODEL, GOOD_REQUEST)
    assert reply.status == 200, reply
    assert reply.json()["outputs"][0]["data"] == [7]


@contextlib.contextmanager
def unharmed(
    server: Server, peak_mebibytes: int | None = None, kept_mebibytes: int = KEPT_MEBIBYTES
) -> Iterator[None]:
    """Checks that after the block the server is still running, serving and near its old size.

    With `peak_mebibytes`, its memory doesn't grow by more than that in between.
    """
    check_serving(server)
    reset_peak(server)
    before = resident_kilobytes(server)
    yield
    if peak_mebibytes is not None:
        grown = (peak_kilobytes(server) - before) // 1024
        assert grown < peak_mebibytes, f"memory grew by {grown} MiB"
    check_serving(server)
    limit = before + kept_mebibytes * 1024
    wait_until(
        lambda: resident_kilobytes(server) < limit, 20, f"memory is back at {before >> 10} MiB"
    )


@contextlib.contextmanager
def grpc_stub(server: Server) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    """The generated client, which can send any message."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc_url, options=options) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def infer_message(**fields: object) -> service_pb2.ModelInferRequest:
    """A good request, in which `fields` of its input are replaced."""
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], **fields}
    return service_pb2.ModelInferRequest(
        model_name=GOOD_MODEL,
        inputs=[service_pb2.ModelInferRequest.InferInputTensor(**tensor)],
        raw_input_contents=[b"\x07\0\0\0"],
    )


def refusal(call: object, message: object) -> grpc.RpcError:
    """The error of a call that must fail."""
    try:
        call(message, timeout=120)
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call succeeded")


def check_refused(call: object, message: object, text: str) -> None:
    """The call fails with INVALID_ARGUMENT and a short text that contains `text`."""
    error = refusal(call, message)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    assert text in error.details(), error
    assert len(error.details()) < TEXT_BYTES_MAX


#: How often a hostile request is repeated, after a few rounds that fill caches.
REPETITIONS = 100
WARMUP_REPETITIONS = 20

#: What repetitions may leave in memory: noise of allocators, and nothing for each.
LEFT_KILOBYTES = 16 * 1024


def repeat(
    server: Server, attempt: Callable[[], object], peak_mebibytes: int | None = None
) -> None:
    """Repeats a hostile request. The server runs and serves, and its memory doesn't grow.

    With `peak_mebibytes`, its memory doesn't grow by more than that in between.
    """
    with unharmed(server, peak_mebibytes):
        for _ in range(WARMUP_REPETITIONS):
            attempt()
        before = resident_kilobytes(server)
        for _ in range(REPETITIONS):
            attempt()
        wait_until(
            lambda: resident_kilobytes(server) - before < LEFT_KILOBYTES, 20, "memory stays flat"
        )
