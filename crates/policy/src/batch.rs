//! A closed batch, which is a set of requests that execute together. It never reopens.

use crate::ids::{RequestKey, SequenceKey};

/// Requests that execute together, in row order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    entries: Vec<BatchEntry>,
    batch_size: u32,
    close_reason: CloseReason,
}

/// The reason why a batch was closed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CloseReason {
    /// The batch has reached the maximum batch size, or the next request would exceed it.
    MaxSize,
    /// The batch has reached a preferred size, or the next request would exceed the largest one.
    Preferred,
    /// A larger batch would end after the batch's earliest deadline.
    Deadline,
    /// The oldest request has waited for the maximum queue delay.
    Delay,
    /// The next request has a different shape class.
    Shape,
    /// The next request would exceed the padded-element budget.
    Budget,
    /// Adding other waiting requests would make the padded batch slower.
    Cost,
    /// The model's own batching rule ended the batch.
    Rule,
    /// The configured number of sequence slots was ready.
    ReadySlots,
    /// An instance was free, and the configuration doesn't allow waiting for more requests.
    InstanceIdle,
    /// The model is unloading, so no further request can arrive.
    Unloading,
    /// The model's scheduler executes each request separately.
    Unbatched,
}

impl CloseReason {
    /// All reasons, in declaration order.
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

    /// Returns the stable, machine-readable name.
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

/// One entry of a batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BatchEntry {
    /// A whole request. Requests are never split.
    Request(RequestKey),
    /// The next request of a sequence, which occupies one row.
    Step(SequenceStep),
    /// An empty row. A slot of a direct sequence batch has no request, but the rows after it must
    /// line up with their slots.
    Padding,
}

/// One request of a sequence, with its sequence flags.
///
/// The dispatcher converts it to `galatea_infer::SequenceStep`, which carries the correlation ID
/// instead of the key.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SequenceStep {
    /// The request.
    pub key: RequestKey,
    /// The sequence that the request belongs to.
    pub sequence: SequenceKey,
    /// True if the request starts the sequence, which invalidates any earlier state of the slot.
    pub start: bool,
    /// True if the request ends the sequence.
    pub end: bool,
}

impl BatchEntry {
    /// Returns the request, or `None` for padding.
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

    /// Returns the reason why the batch was closed.
    pub fn close_reason(&self) -> CloseReason {
        self.close_reason
    }

    /// Returns the entries in row order.
    pub fn entries(&self) -> &[BatchEntry] {
        &self.entries
    }

    /// Converts the batch into its entries.
    pub fn into_entries(self) -> Vec<BatchEntry> {
        self.entries
    }

    /// Returns the total number of rows of all entries. Padding and requests without rows count as
    /// one row each.
    pub fn batch_size(&self) -> u32 {
        self.batch_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compiler can't detect that a reason is missing from these pages.
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
