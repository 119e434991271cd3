//! Metrics for Rust code, in the same registry as the C metrics.

use std::sync::Arc;

use galatea_infer::Status;

use super::{Family, Labels, MetricKind, REGISTRY, Series};

/// A metric family.
#[derive(Clone)]
pub struct MetricFamily(Arc<Family>);

/// A metric within a family. The value is removed together with the last metric that has these
/// labels.
#[derive(Clone)]
pub struct Metric {
    series: Arc<Series>,
    kind: MetricKind,
}

impl MetricFamily {
    /// Returns the family with this name, creating it if necessary.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the name is invalid or the family has a different kind.
    pub fn new(kind: MetricKind, name: &str, help: &str) -> Result<Self, Status> {
        REGISTRY.family(kind, name, help).map(Self)
    }

    /// Creates a metric with these labels. `bounds` are a histogram's bounds, in ascending order.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the labels are invalid or the bounds don't fit the kind.
    pub fn metric(
        &self,
        labels: impl IntoIterator<Item = (String, String)>,
        bounds: Option<&[f64]>,
    ) -> Result<Metric, Status> {
        let mut labels: Labels = labels.into_iter().collect();
        labels.sort();
        let is_sorted = bounds.is_none_or(|bounds| bounds.is_sorted_by(|low, high| low < high));
        if !is_sorted {
            return Err(Status::invalid_argument("Bucket Boundaries must be strictly sorted"));
        }
        Ok(Metric { series: self.0.series(labels, bounds)?, kind: self.0.kind })
    }
}

impl Metric {
    /// The value of a counter or a gauge.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a histogram.
    pub fn value(&self) -> Result<f64, Status> {
        self.series.value()
    }

    /// Increments a counter or a gauge.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a histogram; `InvalidArgument` for a counter with a negative value.
    pub fn increment(&self, by: f64) -> Result<(), Status> {
        self.series.increment(self.kind, by)
    }

    /// Sets a gauge's value.
    ///
    /// # Errors
    ///
    /// `Unsupported` for other kinds.
    pub fn set(&self, value: f64) -> Result<(), Status> {
        self.series.set(self.kind, value)
    }

    /// Records an observation in a histogram.
    ///
    /// # Errors
    ///
    /// `Unsupported` for other kinds.
    pub fn observe(&self, value: f64) -> Result<(), Status> {
        self.series.observe(self.kind, value)
    }
}
