"""Tests of the calls in Triton's gRPC service, as listed in its published protocol."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import message_factory
from tritonclient.grpc import service_pb2

from conftest import StartServer
from resilience import grpc_stub
from server import Server

SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
CALLS = """
    ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer ModelStreamInfer
    ModelConfig ModelStatistics RepositoryIndex RepositoryModelLoad RepositoryModelUnload
    SystemSharedMemoryStatus SystemSharedMemoryRegister SystemSharedMemoryUnregister
    CudaSharedMemoryStatus CudaSharedMemoryRegister CudaSharedMemoryUnregister
    TraceSetting LogSettings
""".split()


@pytest.fixture(scope="module")
def whole(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that clients may control."""
    folder: pathlib.Path = tmp_path_factory.mktemp("service")
    flags = ("--model-control-mode=explicit", "--allow-client-shm=true")
    with start_server(folder, *flags) as server:
        yield server.wait_until_ready()


# row: GRPC-01 GRPC-25
def test_the_service_has_these_calls() -> None:
    """The published protocol has no other calls."""
    assert sorted(method.name for method in SERVICE.methods) == sorted(CALLS)


@pytest.mark.parametrize("name", CALLS)
# row: GRPC-01
def test_every_call_is_answered(whole: Server, name: str) -> None:
    """An empty message gets a response, or its contents are refused, but never the call
    itself."""
    request = message_factory.GetMessageClass(SERVICE.methods_by_name[name].input_type)()
    with grpc_stub(whole) as stub:
        call = getattr(stub, name)
        try:
            answers = call(iter([request])) if name == "ModelStreamInfer" else [call(request)]
            assert len(list(answers)) == 1
        except grpc.RpcError as error:
            assert error.code() in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.INTERNAL,
            ), error
            assert error.details()


def test_an_unknown_call(whole: Server) -> None:
    """Nonexistent calls get UNIMPLEMENTED."""
    with grpc.insecure_channel(whole.grpc_url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelGuess")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
