"""Tests of the metrics page, as seen by Prometheus' own tools and by users of `--metrics-config`.

The page is compared with Triton's in `tests/differential` (`metrics_cases.py`).
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from conftest import StartServer
from server import Server, wait_until

pytestmark = pytest.mark.galatea_only

FLAGS = (
    "--cache-config=local,size=1000000",
    "--metrics-config=histogram_latencies=true",
    "--metrics-config=summary_latencies=true",
    "--metrics-config=galatea_histograms=true",
)
CONFIGURATIONS = {
    "nothing": [],
    "no counters of latencies": ["--metrics-config=counter_latencies=false"],
    "Triton's histograms": ["--metrics-config=histogram_latencies=true"],
    "Triton's summaries": ["--metrics-config=summary_latencies=true"],
    "other quantiles": [
        *("--metrics-config=summary_latencies=true", "--metrics-config=summary_quantiles=0.2:0.1")
    ],
    "native histograms": ["--metrics-config=galatea_histograms=true"],
    "without the machine's": ["--allow-gpu-metrics=false", "--allow-cpu-metrics=false"],
    "polled often": ["--metrics-interval-ms=100"],
}
MODEL = (
    'backend: "identity" max_batch_size: 8 '
    'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] '
    'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] '
)
BUCKETS = (
    "model_metrics { metric_control { metric_identifier { family: "
    '"nv_inference_first_response_histogram_ms" } histogram_options { buckets: [ 0.5, 3 ] } } }'
)
MODELS = {
    "plain": MODEL,
    "tuned": MODEL + BUCKETS,
    "cached": MODEL + "response_cache { enable: true }",
    "waiting": MODEL + "dynamic_batching { max_queue_delay_microseconds: 1000 }",
}


def infer(server: Server, model: str, rows: int = 1) -> int:
    """The status of a request with this many rows."""
    tensor = {"name": "INPUT0", "shape": [rows, 1], "datatype": "FP32", "data": [1] * rows}
    return server.infer(model, {"inputs": [tensor]}).status


@pytest.fixture(scope="module")
def measured(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with all metrics enabled, after requests to its models."""
    repository = tmp_path_factory.mktemp("metrics")
    for name, text in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    with start_server(repository, *FLAGS) as server:
        server.wait_until_ready()
        for model in MODELS:
            for rows in (1, 1, 3):
                assert infer(server, model, rows) == 200
            assert infer(server, model, 9) == 400
        yield server


def series(server: Server, pattern: str) -> dict[str, float]:
    """The series that match, and their values."""
    lines = [line for line in server.metrics().splitlines() if re.match(pattern, line)]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def promtool() -> str:
    """Prometheus' tool, from Debian's package `prometheus`."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed")
    return found


def check_page(page: str) -> None:
    """promtool's only remarks concern Triton's names, and it can read everything."""
    checked = subprocess.run(
        [promtool(), "check", "metrics"],
        input=page.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    remarks = (checked.stdout + checked.stderr).decode().splitlines()
    assert checked.returncode in (0, 3), remarks
    assert [remark for remark in remarks if not remark.startswith("nv_")] == []


def test_promtool_is_content(measured: Server) -> None:
    """All metrics are enabled."""
    check_page(measured.metrics())


def test_promtool_can_fail(measured: Server) -> None:
    """The check notices a page that Prometheus would refuse."""
    promtool()
    with pytest.raises(AssertionError):
        check_page(measured.metrics() + 'nv_inference_request_success{model="plain" 1\n')


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_promtool_is_content_with(
    start_server: StartServer, tmp_path: pathlib.Path, configuration: str
) -> None:
    """Tests each configuration alone, and the page of a server without models."""
    promtool()
    for name, text in MODELS.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text)
    flags = CONFIGURATIONS[configuration]
    with start_server(tmp_path, "--cache-config=local,size=1000000", *flags) as server:
        server.wait_until_ready()
        check_page(server.metrics())
        for model in MODELS:
            assert infer(server, model) == 200
            assert infer(server, model, 9) == 400
        check_page(server.metrics())


# row: CFG-23 MET-08
def test_a_model_sets_its_buckets(measured: Server) -> None:
    name = "nv_inference_first_response_histogram_ms"
    bounds = {
        model: re.findall(rf'{name}_bucket{{model="{model}",version="1",le="(.+)"}}', text)
        for text in [measured.metrics()]
        for model in MODELS
    }
    default = ["100", "500", "2000", "5000", "+Inf"]
    assert bounds == dict.fromkeys(MODELS, default) | {"tuned": ["0.5", "3", "+Inf"]}
    counts = series(measured, rf"{name}_count")
    assert set(counts.values()) == {3.0}, "hits of the cache count too, invalid requests don't"


def test_histograms_can_be_added_up(measured: Server) -> None:
    """The buckets are the same for every model, and every request is in one."""
    for kind, expected in (("request", 3), ("queue", 3), ("compute", 3)):
        name = f"galatea_inference_{kind}_duration_seconds"
        counts = series(measured, rf"{name}_count{{")
        cached = f'{name}_count{{model="cached",version="1"}}'
        # The second request was served from the cache.
        assert counts.pop(cached) == (expected if kind != "compute" else 2)
        assert set(counts.values()) == {expected}
        bounds = [
            re.findall(rf'{name}_bucket{{model="{model}",version="1",le="(.+)"}}', text)
            for text in [measured.metrics()]
            for model in MODELS
        ]
        assert len(bounds[0]) == 22 and all(each == bounds[0] for each in bounds)
    sizes = series(measured, r'galatea_batch_size_(sum|count){model="plain"')
    assert list(sizes.values()) == [3.0, 5.0]


def test_batches_and_refusals_have_reasons(measured: Server) -> None:
    closed = series(measured, r'galatea_batch_closed_total{.*version="1"} [1-9]')
    assert closed == {
        f'galatea_batch_closed_total{{model="{model}",reason="{reason}",version="1"}}': count
        for model, reason, count in (
            ("plain", "unbatched", 3),
            ("tuned", "unbatched", 3),
            ("cached", "unbatched", 2),
            ("waiting", "delay", 3),
        )
    }
    refused = series(measured, r'galatea_inference_unexecuted_total{.*reason="invalid"')
    assert list(refused.values()) == [1.0] * len(MODELS)


# row: CLI-14 MET-14
def test_gauges_are_polled_by_themselves(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """The interval is that of the readings, not of the scrapes."""
    with start_server(tmp_path, "--metrics-interval-ms=20") as server:
        server.wait_until_ready()
        # On a busy machine the utilization stays at 1, but memory is taken and returned.
        first = series(server, "nv_cpu_")
        wait_until(lambda: series(server, "nv_cpu_") != first, 60, "another reading")


# row: MET-08
def test_nothing_is_recorded_by_default(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Distributions are disabled, and errors in a setting are logged."""
    (tmp_path / "plain" / "1").mkdir(parents=True)
    (tmp_path / "plain" / "config.pbtxt").write_text(MODEL)
    with start_server(tmp_path, "--metrics-config=summary_quantiles=x") as server:
        server.wait_until_ready()
        assert infer(server, "plain") == 200
        assert not re.search(r"TYPE \S+ (histogram|summary)", server.metrics())
        assert "Invalid option: [x]. No ':' delimiter found." in server.log()


def test_buckets_ascend(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    """Only a server that records the histogram reads them."""
    (tmp_path / "plain" / "1").mkdir(parents=True)
    text = MODEL + BUCKETS.replace("0.5, 3", "3, 0.5")
    (tmp_path / "plain" / "config.pbtxt").write_text(text)
    with start_server(tmp_path) as server:
        server.wait_until_ready()
    with start_server(tmp_path, "--metrics-config=histogram_latencies=true") as server:
        assert server.wait_for_exit() == 1
        assert "in model_metrics of 'plain' must ascend strictly" in server.log()


def test_prometheus_scrapes(measured: Server, tmp_path: pathlib.Path) -> None:
    """A real Prometheus reads the page without an error, and serves values from it."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    import json
    import urllib.error
    import urllib.parse
    import urllib.request

    from server import free_ports

    (port,) = free_ports(1)
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n- job_name: g\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n"
        f"  static_configs:\n  - targets: ['127.0.0.1:{measured.metrics_port}']\n"
    )
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]

    def value(query: str) -> str | None:
        url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                (result,) = json.load(reply)["data"]["result"] or [{"value": [0, None]}]
        except (OSError, urllib.error.HTTPError):
            return None
        return result["value"][1]

    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as child,
    ):
        try:
            wait_until(lambda: value('up{job="g"}') == "1", 60, "a scrape without an error")
            count = "sum(galatea_inference_request_duration_seconds_count)"
            assert value(count) == str(3 * len(MODELS))
            name = "galatea_inference_request_duration_seconds_bucket"
            quantile = value(f"histogram_quantile(0.99, sum by (le) ({name}))")
            assert quantile is not None and float(quantile) > 0
        finally:
            child.terminate()
            child.wait(60)
