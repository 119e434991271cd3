"""Tests of the alerts and the dashboard, with a real Prometheus that scrapes a real server."""

from __future__ import annotations

import json
import pathlib
import re
import runpy
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from conftest import DEPLOY, StartServer, find_program, write_models
from server import Server, free_ports, wait_until

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "galatea.json"
GENERATOR = DEPLOY / "grafana" / "dashboard.py"

MODEL = (
    'backend: "identity" max_batch_size: 8 '
    'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] '
    'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] '
)
MODELS = {
    "plain": MODEL,
    "cached": MODEL + "response_cache { enable: true }",
    "waiting": MODEL + "dynamic_batching { max_queue_delay_microseconds: 1000 }",
}
FLAGS = ("--cache-config=local,size=1000000", "--metrics-config=galatea_histograms=true")

#: Families that no server exports: Prometheus makes them itself.
OF_PROMETHEUS = {"up"}

#: The word before a selector or a range, or a bare name of one of our families.
FAMILY = re.compile(r"\b([a-zA-Z_:]\w*)(?=[{\[])|\b((?:nv|galatea)_\w+)\b")
REASONS = re.compile(r'(\w+)\{[^}]*\breason(=~?)"([^"]*)"')

Query = Callable[[str], list[Any] | None]


def alerts() -> dict[str, str]:
    """The expressions of all rules, by name."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def panels() -> list[tuple[str, str]]:
    """The dashboard's expressions, each with its panel's title."""
    return [
        (panel["title"], target["expr"])
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
    ]


def variables() -> list[str]:
    """The expressions of the dashboard's variables."""
    listed = json.loads(DASHBOARD.read_text())["templating"]["list"]
    return [one["query"]["query"] for one in listed if one["type"] == "query"]


def adapter() -> list[str]:
    """The expressions in the rules for the adapter to Kubernetes' metrics."""
    document = yaml.safe_load((DEPLOY / "prometheus" / "adapter.yaml").read_text())
    return [rule[key] for rule in document["rules"]["custom"] for key in ("seriesQuery", "metricsQuery")]


def send(server: Server, model: str, value: float) -> None:
    """One request."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    assert server.infer(model, {"inputs": [tensor]}).status == 200


@pytest.fixture(scope="module")
def measured(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server whose models get requests all the time, with cache hits and misses."""
    repository = write_models(tmp_path_factory.mktemp("models"), MODELS)
    stop = threading.Event()

    def ask(server: Server) -> None:
        number = 0
        while not stop.wait(0.02):
            number += 1
            for model in MODELS:
                send(server, model, number // 2)

    with start_server(repository, *FLAGS) as server:
        client = threading.Thread(target=ask, args=[server])
        client.start()
        try:
            yield server
        finally:
            stop.set()
            client.join()


@pytest.fixture(scope="module")
def page(measured: Server) -> str:
    """The server's metrics after requests to every model."""
    wait_until(lambda: "success" in measured.metrics(), 30, "metrics")
    return measured.metrics()


def check_names(expressions: list[str], page: str) -> None:
    """Every family and every reason exists in the metrics that the server exports."""
    exported = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if line[:1] != "#"}
    for expression in expressions:
        named = {one or other for one, other in FAMILY.findall(expression)}
        assert named, f"no family in {expression}"
        assert named <= exported | OF_PROMETHEUS, expression
        for family, operator, wanted in REASONS.findall(expression):
            reasons = set(re.findall(rf'{family}{{[^}}]*reason="(\w+)"', page))
            parts = wanted.split("|") if operator == "=~" else [wanted]
            assert set(parts) <= reasons, expression


# row: DEP-02
def test_alerts_name_what_is_exported(page: str) -> None:
    check_names(list(alerts().values()), page)


def test_the_dashboard_names_what_is_exported(page: str) -> None:
    check_names([expression for _, expression in panels()] + variables(), page)


# row: DEP-01
def test_the_adapter_names_what_is_exported(page: str) -> None:
    check_names(adapter(), page)


def test_the_chart_names_what_is_exported(page: str) -> None:
    """KEDA's queries."""
    text = (DEPLOY / "helm/galatea/templates/scaledobject.yaml").read_text()
    check_names([family + "{" for family in re.findall(r"\bnv_\w+", text)], page)


def test_unknown_names_are_noticed(page: str) -> None:
    """The check can fail: for names with and without labels, and for reasons."""
    for wrong in (
        "rate(nv_inference_requests[5m])",
        "nv_inference_pending > 3",
        'sum(process_cpu_seconds_total{job="x"})',
        'rate(nv_inference_request_failure{reason="TIMEOUT"}[5m])',
    ):
        with pytest.raises(AssertionError):
            check_names([wrong], page)


def promtool(*arguments: str) -> str:
    """The output of Prometheus' tool, which must succeed."""
    command = [find_program("promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_alerts() -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "rules", str(ALERTS))


def test_every_alert_fires_when_it_should() -> None:
    promtool("test", "rules", str(ALERTS.with_name("alerts_test.yml")))


def test_every_alert_has_a_test() -> None:
    tests = yaml.safe_load(ALERTS.with_name("alerts_test.yml").read_text())["tests"]
    tested = {
        one["alertname"] for test in tests for one in test["alert_rule_test"] if "exp_alerts" in one
    }
    assert tested == set(alerts())


def test_the_dashboard_is_as_generated() -> None:
    """`python deploy/grafana/dashboard.py` writes it."""
    assert runpy.run_path(str(GENERATOR))["text"]() == DASHBOARD.read_text()


def test_panels_have_places_of_their_own() -> None:
    """No two panels overlap, and all fit within Grafana's 24 columns."""
    taken: set[tuple[int, int]] = set()
    listed = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in listed}) == len(listed)
    for panel in listed:
        x, y, width, height = (panel["gridPos"][key] for key in "xywh")
        cells = {(x + i, y + j) for i in range(width) for j in range(height)}
        assert x + width <= 24 and not cells & taken, panel["title"]
        taken |= cells


@pytest.fixture(scope="module")
def query(
    measured: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Any]]:
    """Queries a Prometheus that scrapes the server and evaluates the alerts."""
    folder = tmp_path_factory.mktemp("prometheus")
    (port,) = free_ports(1)
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {
                "job_name": "galatea",
                "static_configs": [{"targets": [f"127.0.0.1:{measured.metrics_port}"]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        find_program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]

    def ask(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=30) as one:
                return json.load(one)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                # It hasn't read its data yet.
                return None
            raise AssertionError(error.read().decode()) from error
        except OSError:
            return None

    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as child:
        try:
            wait_until(lambda: ask("query?query=up") is not None, 60, "Prometheus answers")
            yield ask
        finally:
            child.terminate()
            child.wait(60)


def series(query: Callable[[str], Any], expression: str) -> list[Any]:
    """The result of an expression."""
    result = query("query?" + urllib.parse.urlencode({"query": expression}))
    return [] if result is None else result["result"]


@pytest.mark.parametrize(("title", "expression"), panels())
def test_every_panel_shows_something(
    query: Callable[[str], Any], title: str, expression: str
) -> None:
    for variable, value in (
        ("$job", ".*"),
        ("$instance", ".*"),
        ("$model", ".*"),
        ("$__rate_interval", "5s"),
    ):
        expression = expression.replace(variable, value)
    wait_until(lambda: series(query, expression) != [], 30, f"'{title}' has a value")


def test_prometheus_loads_the_alerts(query: Callable[[str], Any]) -> None:
    (group,) = query("rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} == set(alerts())


def test_a_healthy_server_raises_no_alert(query: Callable[[str], Any]) -> None:
    """Each expression is evaluated now, without the duration for which it must hold."""
    wait_until(lambda: series(query, 'up{job="galatea"} == 1') != [], 30, "a scrape")
    assert {name: series(query, text) for name, text in alerts().items()} == dict.fromkeys(
        alerts(), []
    )
