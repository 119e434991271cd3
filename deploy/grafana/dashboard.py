"""Writes galatea.json, the Grafana dashboard: python deploy/grafana/dashboard.py

Grafana imports the JSON file; changes belong in this file. tests/deploy/test_metric_names.py
evaluates every expression with a real Prometheus.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

PATH = pathlib.Path(__file__).with_name("galatea.json")

SERVER = 'job=~"$job", instance=~"$instance"'
MODEL = f'{SERVER}, model=~"$model"'

WIDTH = 24
HEIGHT = 8

Panel = dict[str, Any]


def rate(family: str, by: str = "model", labels: str = MODEL) -> str:
    """The sum of a counter's rates."""
    return f"sum by ({by}) (rate({family}{{{labels}}}[$__rate_interval]))"


def mean(total: str, count: str, by: str = "model") -> str:
    """The amount of one counter per count of another."""
    return f"{rate(total, by)} / ({rate(count, by)} > 0)"


def quantile(value: float, family: str) -> str:
    """A quantile over all servers, of a histogram whose buckets can be added up."""
    return f"histogram_quantile({value}, {rate(f'{family}_bucket', 'model, le')})"


def panel(
    kind: str, title: str, unit: str, targets: dict[str, str], width: int = 8, **more: Any
) -> Panel:
    """A panel; `targets` are expressions by the names of their lines."""
    custom = {"fillOpacity": 10, "showPoints": "never"} if kind == "timeseries" else {}
    defaults: dict[str, Any] = {"unit": unit, "min": 0, "custom": custom}
    if more.pop("stacked", False):
        custom |= {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    defaults |= more.pop("defaults", {})
    return {
        "type": kind,
        "title": title,
        "description": more.pop("description", ""),
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": more.pop("options", {}),
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": name}
            for number, (name, expression) in enumerate(targets.items())
        ],
        "width": width,
    } | more


def stat(title: str, unit: str, expression: str, **more: Any) -> Panel:
    """One number."""
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
    return panel("stat", title, unit, {"": expression}, width=4, options=options, **more)


def lines(title: str, unit: str, targets: dict[str, str], **more: Any) -> Panel:
    """Lines over time, with a crosshair that shows all of them."""
    options = {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"placement": "bottom"}}
    return panel("timeseries", title, unit, targets, options=options, **more)


def steps(*values: tuple[float | None, str]) -> dict[str, Any]:
    """The colours from these values on."""
    colours = [{"value": value, "color": colour} for value, colour in values]
    return {"thresholds": {"mode": "absolute", "steps": colours}}


FAILED = 'sum(rate(nv_inference_request_failure{%s, reason!="CANCELED"}[$__rate_interval]))' % MODEL
ANSWERED = "sum(rate(nv_inference_request_success{%s}[$__rate_interval]))" % MODEL

OVERVIEW = [
    stat(
        "Servers up",
        "none",
        f"sum(up{{{SERVER}}})",
        defaults=steps((None, "red"), (1, "green")),
    ),
    stat("Requests per second", "reqps", ANSWERED),
    stat(
        "Failed",
        "percentunit",
        f"{FAILED} / (({FAILED} + {ANSWERED}) > 0)",
        description="Without requests that their clients cancelled.",
        defaults=steps((None, "green"), (0.01, "orange"), (0.05, "red")) | {"decimals": 2},
    ),
    stat(
        "Mean time in the queue",
        "µs",
        f"sum({rate('nv_inference_queue_duration_us')}) / ({ANSWERED} > 0)",
    ),
    stat(
        "Requests in queues",
        "none",
        f"sum(nv_inference_pending_request_count{{{MODEL}}})",
        defaults=steps((None, "green"), (100, "orange")),
    ),
    stat(
        "Memory of requests",
        "percentunit",
        f"max(galatea_memory_held_bytes{{{SERVER}}} / (galatea_memory_limit_bytes{{{SERVER}}} > 0))",
        description="The fullest server: what requests hold, of --memory-limit.",
        defaults=steps((None, "green"), (0.7, "orange"), (0.9, "red")) | {"max": 1},
    ),
]

TRAFFIC = [
    lines("Requests", "reqps", {"{{model}}": rate("nv_inference_request_success")}),
    lines(
        "Failures by reason",
        "reqps",
        {"{{model}} {{reason}}": rate("nv_inference_request_failure", "model, reason")},
    ),
    lines(
        "Requests that were not executed",
        "reqps",
        {"{{model}} {{reason}}": rate("galatea_inference_unexecuted_total", "model, reason")},
        description="docs/metrics.md explains the reasons.",
    ),
]

STAGES = {
    "queue": "nv_inference_queue_duration_us",
    "inputs": "nv_inference_compute_input_duration_us",
    "inference": "nv_inference_compute_infer_duration_us",
    "outputs": "nv_inference_compute_output_duration_us",
}

LATENCY = [
    lines(
        "Where the time goes",
        "µs",
        {
            f"{{{{model}}}} {stage}": mean(family, "nv_inference_request_success")
            for stage, family in STAGES.items()
        },
        stacked=True,
        description="Mean time of a request in each stage. Choose one model.",
    ),
    lines(
        "Duration of requests",
        "s",
        {
            f"{{{{model}}}} p{value * 100:g}": quantile(
                value, "galatea_inference_request_duration_seconds"
            )
            for value in (0.5, 0.99)
        },
        description="Over all servers. It needs --metrics-config=galatea_histograms=true.",
    ),
    lines(
        "Time in the queue",
        "s",
        {
            f"{{{{model}}}} p{value * 100:g}": quantile(
                value, "galatea_inference_queue_duration_seconds"
            )
            for value in (0.5, 0.99)
        },
        description="It needs --metrics-config=galatea_histograms=true.",
    ),
]

BATCHES = [
    lines(
        "Requests in the queue",
        "none",
        {"{{model}} {{instance}}": f"nv_inference_pending_request_count{{{MODEL}}}"},
    ),
    lines(
        "Mean batch size",
        "none",
        {"{{model}}": mean("nv_inference_count", "nv_inference_exec_count")},
    ),
    lines(
        "Why batches were closed",
        "ops",
        {"{{model}} {{reason}}": rate("galatea_batch_closed_total", "model, reason")},
        stacked=True,
        description="docs/metrics.md explains the reasons.",
    ),
    lines(
        "Executions in parallel",
        "none",
        {
            "{{model}}": f"{rate('nv_inference_compute_infer_duration_us')} / 1e6"
            f" * {mean('nv_inference_exec_count', 'nv_inference_request_success')}"
        },
        description="How many instances are busy on average, over all servers: where it comes "
        "near their number, queues grow. It is too low for models with a response cache.",
    ),
    lines(
        "Duration of executions",
        "s",
        {"{{model}} p99": quantile(0.99, "galatea_inference_compute_duration_seconds")},
        description="It needs --metrics-config=galatea_histograms=true.",
    ),
    panel(
        "heatmap",
        "Batch sizes",
        "none",
        {"{{le}}": rate("galatea_batch_size_bucket", "le")},
        description="Executions by batch size. It needs --metrics-config=galatea_histograms=true.",
        options={"calculate": False, "yAxis": {"unit": "none"}},
    ),
]

HITS = rate("nv_cache_num_hits_per_model")
MISSES = rate("nv_cache_num_misses_per_model")

CACHE = [
    lines("Hits", "percentunit", {"{{model}}": f"{HITS} / (({HITS} + {MISSES}) > 0)"}),
    lines("Cache in use", "percentunit", {"{{instance}}": f"nv_cache_util{{{SERVER}}}"}),
    lines(
        "Evictions",
        "ops",
        {"{{instance}}": f"deriv(nv_cache_num_evictions{{{SERVER}}}[$__rate_interval])"},
    ),
]

SERVERS = [
    lines(
        "Memory of requests and responses",
        "bytes",
        {
            "{{instance}}": f"galatea_memory_held_bytes{{{SERVER}}}",
            "{{instance}} limit": f"galatea_memory_limit_bytes{{{SERVER}}} > 0",
        },
    ),
    lines(
        "Memory by model",
        "bytes",
        {"{{model}}": f"sum by (model) (galatea_model_held_bytes{{{MODEL}}})"},
        description="What tensors of more than 16 KiB hold.",
    ),
    lines(
        "Refused for want of memory",
        "reqps",
        {"{{instance}}": rate("galatea_memory_refusals_total", "instance", SERVER)},
    ),
    lines(
        "Processors of the machine",
        "percentunit",
        {"{{instance}}": f"nv_cpu_utilization{{{SERVER}}}"},
        defaults={"max": 1},
    ),
    lines(
        "Memory of the machine",
        "percentunit",
        {
            "{{instance}}": f"nv_cpu_memory_used_bytes{{{SERVER}}}"
            f" / nv_cpu_memory_total_bytes{{{SERVER}}}"
        },
        defaults={"max": 1},
    ),
    lines(
        "Duration of loads",
        "s",
        {"{{model}} {{version}} {{instance}}": f"nv_model_load_duration_secs{{{MODEL}}}"},
    ),
]

ROWS = {
    "Overview": OVERVIEW,
    "Traffic": TRAFFIC,
    "Latency": LATENCY,
    "Scheduling": BATCHES,
    "Response cache": CACHE,
    "Servers": SERVERS,
}


def laid_out() -> list[Panel]:
    """All panels with their positions, from left to right."""
    placed: list[Panel] = []
    top = 0
    for title, panels in ROWS.items():
        row = {"type": "row", "title": title, "collapsed": False, "panels": []}
        placed.append(row | {"gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}})
        top += 1
        left = 0
        height = 4 if panels[0]["type"] == "stat" else HEIGHT
        for one in panels:
            width = one["width"]
            if left + width > WIDTH:
                left, top = 0, top + height
            rest = {key: value for key, value in one.items() if key != "width"}
            placed.append(rest | {"gridPos": {"x": left, "y": top, "w": width, "h": height}})
            left += width
        top += height
    return [one | {"id": number} for number, one in enumerate(placed, 1)]


def variable(name: str, query: str) -> dict[str, Any]:
    """A selection of several values of a label; initially all."""
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    """The whole dashboard."""
    source = {"type": "datasource", "name": "datasource", "label": "Source", "query": "prometheus"}
    family = "nv_inference_request_success"
    return {
        "uid": "galatea",
        "title": "Galatea",
        "tags": ["galatea", "inference"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                source,
                variable("job", "label_values(galatea_memory_held_bytes, job)"),
                variable(
                    "instance", 'label_values(galatea_memory_held_bytes{job=~"$job"}, instance)'
                ),
                variable("model", f"label_values({family}{{{SERVER}}}, model)"),
            ]
        },
        "panels": laid_out(),
    }


def text() -> str:
    """The contents of galatea.json."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
