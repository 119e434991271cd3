"""`MetricFamily` and `Metric`: metrics of a model at the server's endpoint."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from . import state
from .control import Refused, ask, encode_untold
from .enums import NamedEnum, as_text, demand
from .errors import TritonModelException
from .wire import B_METRIC


class MetricKind(NamedEnum):
    """Kinds of metrics."""

    __module__ = "c_python_backend_utils"
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class Metric:
    """A metric of a family, for one set of labels. `MetricFamily.Metric` makes it."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_number", "_kind", "_cleared")

    def __init__(self, number: int, kind: MetricKind) -> None:
        self._number = number
        self._kind = kind
        self._cleared = False

    def increment(self, value: float) -> None:
        """Adds to a counter or gauge."""
        value = float(value)
        sure = self._kind == MetricKind.GAUGE or (
            self._kind == MetricKind.COUNTER and value >= 0)
        self._change("increment", value, sure)

    def set(self, value: float) -> None:
        """Sets a gauge."""
        self._change("set", float(value), self._kind == MetricKind.GAUGE)

    def observe(self, value: float) -> None:
        """Counts a value in a histogram."""
        self._change("observe", float(value), self._kind == MetricKind.HISTOGRAM)

    def value(self) -> float:
        """Value of a counter or gauge."""
        try:
            self._check()
            answer = ask(B_METRIC, {"op": "value", "metric": self._number})
        except (Refused, TritonModelException) as error:
            raise TritonModelException(f"Failed to get metric value: {error}") from None
        return float(answer.get("value", 0.0))

    def _check(self) -> None:
        if self._cleared:
            raise TritonModelException(
                "Invalid metric operation as the corresponding 'MetricFamily' has been "
                "deleted. The 'MetricFamily' object should be deleted AFTER its "
                "corresponding 'Metric' objects have been deleted.")

    def _change(self, op: str, value: float, sure: bool) -> None:
        """Changes the metric; waits for the answer only where it may be an error."""
        question = {"op": op, "metric": self._number, "value": value}
        try:
            self._check()
            if sure and value - value == 0.0:
                state.side.send(encode_untold(B_METRIC, question))
            else:
                ask(B_METRIC, dict(question, value=_json_number(value)))
        except (Refused, TritonModelException) as error:
            raise TritonModelException(f"Failed to {op} metric value: {error}") from None

    def _clear(self) -> None:
        """Ends the metric, with its family."""
        if not self._cleared:
            self._cleared = True
            state.side.post(encode_untold(
                B_METRIC, {"op": "drop_metric", "metric": self._number}))


def _json_number(value: float) -> Any:
    """A number as JSON can carry it: text where it isn't finite."""
    return value if value - value == 0.0 else str(value)


class MetricFamily:
    """Metrics of one name. Keep it as long as its metrics are used."""

    __module__ = "c_python_backend_utils"
    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self._metrics: List[Metric] = []
        self._number: Optional[int] = None
        name = as_text("name of a MetricFamily", name)
        description = as_text("description of a MetricFamily", description)
        demand("kind of a MetricFamily", kind, MetricKind)
        self._kind = kind
        try:
            answer = ask(B_METRIC, {"op": "family", "name": name,
                                    "description": description, "kind": int(kind)})
        except (Refused, TritonModelException) as error:
            raise TritonModelException(
                f"Error when creating MetricFamily: {error}") from None
        self._number = int(answer["family"])

    def Metric(self, labels: Optional[Dict[str, str]] = None,
               buckets: Optional[List[float]] = None) -> Metric:
        """Makes a metric; histograms need `buckets`."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException(
                "Failed to create metric. Labels must be a dictionary.")
        question: Dict[str, Any] = {"op": "metric", "family": self._number,
                                    "labels": labels or {}}
        if buckets is not None:
            if not isinstance(buckets, list):
                raise TritonModelException(
                    "Failed to create metric. Buckets must be a list.")
            if self._kind != MetricKind.HISTOGRAM:
                raise TritonModelException(
                    "Failed to create metric. Unexpected buckets found.")
            question["buckets"] = [float(bucket) for bucket in buckets]
        elif self._kind == MetricKind.HISTOGRAM:
            raise TritonModelException(
                "Failed to create metric. Missing required buckets.")
        try:
            answer = ask(B_METRIC, question)
        except (Refused, TritonModelException) as error:
            raise TritonModelException(f"Error when creating Metric: {error}") from None
        metric = Metric(int(answer["metric"]), self._kind)
        self._metrics.append(metric)
        return metric

    def __del__(self) -> None:
        if self._number is None:
            return
        try:
            for metric in self._metrics:
                metric._clear()
            state.side.post(encode_untold(
                B_METRIC, {"op": "drop_family", "family": self._number}))
        except (NameError, AttributeError, TypeError):
            pass  # the interpreter is ending
