//! Counts of occurrences: a world in which something never occurs proves nothing about it.

use std::fmt::{self, Display, Formatter};

use galatea_policy::{BatchEntry, FailReason};

use crate::decision::SchedulerDecision;

/// An occurrence that is counted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CoverageEvent {
    /// A batch of one request.
    LoneBatch,
    /// A batch of several requests.
    SharedBatch,
    /// A row of padding.
    Padding,
    /// The first request of a sequence executes.
    Start,
    /// The last request of a sequence executes.
    End,
    /// A request that is neither the first nor the last of its sequence executes.
    Middle,
    /// A sequence ended.
    SequenceEnded,
    /// An instance was removed.
    Removed,
    /// A request failed.
    Failure(FailReason),
}

const OCCURRENCES: [(CoverageEvent, &str); 16] = [
    (CoverageEvent::LoneBatch, "batches of one"),
    (CoverageEvent::SharedBatch, "of several"),
    (CoverageEvent::Padding, "rows of padding"),
    (CoverageEvent::Start, "starts"),
    (CoverageEvent::End, "ends"),
    (CoverageEvent::Middle, "between"),
    (CoverageEvent::SequenceEnded, "sequences ended"),
    (CoverageEvent::Removed, "instances went"),
    (CoverageEvent::Failure(FailReason::QueueFull), "queues full"),
    (CoverageEvent::Failure(FailReason::TimeoutExpired), "timeouts"),
    (CoverageEvent::Failure(FailReason::Cancelled), "cancelled"),
    (CoverageEvent::Failure(FailReason::Draining), "refused unloading"),
    (CoverageEvent::Failure(FailReason::NoSequence), "without sequence"),
    (CoverageEvent::Failure(FailReason::MissingStart), "without start"),
    (CoverageEvent::Failure(FailReason::SequenceTimeoutExpired), "timeouts in the backlog"),
    (CoverageEvent::Failure(FailReason::RescheduledTooLate), "rescheduled too late"),
];

/// The count of each occurrence.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct CoverageCounts([u64; OCCURRENCES.len()]);

impl CoverageCounts {
    /// Returns the count of this occurrence.
    pub fn of(&self, occurrence: CoverageEvent) -> u64 {
        let both = OCCURRENCES.iter().zip(self.0);
        both.filter(|((one, _), _)| *one == occurrence).map(|(_, count)| count).sum()
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &CoverageCounts) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    pub(super) fn count(&mut self, decision: &SchedulerDecision) {
        match decision {
            SchedulerDecision::Execute { entries, .. } => self.count_batch(entries),
            SchedulerDecision::Fail(_, reason) => self.increment(CoverageEvent::Failure(*reason)),
            SchedulerDecision::SequenceEnded(_) => self.increment(CoverageEvent::SequenceEnded),
            SchedulerDecision::InstanceRemoved(_) => self.increment(CoverageEvent::Removed),
            SchedulerDecision::SequenceClosed(_) | SchedulerDecision::Drained => {}
        }
    }

    fn count_batch(&mut self, entries: &[BatchEntry]) {
        let requests = entries.iter().filter_map(BatchEntry::request).count();
        self.increment(if requests > 1 {
            CoverageEvent::SharedBatch
        } else {
            CoverageEvent::LoneBatch
        });
        for entry in entries {
            match entry {
                BatchEntry::Request(_) => {}
                BatchEntry::Step(step) if step.start => self.increment(CoverageEvent::Start),
                BatchEntry::Step(step) if step.end => self.increment(CoverageEvent::End),
                BatchEntry::Step(_) => self.increment(CoverageEvent::Middle),
                BatchEntry::Padding => self.increment(CoverageEvent::Padding),
            }
        }
    }

    fn increment(&mut self, occurrence: CoverageEvent) {
        let index = OCCURRENCES.iter().position(|(one, _)| *one == occurrence);
        self.0[index.expect("the table has every occurrence")] += 1;
    }
}

impl Display for CoverageCounts {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let seen = OCCURRENCES.iter().zip(self.0).filter(|(_, count)| *count > 0);
        let parts: Vec<String> = seen.map(|((_, name), count)| format!("{count} {name}")).collect();
        formatter.write_str(&parts.join(", "))
    }
}
