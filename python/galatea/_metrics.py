"""Program metrics among those of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from . import _galatea
from ._enums import MetricKind


class MetricFamily:
    """Metrics with one name and kind. Families with the same name are identical."""

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        """Creates the family unless it exists."""
        self.kind = MetricKind(kind)
        self.name = name
        self.description = description
        self._family = _galatea.MetricFamily(int(self.kind), name, description)


class Metric:
    """A metric of a family. The server publishes it for as long as it lives."""

    def __init__(
        self,
        family: MetricFamily,
        labels: Optional[dict[str, str]] = None,
        buckets: Optional[Sequence[float]] = None,
    ) -> None:
        """Makes the metric with these labels. `buckets` are the upper bounds of a histogram's."""
        pairs = list((labels or {}).items())
        self._kind = family.kind
        bounds = None if buckets is None else list(buckets)
        self._metric = _galatea.Metric(family._family, pairs, bounds)

    @property
    def kind(self) -> MetricKind:
        """The kind of the metric's family."""
        return self._kind

    @property
    def value(self) -> float:
        """The value of a counter or a gauge."""
        return self._metric.value

    def increment(self, value: float) -> None:
        """Adds to a counter or a gauge."""
        self._metric.increment(value)

    def set_value(self, value: float) -> None:
        """Sets a gauge."""
        self._metric.set_value(value)

    def observe(self, value: float) -> None:
        """Records an observation in a histogram."""
        self._metric.observe(value)
