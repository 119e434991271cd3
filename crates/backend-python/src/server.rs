//! The services that the server provides to models: other models, the repository and metrics.

use std::collections::BTreeMap;

use galatea_control::LoadParameters;
use galatea_infer::{InferenceRequest, LogLevel, ResponseSender, Status};

/// The server, as Python models see it.
pub trait ServerAccess: Send + Sync {
    /// Sends a request to another model. The replies arrive through `sender`, on any thread.
    fn infer(&self, request: InferenceRequest, sender: ResponseSender);

    /// Returns true if a model may send any number of responses to a request.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` and `Unavailable` in the same cases as a request to that model.
    fn is_decoupled(&self, model: &str, version: Option<i64>) -> Result<bool, Status>;

    /// Loads a model and waits until it is loaded.
    ///
    /// # Errors
    ///
    /// The same as for the repository extension.
    fn load_model(&self, model: &str, parameters: LoadParameters) -> Result<(), Status>;

    /// Unloads a model.
    ///
    /// # Errors
    ///
    /// The same as for the repository extension.
    fn unload_model(&self, model: &str, unload_dependents: bool) -> Result<(), Status>;

    /// Returns true if a model version is serving.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the server is shutting down.
    fn is_model_ready(&self, model: &str, version: Option<i64>) -> Result<bool, Status>;

    /// Creates a metric family, or finds an existing one with this name.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the existing family has a different kind.
    fn metric_family(
        &self,
        name: &str,
        description: &str,
        kind: CustomMetricKind,
    ) -> Result<Box<dyn CustomMetricFamily>, Status>;

    /// Logs a model's message with its source location.
    fn log(&self, level: LogLevel, file: &str, line: u32, message: &str);
}

/// The meaning of a metric's values.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CustomMetricKind {
    /// A value that only increases.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// Observations that are counted in buckets.
    Histogram,
}

/// A metric family. It is removed when its last owner drops it.
pub trait CustomMetricFamily: Send + Sync {
    /// Creates the metric with these labels, or finds an existing one. `buckets` contains a
    /// histogram's bounds.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the family can't have such a metric.
    fn metric(
        &self,
        labels: &BTreeMap<String, String>,
        buckets: Option<&[f64]>,
    ) -> Result<Box<dyn CustomMetric>, Status>;
}

/// A metric. It is removed when its last owner drops it.
pub trait CustomMetric: Send + Sync {
    /// Adds to the metric's value.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a histogram; `InvalidArgument` for a counter and a negative value.
    fn increment(&self, by: f64) -> Result<(), Status>;
    /// Replaces the metric's value.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the metric is a gauge.
    fn set(&self, value: f64) -> Result<(), Status>;
    /// Records an observation.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless the metric is a histogram.
    fn observe(&self, value: f64) -> Result<(), Status>;
    /// The metric's value.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a histogram.
    fn value(&self) -> Result<f64, Status>;
}
