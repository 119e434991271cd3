//! How often the scheduler closed a batch or failed a request, by reason.
//!
//! The counters are plain numbers under the dispatcher's lock, which each step holds anyway.

use galatea_infer::CountsByReason;
use galatea_policy::{CloseReason, FailReason};

/// Every reason, in the order of the metrics.
const FAIL_REASONS: [FailReason; 8] = [
    FailReason::QueueFull,
    FailReason::TimeoutExpired,
    FailReason::Cancelled,
    FailReason::Draining,
    FailReason::NoSequence,
    FailReason::MissingStart,
    FailReason::SequenceTimeoutExpired,
    FailReason::TooLate { retry_after_ns: 0 },
];

#[derive(Clone, Debug, Default)]
pub(super) struct SchedulingCounts {
    closed: [u64; CloseReason::ALL.len()],
    failed: [u64; FAIL_REASONS.len()],
}

impl SchedulingCounts {
    pub(super) fn closed(&mut self, reason: CloseReason) {
        count(&mut self.closed, CloseReason::ALL.iter().position(|known| *known == reason));
    }

    pub(super) fn failed(&mut self, reason: FailReason) {
        let position = FAIL_REASONS.iter().position(|known| name(*known) == name(reason));
        count(&mut self.failed, position);
    }

    /// Batches by the reason why they were closed.
    pub(super) fn closed_batches(&self) -> CountsByReason {
        CloseReason::ALL.iter().map(|reason| reason.name()).zip(self.closed).collect()
    }

    /// Requests by the reason why they were not executed.
    pub(super) fn unexecuted(&self) -> CountsByReason {
        FAIL_REASONS.iter().map(|reason| name(*reason)).zip(self.failed).collect()
    }
}

fn count(counts: &mut [u64], position: Option<usize>) {
    if let Some(count) = position.and_then(|index| counts.get_mut(index)) {
        *count += 1;
    }
}

/// The name for programs, which does not change.
const fn name(reason: FailReason) -> &'static str {
    match reason {
        FailReason::QueueFull => "queue_full",
        FailReason::TimeoutExpired => "queue_timeout",
        FailReason::Cancelled => "cancelled",
        FailReason::Draining => "unloading",
        FailReason::NoSequence => "no_sequence",
        FailReason::MissingStart => "missing_start",
        FailReason::SequenceTimeoutExpired => "sequence_timeout",
        FailReason::TooLate { .. } => "too_late",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let mut counts = SchedulingCounts::default();
        CloseReason::ALL.into_iter().for_each(|reason| counts.closed(reason));
        FAIL_REASONS.into_iter().for_each(|reason| counts.failed(reason));
        let (closed, failed) = (counts.closed_batches(), counts.unexecuted());
        assert!(closed.iter().chain(&failed).all(|(_, count)| *count == 1), "{counts:?}");
        let mut names: Vec<_> = closed.iter().chain(&failed).map(|(name, _)| *name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        // A model that unloads closes batches and refuses requests.
        assert_eq!(names.len(), all - 1);
    }
}
