//! A closed batch: the requests that execute together. It never reopens.

use crate::ids::{RequestKey, SequenceKey};

/// Requests to execute together, in the order of their rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    entries: Vec<BatchEntry>,
    batch_size: u32,
    close_reason: CloseReason,
}

/// Why a batch was closed when it was, and not earlier or later.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CloseReason {
    /// The next request would exceed the maximum batch size, or the batch has reached it.
    MaxSize,
    /// It reached a preferred size, or the next request would exceed the largest one.
    Preferred,
    /// A larger batch would end after the earliest deadline in it.
    Deadline,
    /// Its oldest request waited for the maximum queue delay.
    Delay,
    /// The next request has another shape class.
    Shape,
    /// The next request would exceed the budget of padded elements.
    Budget,
    /// With other requests that wait, a padded batch would be slower than without.
    Cost,
    /// The model's own batching rule ended it.
    Rule,
    /// As many slots of sequences were ready as the configuration asks for.
    ReadySlots,
    /// An instance was free, and the configuration allows no waiting for more requests.
    InstanceIdle,
    /// The model unloads, so no further request can arrive.
    Unloading,
    /// The model's scheduler executes each request by itself.
    Unbatched,
}

impl CloseReason {
    /// Every reason, in the order of their declaration.
    pub const ALL: [CloseReason; 12] = [
        CloseReason::MaxSize,
        CloseReason::Preferred,
        CloseReason::Deadline,
        CloseReason::Delay,
        CloseReason::Shape,
        CloseReason::Budget,
        CloseReason::Cost,
        CloseReason::Rule,
        CloseReason::ReadySlots,
        CloseReason::InstanceIdle,
        CloseReason::Unloading,
        CloseReason::Unbatched,
    ];

    /// Its name for programs, which does not change.
    pub const fn name(self) -> &'static str {
        match self {
            CloseReason::MaxSize => "max_size",
            CloseReason::Preferred => "preferred",
            CloseReason::Deadline => "deadline",
            CloseReason::Delay => "delay",
            CloseReason::Shape => "shape",
            CloseReason::Budget => "budget",
            CloseReason::Cost => "cost",
            CloseReason::Rule => "rule",
            CloseReason::ReadySlots => "ready_slots",
            CloseReason::InstanceIdle => "instance_idle",
            CloseReason::Unloading => "unloading",
            CloseReason::Unbatched => "unbatched",
        }
    }
}

/// One part of a batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BatchEntry {
    /// A whole request; requests are never split.
    Request(RequestKey),
    /// The next request of a sequence, one row.
    Step(SequenceStep),
    /// An empty row: this slot of a direct sequence batch has no request, and the rows
    /// behind it must match their slots.
    Padding,
}

/// One request of a sequence, with the sequence's flags.
///
/// The dispatcher converts it to `galatea_infer::SequenceStep`, which carries the
/// correlation ID in place of the key.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SequenceStep {
    /// The request.
    pub key: RequestKey,
    /// The sequence that it belongs to.
    pub sequence: SequenceKey,
    /// The sequence starts with it, so any earlier state of the slot is void.
    pub start: bool,
    /// The sequence ends with it.
    pub end: bool,
}

impl BatchEntry {
    /// The request, if this is not padding.
    pub fn request(&self) -> Option<RequestKey> {
        match self {
            BatchEntry::Request(key) | BatchEntry::Step(SequenceStep { key, .. }) => Some(*key),
            BatchEntry::Padding => None,
        }
    }
}

impl Batch {
    pub(crate) fn new(
        entries: Vec<BatchEntry>,
        batch_size: u32,
        close_reason: CloseReason,
    ) -> Self {
        assert!(!entries.is_empty(), "a batch has at least one request");
        Batch { entries, batch_size, close_reason }
    }

    /// Why it was closed when it was.
    pub fn close_reason(&self) -> CloseReason {
        self.close_reason
    }

    /// The entries in the order of rows.
    pub fn entries(&self) -> &[BatchEntry] {
        &self.entries
    }

    /// The entries, by value.
    pub fn into_entries(self) -> Vec<BatchEntry> {
        self.entries
    }

    /// Sum of the rows of all entries. A request without rows counts as one row, as
    /// does padding.
    pub fn batch_size(&self) -> u32 {
        self.batch_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No compiler sees that it is missing there.
    #[test]
    fn every_close_reason_is_on_the_pages() {
        let metrics = include_str!("../../../docs/metrics.md");
        let timeline = include_str!("../../dashboard/page/timeline.js");
        for reason in CloseReason::ALL {
            let name = reason.name();
            assert!(metrics.contains(&format!("| `{name}` |")), "{name} is not in docs/metrics.md");
            assert!(timeline.contains(&format!("  {name}: [")), "{name} is not in timeline.js");
        }
    }
}
