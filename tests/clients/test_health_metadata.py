"""Tests of health, metadata, configuration and the table of routes."""

from __future__ import annotations

import json

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from raw_http import Connection
from server import Server

#: The extensions, in Triton's order.
EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]

SIMPLE_METADATA = {
    "name": "simple",
    "versions": ["1"],
    "platform": "onnxruntime",
    "inputs": [
        {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]},
        {"name": "INPUT1", "datatype": "INT32", "shape": [-1, 16]},
    ],
    "outputs": [
        {"name": "OUTPUT0", "datatype": "INT32", "shape": [-1, 16]},
        {"name": "OUTPUT1", "datatype": "INT32", "shape": [-1, 16]},
    ],
}


@pytest.mark.parametrize("kind", ["live", "ready"])
# row: HTTP-04 DEP-01 DEP-02
def test_health_is_200_with_an_empty_body(server: Server, kind: str) -> None:
    """Orchestrators read only the status."""
    reply = server.get(f"/v2/health/{kind}")
    assert (reply.status, reply.body) == (200, b"")


def test_clients_see_health(
    http_client: tritonclient.http.InferenceServerClient,
    grpc_client: tritonclient.grpc.InferenceServerClient,
) -> None:
    """Both client libraries agree that server and model are ready."""
    for client in (http_client, grpc_client):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("simple")
        assert client.is_model_ready("simple", "1")


@pytest.mark.parametrize("name, version", [("absent", ""), ("simple", "7")])
def test_unknown_models_are_not_ready_for_clients(
    http_client: tritonclient.http.InferenceServerClient,
    grpc_client: tritonclient.grpc.InferenceServerClient,
    name: str,
    version: str,
) -> None:
    """Both client libraries return false, without an exception."""
    assert http_client.is_model_ready(name, version) is False
    assert grpc_client.is_model_ready(name, version) is False


# row: GRPC-02
def test_grpc_health_service(server: Server) -> None:
    """The standard health service also works, for any service name."""
    import grpc

    with grpc.insecure_channel(server.grpc_url) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == b"\x08\x01"
        assert check(b"\x0a\x03any") == b"\x08\x01"


# row: HTTP-08
def test_server_metadata(server: Server) -> None:
    """The name, the version and the extensions in their fixed order."""
    reply = server.get("/v2")
    assert reply.status == 200
    document = reply.json()
    assert list(document) == ["name", "version", "extensions"]
    assert document["name"] == "triton"
    # Tools compare it with Triton's releases.
    assert document["version"].startswith("2.")
    assert server.is_triton or document["version"] == "2.73.0+galatea.0.1.0"
    assert document["extensions"] == EXTENSIONS


# row: GRPC-04
def test_server_metadata_over_grpc_is_the_same(
    server: Server, grpc_client: tritonclient.grpc.InferenceServerClient
) -> None:
    """Both protocols return the same content."""
    expected = server.get("/v2").json()
    assert grpc_client.get_server_metadata(as_json=True) == expected


@pytest.mark.parametrize("path", ["", "/versions/1"])
# row: HTTP-09
def test_model_metadata(server: Server, path: str) -> None:
    """Shapes contain the batch dimension as -1."""
    reply = server.get(f"/v2/models/simple{path}")
    assert reply.status == 200
    document = reply.json()
    assert document["platform"] in ("onnxruntime", "onnxruntime_onnx")
    assert document == {**SIMPLE_METADATA, "platform": document["platform"]}


# row: GRPC-04
def test_model_metadata_over_grpc(
    server: Server, grpc_client: tritonclient.grpc.InferenceServerClient
) -> None:
    """The same content, with 64-bit numbers as JSON strings."""
    over_http = server.get("/v2/models/simple").json()
    over_grpc = grpc_client.get_model_metadata("simple", as_json=True)
    for kind in ("inputs", "outputs"):
        for tensor in over_grpc[kind]:
            tensor["shape"] = [int(size) for size in tensor["shape"]]
    assert over_grpc == over_http


@pytest.mark.parametrize(
    "model, shape",
    [("onnx_no_batch", [2, 3]), ("identity_matrix", [-1, -1]), ("identity_fp32", [-1, -1])],
)
# row: HTTP-09
def test_metadata_without_and_with_batches(server: Server, model: str, shape: list[int]) -> None:
    """Only a model with batches gets a dimension that isn't in its configuration."""
    (tensor,) = server.get(f"/v2/models/{model}").json()["inputs"]
    assert tensor["shape"] == shape


def test_scalar_output_is_described_by_its_dims(server: Server) -> None:
    """The metadata shows what clients see, not what the model's file contains."""
    (tensor,) = server.get("/v2/models/onnx_scalar").json()["outputs"]
    assert tensor == {"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, 1]}


@pytest.mark.parametrize("path", ["", "/versions/1"])
# row: HTTP-06
def test_model_readiness(server: Server, path: str) -> None:
    """A ready model has status 200 and no body."""
    reply = server.get(f"/v2/models/simple{path}/ready")
    assert (reply.status, reply.body) == (200, b"")


@pytest.mark.parametrize("path", ["absent", "simple/versions/7"])
# row: HTTP-06
def test_unknown_models_are_not_ready(server: Server, path: str) -> None:
    """A model that isn't ready gets 400, whether or not it exists."""
    reply = server.get(f"/v2/models/{path}/ready")
    assert (reply.status, reply.error()) == (400, "Model version not ready")
    assert reply.headers["Content-Type"] == "text/plain"


# row: PCFG-01 CFG-26
def test_config_prints_every_default(server: Server) -> None:
    """Clients read scheduling settings and instances from here."""
    reply = server.get("/v2/models/simple/config")
    assert reply.status == 200
    config = reply.json()
    assert config["name"] == "simple"
    assert config["backend"] == "onnxruntime"
    assert config["max_batch_size"] == 8
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["input"][0]["data_type"] == "TYPE_INT32"
    assert config["input"][0]["dims"] == [16]
    assert config["input"][0]["optional"] is False
    assert config["input"][0]["format"] == "FORMAT_NONE"
    assert config["output"][1]["name"] == "OUTPUT1"
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    assert config["dynamic_batching"]["preserve_ordering"] is False
    (group,) = config["instance_group"]
    assert (group["name"], group["kind"]) == ("simple", "KIND_CPU")
    assert config["default_model_filename"] == "model.onnx"
    assert config["model_warmup"] == []
    assert config["parameters"] == {}


# row: CFG-25 ONNX-02
def test_config_is_completed_from_the_model(server: Server) -> None:
    """A model without config.pbtxt gets inputs, outputs, batches and a batcher."""
    config = server.get("/v2/models/autocomplete/config").json()
    assert config["backend"] == "onnxruntime"
    assert config["max_batch_size"] == 4
    assert [(one["name"], one["data_type"], one["dims"]) for one in config["input"]] == [
        ("values", "TYPE_FP32", [4])
    ]
    assert {one["name"]: one["dims"] for one in config["output"]} == {"doubled": [4], "total": [1]}
    assert "dynamic_batching" in config


# row: PCFG-02
def test_config_over_grpc(
    server: Server, grpc_client: tritonclient.grpc.InferenceServerClient
) -> None:
    """The message contains what the JSON form prints."""
    expected = server.get("/v2/models/mlp/config").json()
    config = grpc_client.get_model_config("mlp").config
    assert config.max_batch_size == expected["max_batch_size"] == 64
    preferred = list(config.dynamic_batching.preferred_batch_size)
    assert preferred == expected["dynamic_batching"]["preferred_batch_size"] == [8, 16, 32, 64]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500


@pytest.mark.parametrize(
    "operation",
    [
        "",
        "/config",
        "/infer",
        "/generate",
        "/generate_stream",
    ],
)
# row: HTTP-24
def test_unknown_model_is_404(server: Server, operation: str) -> None:
    """The text starts as clients expect."""
    is_post = operation in ("/infer", "/generate", "/generate_stream")
    body = b'{"inputs":[]}' if is_post else None
    path = f"/v2/models/absent{operation}"
    reply = server.request("POST" if is_post else "GET", path, body)
    assert reply.status == 404
    assert reply.error().startswith("Request for unknown model: ")


@pytest.mark.parametrize("operation", ["", "/config", "/infer"])
# row: HTTP-24
def test_unknown_version_is_404(server: Server, operation: str) -> None:
    """An unknown version of a known model is not found either."""
    is_post = operation == "/infer"
    path = f"/v2/models/simple/versions/7{operation}"
    reply = server.request(
        "POST" if is_post else "GET", path, b'{"inputs":[]}' if is_post else None
    )
    assert reply.status == 404
    assert reply.error().startswith("Request for unknown model: ")


@pytest.mark.galatea_only
@pytest.mark.parametrize("model", ["simple", "autocomplete", "token_counter"])
def test_scheduler_status(server: Server, model: str) -> None:
    """With and without a version; unknown versions and other methods behave as for models."""
    path = f"/v2/models/{model}"
    for reply in (server.get(f"{path}/scheduler"), server.get(f"{path}/versions/1/scheduler")):
        assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
        assert (reply.json()["name"], reply.json()["version"]) == (model, "1")
    assert server.get(f"{path}/versions/7/scheduler").status == 404
    assert server.get(f"{path}x/scheduler").status == 404
    assert server.request("POST", f"{path}/scheduler", b"{}").status == 405


@pytest.mark.parametrize(
    "method, path, status, content_type",
    [
        ("GET", "/v2/health/live", 200, "text/plain"),
        ("GET", "/v2/models/simple/ready", 200, "text/plain"),
        ("POST", "/v2/health/live", 405, "text/plain"),
        ("GET", "/v2/nothing", 404, "text/plain"),
        ("GET", "/v2/models/absent", 404, "application/json"),
        ("POST", "/v2/models/simple", 405, "application/json"),
        ("POST", "/v2/models/absent/infer", 404, "text/plain"),
        ("POST", "/v2/models/simple/infer", 500, "application/json"),
        ("GET", "/v2/models/simple/infer", 405, "text/plain"),
    ],
)
def test_content_types(
    server: Server, method: str, path: str, status: int, content_type: str
) -> None:
    """Errors that are found before the JSON handler starts are plain text."""
    reply = server.request(method, path, b"{}" if method == "POST" else None)
    assert (reply.status, reply.headers["Content-Type"]) == (status, content_type)
    assert not reply.body or list(json.loads(reply.body)) == ["error"]


def test_the_reason_phrase_of_405(server: Server) -> None:
    """The text is Triton's library's, however the request is served."""
    for more in [b"", b"TE: trailers\r\n"]:
        with Connection(server) as connection:
            connection.send(b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n", more, b"\r\n")
            assert connection.read_head().startswith(b"HTTP/1.1 405 Not Allowed\r\n")


@pytest.mark.parametrize("call", ["get_model_metadata", "get_model_config"])
@pytest.mark.parametrize("name, version", [("absent", ""), ("simple", "7")])
# row: GRPC-03
def test_unknown_model_over_grpc_is_not_found(
    grpc_client: tritonclient.grpc.InferenceServerClient, call: str, name: str, version: str
) -> None:
    """NOT_FOUND is gRPC's 404."""
    with pytest.raises(InferenceServerException, match="Request for unknown model: ") as caught:
        getattr(grpc_client, call)(name, version)
    assert caught.value.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize("version", ["x", "-1", "9223372036854775808"])
# row: GRPC-05
def test_bad_version_over_grpc_is_an_invalid_argument(server: Server, version: str) -> None:
    """Only text that begins with a positive integer names a version."""
    import grpc

    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="simple", version=version))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "path", ["/v2/models/simple/versions/0", "/v2/models/simple/versions/0/config"]
)
# row: HTTP-07
def test_version_zero_is_refused(server: Server, path: str) -> None:
    """Zero is not a version."""
    reply = server.get(path)
    assert reply.status in ((400, 404) if server.is_triton else (404,))
    reply.error()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v2/",
        "/v2/health",
        "/v2/health/live/",
        "/v2/health/started",
        "/v2/models",
        "/v2/models/simple/",
        "/v2/models/simple/unknown",
        "/v2/models/simple/versions",
        "/v2/models/simple/versions/x",
        "/v2/models/simple/versions/-1/ready",
        "/v2/models/simple/infer/",
        "/v2/repository",
        "/v2/systemsharedmemory",
        "/v2/systemsharedmemory/region//status",
        "/metrics",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
# row: HTTP-01
def test_other_paths_are_not_found(server: Server, method: str, path: str) -> None:
    """Each route matches as a whole."""
    reply = server.request(method, path, b"" if method == "POST" else None)
    assert reply.status == 404
    assert json.loads(reply.body) == {"error": "Not Found"}


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/v2"),
        ("POST", "/v2/health/live"),
        ("POST", "/v2/health/ready"),
        ("POST", "/v2/models/simple"),
        ("POST", "/v2/models/simple/ready"),
        ("POST", "/v2/models/simple/config"),
        ("POST", "/v2/models/simple/stats"),
        ("POST", "/v2/models/stats"),
        ("POST", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/cudasharedmemory/status"),
        ("GET", "/v2/models/simple/infer"),
        ("GET", "/v2/models/simple/generate"),
        ("GET", "/v2/models/simple/versions/1/infer"),
        ("GET", "/v2/repository/index"),
        ("GET", "/v2/repository/models/simple/load"),
        ("GET", "/v2/repository/models/simple/unload"),
        ("GET", "/v2/systemsharedmemory/unregister"),
        ("GET", "/v2/systemsharedmemory/region/r/register"),
        ("PUT", "/v2/models/simple/infer"),
        ("DELETE", "/v2/models/simple"),
    ],
)
# row: HTTP-02
def test_wrong_method_is_405(server: Server, method: str, path: str) -> None:
    """A known path refuses other methods."""
    body = b"" if method in ("POST", "PUT") else None
    assert server.request(method, path, body).status == 405


# row: PREP-01
def test_repository_index(server: Server) -> None:
    """Every model of the repository is listed with its state."""
    reply = server.request("POST", "/v2/repository/index", b"")
    assert reply.status == 200
    index = {entry["name"]: entry for entry in reply.json()}
    assert index["simple"] == {"name": "simple", "version": "1", "state": "READY"}
