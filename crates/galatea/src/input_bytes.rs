//! The metric of the `identity` backend, with Triton's name and help text.

use std::sync::Arc;

use galatea_backend_examples::{InputByteCounter, InputByteCounterFactory};
use galatea_capi::metric::{Metric, MetricFamily, MetricKind};
use galatea_infer::Status;

const NAME: &str = "input_byte_size_counter";
const HELP: &str = "Cumulative input byte size of all requests received by the model";

/// The counter family.
pub(crate) struct InputBytes(MetricFamily);

impl InputBytes {
    /// # Errors
    ///
    /// Returns `InvalidArgument` if a plug-in or program has a metric with this name but another
    /// kind.
    pub(crate) fn new() -> Result<Self, Status> {
        MetricFamily::new(MetricKind::Counter, NAME, HELP).map(Self)
    }
}

impl InputByteCounterFactory for InputBytes {
    fn counter(&self, model: &str, version: i64) -> Result<Arc<dyn InputByteCounter>, Status> {
        let labels = [("model", model.to_owned()), ("version", version.to_string())];
        let labels = labels.map(|(name, value)| (name.to_owned(), value));
        Ok(Arc::new(Bytes(self.0.metric(labels, None)?)))
    }
}

struct Bytes(Metric);

impl InputByteCounter for Bytes {
    #[allow(clippy::cast_precision_loss, reason = "a sum of sizes is exact up to 2^53 bytes")]
    fn add(&self, bytes: usize) {
        // A counter rejects only negative values.
        let _ = self.0.increment(bytes as f64);
    }
}
