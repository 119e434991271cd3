//! Where an execution of a request is recorded.

use std::sync::Weak;

use galatea_infer::{StatisticsReporter, Trace};

/// Where an execution of a request is recorded.
#[derive(Clone)]
pub(crate) struct ExecutionRecorder {
    pub(crate) statistics: StatisticsReporter,
    /// Alive until the request is released.
    pub(crate) trace: Option<Weak<Trace>>,
}
