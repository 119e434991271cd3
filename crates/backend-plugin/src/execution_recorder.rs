//! Records a request's executions.

use std::sync::Weak;

use galatea_infer::{ExecutionSummary, ExecutionTimes, FailureReason, StatisticsReporter, Trace};

/// Records a request's executions in the server's statistics and the request's trace.
#[derive(Clone)]
pub(crate) struct ExecutionRecorder {
    pub(crate) statistics: StatisticsReporter,
    /// Valid until the request is released.
    pub(crate) trace: Option<Weak<Trace>>,
}

impl ExecutionRecorder {
    pub(crate) fn record(&self, success: bool, times: &ExecutionTimes) {
        if let Some(trace) = self.trace.as_ref().and_then(Weak::upgrade) {
            trace.record_execution(times);
        }
        if success {
            self.statistics.report_success(&ExecutionSummary::from(times));
        } else {
            self.statistics.report_failure(FailureReason::Backend);
        }
    }
}
