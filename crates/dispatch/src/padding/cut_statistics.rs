//! Statistics for a padded request. Cutting its response may turn it into an error after the
//! execution has been reported as a success.
//!
//! A success is counted only once the execution and the cutting are both known to have succeeded.
//! Backends report the two in either order.

use std::sync::Arc;

use galatea_infer::{AdmissionTimes, ExecutionSummary, FailureReason, RequestObserver};
use galatea_stdx::Lock;

/// The observer of a padded request.
#[derive(Debug)]
pub(super) struct CutStatistics {
    inner: Arc<dyn RequestObserver>,
    state: Lock<CutState>,
}

/// The states: Waiting → Executed or Cut → Counted.
#[derive(Debug)]
enum CutState {
    /// Neither outcome is known.
    Waiting,
    /// The execution succeeded.
    Executed(Box<SuccessReport>),
    /// The response was cut back, successfully or not.
    Cut {
        succeeded: bool,
    },
    Counted,
}

#[derive(Debug)]
struct SuccessReport {
    batch_size: u32,
    times: AdmissionTimes,
    execution: ExecutionSummary,
}

impl CutStatistics {
    pub(super) fn new(inner: Arc<dyn RequestObserver>) -> Arc<Self> {
        Arc::new(Self { inner, state: Lock::new(CutState::Waiting) })
    }

    /// Records that the response was cut back, successfully or not, or that no response exists.
    pub(super) fn cut(&self, succeeded: bool) {
        let mut state = self.state.lock("note what became of a response");
        match std::mem::replace(&mut *state, CutState::Counted) {
            CutState::Waiting => *state = CutState::Cut { succeeded },
            CutState::Executed(success) => {
                drop(state);
                self.count(&success, succeeded);
            }
            // The first error of a request determines the result.
            CutState::Cut { succeeded: before } => {
                *state = CutState::Cut { succeeded: before && succeeded };
            }
            CutState::Counted => {}
        }
    }

    fn count(&self, success: &SuccessReport, is_cut: bool) {
        let SuccessReport { batch_size, times, execution } = success;
        if is_cut {
            self.inner.succeeded(*batch_size, times, execution);
        } else {
            self.inner.failed(times, FailureReason::Backend);
        }
    }
}

impl RequestObserver for CutStatistics {
    fn succeeded(&self, batch_size: u32, times: &AdmissionTimes, execution: &ExecutionSummary) {
        let success = SuccessReport { batch_size, times: *times, execution: *execution };
        let mut state = self.state.lock("note an execution");
        match std::mem::replace(&mut *state, CutState::Counted) {
            CutState::Waiting => *state = CutState::Executed(Box::new(success)),
            CutState::Cut { succeeded } => {
                drop(state);
                self.count(&success, succeeded);
            }
            before @ (CutState::Executed(_) | CutState::Counted) => *state = before,
        }
    }

    fn failed(&self, times: &AdmissionTimes, reason: FailureReason) {
        *self.state.lock("note a failure") = CutState::Counted;
        self.inner.failed(times, reason);
    }

    fn responding(&self, times: &AdmissionTimes) {
        self.inner.responding(times);
    }
}
