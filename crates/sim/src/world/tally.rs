//! What happened how often: worlds in which something never happens prove nothing
//! of it.

use std::fmt::{self, Display, Formatter};

use galatea_policy::{BatchEntry, FailReason};

use crate::deed::Deed;

/// Something worth counting.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Sight {
    /// A batch of one request.
    LoneBatch,
    /// A batch of several requests.
    SharedBatch,
    /// A row of padding.
    Padding,
    /// A request that runs, the first of its sequence.
    Start,
    /// A request that runs, the last of its sequence.
    End,
    /// A request that runs, neither the first nor the last of a sequence.
    Middle,
    /// A sequence ended.
    SequenceEnded,
    /// An instance went.
    Removed,
    /// A request failed.
    Failure(FailReason),
}

const SIGHTS: [(Sight, &str); 15] = [
    (Sight::LoneBatch, "batches of one"),
    (Sight::SharedBatch, "of several"),
    (Sight::Padding, "rows of padding"),
    (Sight::Start, "starts"),
    (Sight::End, "ends"),
    (Sight::Middle, "between"),
    (Sight::SequenceEnded, "sequences ended"),
    (Sight::Removed, "instances went"),
    (Sight::Failure(FailReason::QueueFull), "queues full"),
    (Sight::Failure(FailReason::TimeoutExpired), "timeouts"),
    (Sight::Failure(FailReason::Cancelled), "cancelled"),
    (Sight::Failure(FailReason::Draining), "refused unloading"),
    (Sight::Failure(FailReason::NoSequence), "without sequence"),
    (Sight::Failure(FailReason::MissingStart), "without start"),
    (Sight::Failure(FailReason::SequenceTimeoutExpired), "timeouts in the backlog"),
];

/// How often each thing was seen.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally([u64; SIGHTS.len()]);

impl Tally {
    /// How often this was seen.
    pub fn of(&self, sight: Sight) -> u64 {
        let both = SIGHTS.iter().zip(self.0);
        both.filter(|((one, _), _)| *one == sight).map(|(_, count)| count).sum()
    }

    /// Adds what was seen elsewhere.
    pub fn add(&mut self, other: &Tally) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    pub(super) fn count(&mut self, deed: &Deed) {
        match deed {
            Deed::Run { entries, .. } => self.count_batch(entries),
            Deed::Fail(_, reason) => self.see(Sight::Failure(*reason)),
            Deed::Ended(_) => self.see(Sight::SequenceEnded),
            Deed::Removed(_) => self.see(Sight::Removed),
            Deed::Closed(_) | Deed::Drained => {}
        }
    }

    fn count_batch(&mut self, entries: &[BatchEntry]) {
        let requests = entries.iter().filter_map(BatchEntry::request).count();
        self.see(if requests > 1 { Sight::SharedBatch } else { Sight::LoneBatch });
        for entry in entries {
            match entry {
                BatchEntry::Request(_) => {}
                BatchEntry::Step(step) if step.start => self.see(Sight::Start),
                BatchEntry::Step(step) if step.end => self.see(Sight::End),
                BatchEntry::Step(_) => self.see(Sight::Middle),
                BatchEntry::Padding => self.see(Sight::Padding),
            }
        }
    }

    fn see(&mut self, sight: Sight) {
        let place = SIGHTS.iter().position(|(one, _)| *one == sight);
        self.0[place.expect("every sight has its place")] += 1;
    }
}

impl Display for Tally {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let seen = SIGHTS.iter().zip(self.0).filter(|(_, count)| *count > 0);
        let parts: Vec<String> = seen.map(|((_, name), count)| format!("{count} {name}")).collect();
        formatter.write_str(&parts.join(", "))
    }
}
