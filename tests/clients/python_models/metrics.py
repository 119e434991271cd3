"""Reports its own metrics: each request adds to a counter and a histogram, and sets a gauge."""

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily
        name = args["model_name"]
        self.families = {
            kind: family(name=f"{name}_{kind}", description=f"a {kind}", kind=getattr(family, kind))
            for kind in ("COUNTER", "GAUGE", "HISTOGRAM")
        }
        labels = {"where": 'in "Python"', "model": name}
        self.counter = self.families["COUNTER"].Metric(labels=labels)
        self.gauge = self.families["GAUGE"].Metric(labels=labels)
        self.histogram = self.families["HISTOGRAM"].Metric(labels=labels, buckets=[1.0, 10.0])

    def execute(self, requests):
        return [self.count(request) for request in requests]

    def count(self, request):
        value = float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
        self.counter.increment(value)
        self.gauge.set(value)
        self.histogram.observe(value)
        values = f"{self.counter.value()} {self.gauge.value()}"
        tensor = pb_utils.Tensor("OUT", numpy.array([values.encode()], numpy.object_))
        return pb_utils.InferenceResponse([tensor])
