//! The latest changes of the models in memory, for people who watch the server.

use std::collections::VecDeque;
use std::time::Duration;

use galatea_control::{ResidencyChange, ResidencyChangeKind, ResidencyReading};
use galatea_policy::{MemoryPoolId, ModelId, Time};

use super::Demand;

/// The number of changes that are kept.
const CHANGES_MAX: usize = 1024;
/// The maximum length of a reason, in characters.
const REASON_CHARS_MAX: usize = 200;

/// The latest changes, oldest first.
#[derive(Debug, Default)]
pub(super) struct Journal {
    changes: VecDeque<ResidencyChange>,
    next: u64,
}

impl Journal {
    /// Adds a change, and drops the oldest one if there are too many.
    pub(super) fn add(
        &mut self,
        now: Time,
        model: &ModelId,
        kind: ResidencyChangeKind,
        bytes: u64,
        reason: &str,
    ) {
        if self.changes.len() >= CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(ResidencyChange {
            number: self.next,
            at: Duration::from_nanos(now.0),
            model: model.to_string(),
            kind,
            bytes,
            reason: reason.chars().take(REASON_CHARS_MAX).collect(),
        });
        self.next += 1;
    }

    /// The kept changes whose numbers are at least `from`.
    fn since(&self, from: u64) -> Vec<ResidencyChange> {
        self.changes.iter().filter(|change| change.number >= from).cloned().collect()
    }
}

impl Demand {
    /// Reads the memory, and the changes whose numbers are at least `from`.
    pub(crate) fn residency(&self, from: u64) -> ResidencyReading {
        let state = self.state.lock("read the changes of models in memory");
        let limit = state.residency.settings().budget.limit(MemoryPoolId::HOST);
        ResidencyReading {
            at: Duration::from_nanos(self.now().0),
            limit_bytes: limit.unwrap_or(0),
            used_bytes: state.residency.used().of(MemoryPoolId::HOST),
            changes: state.journal.since(from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_changes_are_dropped() {
        let mut journal = Journal::default();
        let model = ModelId::from("a");
        for number in 0..1_030 {
            let reason = "r".repeat(300);
            journal.add(Time(number), &model, ResidencyChangeKind::Loaded, number, &reason);
        }
        assert_eq!(journal.since(0).len(), CHANGES_MAX);
        let last = journal.since(1_028);
        assert_eq!(last.iter().map(|change| change.bytes).collect::<Vec<_>>(), [1_028, 1_029]);
        assert_eq!(last[0].at, Duration::from_nanos(1_028));
        assert_eq!(last[0].reason.len(), REASON_CHARS_MAX);
        assert_eq!(journal.since(1_030), []);
    }
}
