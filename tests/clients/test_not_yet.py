"""Galatea refuses missing features by name and never ignores them.

Adding a feature removes its test here, and the mark `not_yet` from the tests of
that feature.
"""

from __future__ import annotations

import pathlib

import grpc
import pytest
from conftest import StartServer
from server import Server
from tritonclient.grpc import service_pb2, service_pb2_grpc

pytestmark = pytest.mark.galatea_only


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--allow-sagemaker=true", "the SageMaker endpoint is not supported yet"),
        ("--allow-vertex-ai=true", "the Vertex AI endpoint is not supported yet"),
    ],
)
def test_flags(start_server: StartServer, tmp_path: pathlib.Path, flag: str, reason: str) -> None:
    """Unsupported flags are refused. The usage names them all."""
    with start_server(tmp_path, flag) as server:
        assert server.wait_for_exit() == 1
        message = f'\nBad option: "{flag.split("=")[0]}".\n{reason}\n'
        assert server.log().endswith(message)


def test_vertex_ai_by_environment(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The variable that turns Vertex AI on is refused with a way to go on."""
    with start_server(tmp_path, environment={"AIP_MODE": "PREDICTION"}) as server:
        assert server.wait_for_exit() == 1
        assert "AIP_MODE=PREDICTION in the environment turns the Vertex AI" in server.log()
    flags = ("--allow-vertex-ai=false", "--allow-http=true")
    with start_server(tmp_path, *flags, environment={"AIP_MODE": "PREDICTION"}) as server:
        server.wait_until_ready()
        with pytest.raises(grpc.RpcError), grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            stub.ServerLive(service_pb2.ServerLiveRequest())


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (
            "instance_group [ { kind: KIND_GPU } ]",
            "has kind KIND_GPU but no GPUs are available",
        ),
    ],
)
def test_configurations(
    start_server: StartServer, tmp_path: pathlib.Path, field: str, reason: str
) -> None:
    """Unsupported fields that would change a model's behaviour are refused."""
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "model" / "config.pbtxt").write_text(
        'backend: "identity" max_batch_size: 8 '
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] '
        f'output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ] {field}'
    )
    with start_server(tmp_path) as server:
        assert server.wait_for_exit() == 1
        assert reason in server.log()
