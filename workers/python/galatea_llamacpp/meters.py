"""The metrics of a model: its slots and its tokens."""

from __future__ import annotations

from typing import Any, List

from galatea_worker.metrics import MetricFamily

_FAMILIES = (
    ("galatea_llamacpp_slots", "Number of requests that can be generated at once", "GAUGE"),
    ("galatea_llamacpp_slots_busy", "Number of requests that are being generated", "GAUGE"),
    ("galatea_llamacpp_prompt_tokens_total", "Number of prompt tokens", "COUNTER"),
    ("galatea_llamacpp_cached_prompt_tokens_total",
     "Number of prompt tokens that were computed for an earlier request", "COUNTER"),
    ("galatea_llamacpp_generated_tokens_total", "Number of generated tokens", "COUNTER"),
)


class Meters:
    """Counts what a worker does."""

    def __init__(self, model: str, version: str, slots: int) -> None:
        labels = {"model": model, "version": version}
        self._families: List[Any] = []
        metrics = []
        for name, description, kind in _FAMILIES:
            family = MetricFamily(
                name=name, description=description, kind=getattr(MetricFamily, kind))
            self._families.append(family)
            metrics.append(family.Metric(labels=labels))
        capacity, self._busy, self._prompt, self._cached, self._generated = metrics
        capacity.set(slots)

    def begin(self) -> None:
        """Counts a request whose generation begins."""
        self._busy.increment(1)

    def end(self, prompt: int, cached: int, generated: int) -> None:
        """Counts a request whose generation has ended."""
        self._busy.increment(-1)
        for metric, tokens in (
                (self._prompt, prompt), (self._cached, cached), (self._generated, generated)):
            if tokens:
                metric.increment(tokens)
