"""Tests of Model Analyzer, which tries configurations of a model and measures each, unmodified.

It uses a server that is already running (`remote`), loads the model with one configuration
after the other, and makes perf_analyzer send requests.
"""

from __future__ import annotations

import csv
import json
import pathlib

import pytest

import perf_tools
from conftest import StartServer
from load_models import IDENTITY
from server import Server
from test_decoupled_examples import write

#: Two sizes of batches and two counts of instances, beside the configuration as it is.
TRIED = {
    "max_batch_size": [4, 8],
    "dynamic_batching": [{"max_queue_delay_microseconds": [100]}],
    "instance_group": [{"kind": "KIND_CPU", "count": [1, 2]}],
}
#: Windows of 100 ms that may differ by any factor.
FLAGS = {
    "measurement-mode": "time_windows",
    "measurement-interval": 100,
    "stability-percentage": 99999,
}
COLUMNS = "model_name,model_config_path,batch_size,concurrency,perf_throughput,perf_latency_p99"


@pytest.fixture(scope="module")
def profiler() -> pathlib.Path:
    """model-analyzer, which most machines don't have."""
    return perf_tools.find("model-analyzer", "GALATEA_MODEL_ANALYZER")


def settings(folder: pathlib.Path, server: Server, protocol: str) -> dict[str, object]:
    """The settings file, which may be JSON."""
    return {
        "model_repository": str(folder / "models"),
        "output_model_repository_path": str(folder / "variants"),
        "checkpoint_directory": str(folder / "checkpoints"),
        "export_path": str(folder),
        "triton_launch_mode": "remote",
        "triton_http_endpoint": server.http_url,
        "triton_grpc_endpoint": server.grpc_url,
        "triton_metrics_url": f"http://127.0.0.1:{server.metrics_port}/metrics",
        "client_protocol": protocol,
        "perf_analyzer_path": str(perf_tools.perf_analyzer()),
        "skip_detailed_reports": True,
        "inference_output_fields": COLUMNS.split(","),
        "profile_models": {
            "plain": {
                "cpu_only": True,
                "perf_analyzer_flags": FLAGS,
                "parameters": {"batch_sizes": [1, 4], "concurrency": [2]},
                "model_config_parameters": TRIED,
            }
        },
    }


@pytest.mark.parametrize("protocol", ["http", "grpc"])
# row: DEP-04
def test_it_tries_configurations(
    profiler: pathlib.Path, start_server: StartServer, tmp_path: pathlib.Path, protocol: str
) -> None:
    """Each configuration is loaded, measured and reported."""
    variables = perf_tools.environment(perf_tools.perf_analyzer())
    write(tmp_path / "models", "plain", IDENTITY)
    (tmp_path / "checkpoints").mkdir()
    file = tmp_path / "settings.yaml"
    with start_server(tmp_path / "models", "--model-control-mode=explicit") as server:
        server.wait_until_live()
        file.write_text(json.dumps(settings(tmp_path, server, protocol)))
        result = perf_tools.run([profiler, "profile", "-f", file], variables, tmp_path)
        assert result.returncode == 0, result
        # The last configuration that was tried is still there.
        batching = server.get("/v2/models/plain/config").json()["dynamic_batching"]
        assert batching["max_queue_delay_microseconds"] == 100
    report = tmp_path / "results" / "metrics-model-inference.csv"
    lines = filter(None, report.read_text().splitlines())
    _, *rows = csv.reader(lines)
    tried = {(row[1], row[2]) for row in rows}
    names = {"plain_config_default", *(f"plain_config_{index}" for index in range(4))}
    assert tried == {(name, size) for name in names for size in ("1", "4")}, rows
    assert all(float(row[4]) > 0 for row in rows), rows
    assert server.process.returncode == 0
