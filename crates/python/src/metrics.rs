//! Custom metrics.

use galatea_capi::metric;
use pyo3::prelude::*;

use crate::errors::raise;

/// A metric family. Kind numbers are those of `TRITONSERVER_MetricKind`.
#[pyclass(frozen, module = "galatea._galatea")]
pub(crate) struct MetricFamily(metric::MetricFamily);

#[pymethods]
impl MetricFamily {
    #[new]
    fn new(kind: u32, name: &str, description: &str) -> PyResult<Self> {
        let kind = match kind {
            0 => metric::MetricKind::Counter,
            1 => metric::MetricKind::Gauge,
            _ => metric::MetricKind::Histogram,
        };
        metric::MetricFamily::new(kind, name, description).map(Self).map_err(raise)
    }
}

/// A metric within a family.
#[pyclass(frozen, module = "galatea._galatea")]
pub(crate) struct Metric(metric::Metric);

#[pymethods]
impl Metric {
    #[new]
    fn new(
        family: &MetricFamily,
        labels: Vec<(String, String)>,
        buckets: Option<Vec<f64>>,
    ) -> PyResult<Self> {
        family.0.metric(labels, buckets.as_deref()).map(Self).map_err(raise)
    }

    #[getter]
    fn value(&self) -> PyResult<f64> {
        self.0.value().map_err(raise)
    }

    fn increment(&self, by: f64) -> PyResult<()> {
        self.0.increment(by).map_err(raise)
    }

    fn set_value(&self, value: f64) -> PyResult<()> {
        self.0.set(value).map_err(raise)
    }

    fn observe(&self, value: f64) -> PyResult<()> {
        self.0.observe(value).map_err(raise)
    }
}
