"""`MetricFamily` and `Metric`: metrics of a model at the server's endpoint."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from . import state
from .control import Refused, ask, encode_untold
from .enums import NamedEnum, enumeration
from .errors import TritonModelException
from .native import (Made, Parameter, anything, cast, instance, native, real, text)
from .numbers import B_METRIC


@enumeration
class MetricKind(NamedEnum):
    """Kinds of metrics."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()
    _names = ("COUNTER", "GAUGE", "HISTOGRAM")


_METRIC = "c_python_backend_utils.Metric"
_VALUE = Parameter("", real)


class Metric(Made):
    """A metric of a family, for one set of labels. `MetricFamily.Metric` makes it."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_number", "_kind", "_cleared")

    _number: int
    _kind: MetricKind
    _cleared: bool

    @native(f"increment(self: {_METRIC}, arg0: float) -> None", _VALUE, owner=lambda: Metric)
    def increment(self, value: float) -> None:
        """Adds to a counter or gauge."""
        sure = self._kind == MetricKind.GAUGE or (
            self._kind == MetricKind.COUNTER and value >= 0)
        self._change("increment", value, sure)

    @native(f"set(self: {_METRIC}, arg0: float) -> None", _VALUE, owner=lambda: Metric)
    def set(self, value: float) -> None:
        """Sets a gauge."""
        self._change("set", value, self._kind == MetricKind.GAUGE)

    @native(f"observe(self: {_METRIC}, arg0: float) -> None", _VALUE, owner=lambda: Metric)
    def observe(self, value: float) -> None:
        """Records a value in a histogram."""
        self._change("observe", value, self._kind == MetricKind.HISTOGRAM)

    @native(f"value(self: {_METRIC}) -> float", owner=lambda: Metric)
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
        """Changes the metric; waits for the answer only if it may be an error."""
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
        """Removes the metric along with its family."""
        if not self._cleared:
            self._cleared = True
            state.side.post(encode_untold(
                B_METRIC, {"op": "drop_metric", "metric": self._number}))


_new = object.__new__


def _make_metric(number: int, kind: MetricKind) -> Metric:
    metric = _new(Metric)
    metric._number = number
    metric._kind = kind
    metric._cleared = False
    return metric


def _json_number(value: float) -> Any:
    """Returns a number in a form for JSON: as text if it isn't finite."""
    return value if value - value == 0.0 else str(value)


class MetricFamily:
    """Metrics with one name. Keep the family as long as its metrics are in use."""

    __module__ = "c_python_backend_utils"
    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    #: None until the server knows the family.
    _number: Optional[int] = None

    @native("__init__(self: c_python_backend_utils.MetricFamily, name: str, description: str, "
            "kind: c_python_backend_utils.MetricKind) -> None",
            Parameter("name", text), Parameter("description", text),
            Parameter("kind", instance(MetricKind)), owner=lambda: MetricFamily)
    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self._metrics: List[Metric] = []
        self._kind = kind
        try:
            answer = ask(B_METRIC, {"op": "family", "name": name,
                                    "description": description, "kind": int(kind)})
        except (Refused, TritonModelException) as error:
            raise TritonModelException(
                f"Error when creating MetricFamily: {error}") from None
        self._number = int(answer["family"])

    @native("Metric(self: c_python_backend_utils.MetricFamily, labels: object = None, buckets: "
            "object = None) -> c_python_backend_utils.Metric",
            Parameter("labels", anything, None, may_be_none=True),
            Parameter("buckets", anything, None, may_be_none=True), owner=lambda: MetricFamily)
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
            question["buckets"] = [cast(real, bucket) for bucket in buckets]
        elif self._kind == MetricKind.HISTOGRAM:
            raise TritonModelException(
                "Failed to create metric. Missing required buckets.")
        try:
            answer = ask(B_METRIC, question)
        except (Refused, TritonModelException) as error:
            raise TritonModelException(f"Error when creating Metric: {error}") from None
        metric = _make_metric(int(answer["metric"]), self._kind)
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
