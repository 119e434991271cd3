//! Counts of occurrences: a world in which something never occurs proves nothing about it.

use std::fmt::{self, Display, Formatter};

use galatea_policy::{BatchEntry, FailReason};

use crate::decision::Decision;

/// An occurrence that is counted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Occurrence {
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

const OCCURRENCES: [(Occurrence, &str); 16] = [
    (Occurrence::LoneBatch, "batches of one"),
    (Occurrence::SharedBatch, "of several"),
    (Occurrence::Padding, "rows of padding"),
    (Occurrence::Start, "starts"),
    (Occurrence::End, "ends"),
    (Occurrence::Middle, "between"),
    (Occurrence::SequenceEnded, "sequences ended"),
    (Occurrence::Removed, "instances went"),
    (Occurrence::Failure(FailReason::QueueFull), "queues full"),
    (Occurrence::Failure(FailReason::TimeoutExpired), "timeouts"),
    (Occurrence::Failure(FailReason::Cancelled), "cancelled"),
    (Occurrence::Failure(FailReason::Draining), "refused unloading"),
    (Occurrence::Failure(FailReason::NoSequence), "without sequence"),
    (Occurrence::Failure(FailReason::MissingStart), "without start"),
    (Occurrence::Failure(FailReason::SequenceTimeoutExpired), "timeouts in the backlog"),
    (Occurrence::Failure(FailReason::RescheduledTooLate), "rescheduled too late"),
];

/// The count of each occurrence.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct OccurrenceCounts([u64; OCCURRENCES.len()]);

impl OccurrenceCounts {
    /// The count of this occurrence.
    pub fn of(&self, occurrence: Occurrence) -> u64 {
        let both = OCCURRENCES.iter().zip(self.0);
        both.filter(|((one, _), _)| *one == occurrence).map(|(_, count)| count).sum()
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &OccurrenceCounts) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    pub(super) fn count(&mut self, decision: &Decision) {
        match decision {
            Decision::Execute { entries, .. } => self.count_batch(entries),
            Decision::Fail(_, reason) => self.increment(Occurrence::Failure(*reason)),
            Decision::SequenceEnded(_) => self.increment(Occurrence::SequenceEnded),
            Decision::InstanceRemoved(_) => self.increment(Occurrence::Removed),
            Decision::SequenceClosed(_) | Decision::Drained => {}
        }
    }

    fn count_batch(&mut self, entries: &[BatchEntry]) {
        let requests = entries.iter().filter_map(BatchEntry::request).count();
        self.increment(if requests > 1 { Occurrence::SharedBatch } else { Occurrence::LoneBatch });
        for entry in entries {
            match entry {
                BatchEntry::Request(_) => {}
                BatchEntry::Step(step) if step.start => self.increment(Occurrence::Start),
                BatchEntry::Step(step) if step.end => self.increment(Occurrence::End),
                BatchEntry::Step(_) => self.increment(Occurrence::Middle),
                BatchEntry::Padding => self.increment(Occurrence::Padding),
            }
        }
    }

    fn increment(&mut self, occurrence: Occurrence) {
        let index = OCCURRENCES.iter().position(|(one, _)| *one == occurrence);
        self.0[index.expect("the table has every occurrence")] += 1;
    }
}

impl Display for OccurrenceCounts {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let seen = OCCURRENCES.iter().zip(self.0).filter(|(_, count)| *count > 0);
        let parts: Vec<String> = seen.map(|((_, name), count)| format!("{count} {name}")).collect();
        formatter.write_str(&parts.join(", "))
    }
}
