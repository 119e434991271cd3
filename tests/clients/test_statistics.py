"""Tests of statistics and metrics."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from conftest import StartServer
from constant_models import added_value, constant_model, replace_file, write_model
from server import Server, wait_until

DURATIONS = {
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
}
COUNTERS = [
    "nv_inference_request_success",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
]
ROWS = 3


def infer(server: Server, rows: int = ROWS) -> None:
    """Sends one request to the model whose counters are read."""
    data = list(range(6 * rows))
    tensor = {"name": "INPUT0", "shape": [rows, 6], "datatype": "INT16", "data": data}
    assert server.infer("onnx_identity_int16", {"inputs": [tensor]}).status == 200


def metric(server: Server, name: str, model: str, **labels: str) -> float:
    """The value of one series."""
    found = []
    for line in server.metrics().splitlines():
        match = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
        if match and dict(re.findall(r'(\w+)="([^"]*)"', match[1])) == {
            "model": model,
            "version": "1",
            **labels,
        }:
            found.append(float(match[2]))
    (value,) = found
    return value


# row: STAT-02 MET-17
def test_statistics_count_requests_and_rows(server: Server) -> None:
    """inference_count counts rows, success counts requests."""
    before = server.statistics("onnx_identity_int16")
    infer(server)
    infer(server, rows=1)
    after = server.statistics("onnx_identity_int16")
    assert list(after)[:5] == [
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
    ]
    assert (after["name"], after["version"]) == ("onnx_identity_int16", "1")
    assert after["inference_count"] - before["inference_count"] == ROWS + 1
    assert after["execution_count"] - before["execution_count"] == 2
    assert after["last_inference"] > 1.7e12
    assert set(after["inference_stats"]) == DURATIONS
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        spent = after["inference_stats"][name]
        assert spent["count"] - before["inference_stats"][name]["count"] == 2
        assert set(spent) == {"count", "ns"}
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert after["inference_stats"]["fail"] == before["inference_stats"]["fail"]


# row: STAT-04
def test_batch_statistics_have_an_entry_a_size(server: Server) -> None:
    """The statistics list only sizes that were executed."""
    infer(server)
    infer(server, rows=1)
    entries = {
        one["batch_size"]: one for one in server.statistics("onnx_identity_int16")["batch_stats"]
    }
    assert set(entries) == {1, ROWS}
    for entry in entries.values():
        assert set(entry) == {"batch_size", "compute_input", "compute_infer", "compute_output"}
        assert entry["compute_infer"]["count"] >= 1


# row: STAT-02
def test_an_unused_model_has_zeros(server: Server) -> None:
    """A model without requests has no last inference."""
    entry = server.statistics("identity_matrix")
    assert entry["inference_count"] == entry["execution_count"] == entry["last_inference"] == 0
    assert entry["batch_stats"] == []


def test_failures_are_counted(server: Server) -> None:
    """A request that the backend can't execute counts as a failure."""
    before = server.statistics("simple_string")["inference_stats"]["fail"]["count"]
    failures = metric(server, "nv_inference_request_failure", "simple_string", reason="BACKEND")
    bad = {"shape": [1, 16], "datatype": "BYTES", "data": ["x"] * 16}
    inputs = [{"name": "INPUT0", **bad}, {"name": "INPUT1", **bad}]
    failed = (400, 500) if server.is_triton else (500,)
    assert server.infer("simple_string", {"inputs": inputs}).status in failed
    after = server.statistics("simple_string")["inference_stats"]["fail"]["count"]
    assert after == before + 1
    name = "nv_inference_request_failure"
    assert metric(server, name, "simple_string", reason="BACKEND") == failures + 1


# row: STAT-01
def test_all_statistics(
    server: Server, grpc_client: tritonclient.grpc.InferenceServerClient
) -> None:
    """Without a name, the statistics cover every model, over both protocols."""
    reply = server.get("/v2/models/stats")
    assert reply.status == 200
    over_http = {entry["name"] for entry in reply.json()["model_stats"]}
    over_grpc = {entry.name for entry in grpc_client.get_inference_statistics().model_stats}
    assert "simple" in over_http and "identity_fp32" in over_http
    assert over_grpc == over_http


def test_statistics_over_grpc_are_the_same(
    server: Server, grpc_client: tritonclient.grpc.InferenceServerClient
) -> None:
    """The numbers agree."""
    infer(server)
    over_http = server.statistics("onnx_identity_int16")
    (entry,) = grpc_client.get_inference_statistics("onnx_identity_int16", "1").model_stats
    assert entry.inference_count == over_http["inference_count"]
    assert entry.execution_count == over_http["execution_count"]
    assert entry.last_inference == over_http["last_inference"]
    assert entry.inference_stats.success.ns == over_http["inference_stats"]["success"]["ns"]
    assert [one.batch_size for one in entry.batch_stats] == [
        one["batch_size"] for one in over_http["batch_stats"]
    ]


@pytest.mark.parametrize("path", ["absent", "absent/versions/1", "simple/versions/7"])
# row: STAT-01
def test_statistics_of_an_unknown_model(server: Server, path: str) -> None:
    """Only statistics report an unknown model as an invalid argument."""
    reply = server.get(f"/v2/models/{path}/stats")
    assert reply.status == 400
    assert "is not available" in reply.error() or "not found" in reply.error()


def test_statistics_of_an_unknown_model_over_grpc(
    grpc_client: tritonclient.grpc.InferenceServerClient,
) -> None:
    """The same as a gRPC status."""
    with pytest.raises(InferenceServerException) as caught:
        grpc_client.get_inference_statistics("absent")
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


# row: MET-01
def test_metrics_endpoint(server: Server) -> None:
    """Prometheus text on a separate port, in which every family is described once."""
    reply = server.request("GET", "/metrics", port=server.metrics_port)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    text = reply.body.decode()
    assert text.endswith("\n")
    types = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    assert len(dict(types)) == len(types)
    kinds = dict(types)
    for name in [*COUNTERS, "nv_inference_request_failure"]:
        assert kinds[name] == "counter"
        assert f"# HELP {name} " in text
    assert kinds["nv_inference_pending_request_count"] == "gauge"
    for line in text.splitlines():
        assert line.startswith("# ") or re.fullmatch(r"\w+(\{.*\})? -?[\d.e+-]+", line), line


# row: MET-02 MET-03 MET-17
def test_counters_grow(server: Server) -> None:
    """A request of three rows increments the counters."""
    model = "onnx_identity_int16"
    before = {name: metric(server, name, model) for name in COUNTERS}
    infer(server)
    grown = {name: metric(server, name, model) - before[name] for name in COUNTERS}
    assert grown["nv_inference_request_success"] == 1
    assert grown["nv_inference_count"] == ROWS
    assert grown["nv_inference_exec_count"] == 1
    assert grown["nv_inference_request_duration_us"] >= 0
    assert metric(server, "nv_inference_pending_request_count", model) == 0


@pytest.mark.parametrize("reason", ["REJECTED", "CANCELED", "BACKEND", "OTHER"])
# row: MET-02
def test_failure_series_exist_from_the_start(server: Server, reason: str) -> None:
    """Alerts need an initial zero."""
    assert metric(server, "nv_inference_request_failure", "identity_matrix", reason=reason) == 0


# row: MET-05
def test_metrics_agree_with_statistics(server: Server) -> None:
    """Both show the same counters."""
    infer(server)
    statistics = server.statistics("onnx_identity_int16")
    model = "onnx_identity_int16"
    assert metric(server, "nv_inference_count", model) == statistics["inference_count"]
    assert metric(server, "nv_inference_exec_count", model) == statistics["execution_count"]
    microseconds = statistics["inference_stats"]["compute_infer"]["ns"] // 1000
    measured = metric(server, "nv_inference_compute_infer_duration_us", model)
    # Triton rounds each request down, so the sum may be short by one for each.
    requests = statistics["inference_stats"]["success"]["count"]
    assert microseconds - requests <= measured <= microseconds
    assert json.dumps(statistics)


# row: STAT-07 MET-15
def test_a_model_that_is_loaded_again_starts_from_zero(
    start_server: StartServer, tmp_path: pathlib.Path
) -> None:
    """Statistics and series end with the model, and statistics exist without metrics too."""
    write_model(tmp_path, "m", 1)
    explicit = ("--model-control-mode=explicit", "--load-model=m")
    success = 'nv_inference_request_success{model="m",version="1"}'

    def order(what: str) -> None:
        path = f"/v2/repository/models/m/{what}"
        assert server.request("POST", path, b"").status == 200

    with start_server(tmp_path, *explicit) as server:
        server.wait_until_ready()
        assert added_value(server, "m") == 1
        assert server.statistics("m")["inference_count"] == 1
        assert f"{success} 1\n" in server.metrics()
        order("unload")
        wait_until(lambda: success not in server.metrics(), 30, "the series are gone")
        order("load")
        assert server.statistics("m")["inference_count"] == 0
        assert f"{success} 0\n" in server.metrics()
        assert added_value(server, "m") == 1
        replace_file(tmp_path / "m" / "1" / "model.onnx", constant_model(2))
        order("load")
        assert server.statistics("m")["inference_count"] == 0
    with start_server(tmp_path, *explicit, "--allow-metrics=false") as server:
        server.wait_until_ready()
        assert added_value(server, "m") == 2
        assert server.statistics("m")["inference_count"] == 1
