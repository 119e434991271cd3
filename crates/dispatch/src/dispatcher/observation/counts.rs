//! Counts of closed batches and failed requests, by reason.
//!
//! The counters are plain numbers guarded by the dispatcher's lock, which every step holds anyway.

use std::mem::discriminant;

use galatea_control::CountsByReason;
use galatea_policy::{CloseReason, FailReason};
use galatea_stdx::len64;

use super::Observation;

/// All failure reasons, in the order of the metrics.
const FAIL_REASONS: [FailReason; 9] = [
    FailReason::QueueFull,
    FailReason::TimeoutExpired,
    FailReason::Cancelled,
    FailReason::Draining,
    FailReason::NoSequence,
    FailReason::MissingStart,
    FailReason::SequenceTimeoutExpired,
    FailReason::RescheduledTooLate,
    FailReason::TooLate { retry_after_ns: 0 },
];

/// A dispatcher's counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct SchedulingCounts {
    closed: [u64; CloseReason::ALL.len()],
    /// The number of requests in the closed batches, by the same reason.
    closed_requests: [u64; CloseReason::ALL.len()],
    failed: [u64; FAIL_REASONS.len()],
}

impl SchedulingCounts {
    #[inline]
    pub(super) fn observe(&mut self, observation: &Observation<'_>) {
        match observation {
            Observation::Closed(closing) => self.closed(closing.reason, closing.keys().count()),
            Observation::Failed(_, reason) => self.failed(*reason),
            Observation::Queued(_)
            | Observation::Freed(_)
            | Observation::Stepped(_)
            | Observation::Dropped => {}
        }
    }

    fn closed(&mut self, reason: CloseReason, requests: usize) {
        let place = CloseReason::ALL.iter().position(|known| *known == reason);
        count(&mut self.closed, place, 1);
        count(&mut self.closed_requests, place, len64(requests));
    }

    fn failed(&mut self, reason: FailReason) {
        let is_same = |known: &FailReason| discriminant(known) == discriminant(&reason);
        count(&mut self.failed, FAIL_REASONS.iter().position(is_same), 1);
    }

    /// The number of closed batches, by the reason for closing them.
    pub(crate) fn closed_batches(&self) -> CountsByReason {
        CloseReason::ALL.iter().map(|reason| reason.name()).zip(self.closed).collect()
    }

    /// The number of requests in closed batches, by the reason for closing them.
    pub(crate) fn closed_requests(&self) -> CountsByReason {
        CloseReason::ALL.iter().map(|reason| reason.name()).zip(self.closed_requests).collect()
    }

    /// The number of unexecuted requests, by the reason why they were not executed.
    pub(crate) fn unexecuted(&self) -> CountsByReason {
        FAIL_REASONS.iter().map(|reason| reason.name()).zip(self.failed).collect()
    }
}

fn count(counts: &mut [u64], position: Option<usize>, more: u64) {
    if let Some(count) = position.and_then(|index| counts.get_mut(index)) {
        *count += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let mut counts = SchedulingCounts::default();
        CloseReason::ALL.into_iter().for_each(|reason| counts.closed(reason, 1));
        FAIL_REASONS.into_iter().for_each(|reason| counts.failed(reason));
        let (closed, failed) = (counts.closed_batches(), counts.unexecuted());
        assert!(closed.iter().chain(&failed).all(|(_, count)| *count == 1), "{counts:?}");
        let mut names: Vec<_> = closed.iter().chain(&failed).map(|(name, _)| *name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        // A model that is unloading closes batches and refuses requests.
        assert_eq!(names.len(), all - 1);
    }
}
