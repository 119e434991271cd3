"""Tests of models with the same name in several repositories, with --model-namespacing=true."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from conftest import StartServer
from constant_models import added_value, request_body, write_model
from server import Reply, Server, wait_until

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step {
  model_name: "adder" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" }
  output_map { key: "OUTPUT0" value: "OUTPUT0" }
} }
"""
SECONDS_MAX = 30.0
AMBIGUITY = "model namespace must be provided to resolve ambiguity."


def write_ensemble(repository: pathlib.Path, name: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(ENSEMBLE)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two repositories, each with a model `adder` and an ensemble of it."""
    for repository, value in (("one", 1), ("two", 2)):
        write_model(tmp_path / repository, "adder", value)
        write_ensemble(tmp_path / repository, f"ensemble_{repository}")
    return tmp_path


def flags(folder: pathlib.Path, *more: str) -> list[str]:
    return [f"--model-repository={folder / 'two'}", "--model-namespacing=true", *more]


def order(server: Server, what: str) -> Reply:
    return server.request("POST", f"/v2/repository/{what}", b"{}")


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, SECONDS_MAX, "what was moved is noticed")


def namespace_of_step(server: Server, ensemble: str) -> str:
    config = server.get(f"/v2/models/{ensemble}/config").json()
    return config["ensemble_scheduling"]["step"][0]["model_namespace"]


def check_ambiguous(server: Server) -> None:
    """HTTP and gRPC refuse every request with the name."""
    for reply in (server.infer("adder", request_body()), server.get("/v2/models/adder")):
        assert reply.status == 400
        assert reply.error().endswith(AMBIGUITY)
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="adder"))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().endswith(AMBIGUITY)


# row: HTTP-24 MR-17 MET-06
def test_ensembles_load_the_models_of_their_own_repository(
    start_server: StartServer, folder: pathlib.Path
) -> None:
    """Loads and unloads affect all models of a name; the index and metrics show them all."""
    with start_server(folder / "one", *flags(folder, "--model-control-mode=explicit")) as server:
        server.wait_until_ready()
        unknown = server.infer("adder", request_body())
        assert (unknown.status, unknown.error()) == (
            400,
            "Request for unknown model: 'adder' is not found",
        )
        for name in ("ensemble_one", "ensemble_two"):
            assert order(server, f"models/{name}/load").status == 200
        assert (added_value(server, "ensemble_one"), added_value(server, "ensemble_two")) == (1, 2)
        assert namespace_of_step(server, "ensemble_one") == str(folder / "one")
        assert namespace_of_step(server, "ensemble_two") == str(folder / "two")
        check_ambiguous(server)
        index = order(server, "index").json()
        assert [entry["name"] for entry in index].count("adder") == 2
        metrics = server.metrics()
        for repository in ("one", "two"):
            labels = f'model="adder",namespace="{folder / repository}",version="1"'
            assert f"nv_inference_count{{{labels}}} 1" in metrics
        assert order(server, "models/adder/unload").status == 200
        refused = server.infer("adder", request_body())
        assert (refused.status, refused.error()) == (
            404,
            "Identifier of model 'adder' is not found in global map",
        )
        reply = server.infer("ensemble_one", request_body())
        assert reply.status == 404
        assert f"'{folder / 'one'}::ensemble_one' has no available versions" in reply.error()
        assert order(server, "models/ensemble_two/load").status == 200
        assert (added_value(server, "ensemble_one"), added_value(server, "ensemble_two")) == (1, 2)


# row: MR-17
def test_ensembles_follow_their_models(start_server: StartServer, folder: pathlib.Path) -> None:
    """An ensemble without its own model uses the other model, if there is only one."""
    polling = flags(folder, "--model-control-mode=poll", "--repository-poll-secs=1")
    with start_server(folder / "one", *polling) as server:
        server.wait_until_ready()
        assert (added_value(server, "ensemble_one"), added_value(server, "ensemble_two")) == (1, 2)
        check_ambiguous(server)
        shutil.move(folder / "one" / "adder", folder / "away")
        until(lambda: added_value(server, "ensemble_one") == 2)
        until(lambda: server.infer("adder", request_body()).status == 200)
        assert (added_value(server, "adder"), added_value(server, "ensemble_two")) == (2, 2)
        assert namespace_of_step(server, "ensemble_one") == str(folder / "two")
        shutil.move(folder / "away", folder / "one" / "adder")
        until(lambda: added_value(server, "ensemble_one") == 1)
        check_ambiguous(server)
        assert added_value(server, "ensemble_two") == 2
