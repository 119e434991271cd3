//! A closed batch: the requests that execute together. It never reopens.

use crate::ids::{RequestKey, SequenceKey};

/// Requests to execute together, in the order of their rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    entries: Vec<BatchEntry>,
    batch_size: u32,
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
    pub(crate) fn new(entries: Vec<BatchEntry>, batch_size: u32) -> Self {
        assert!(!entries.is_empty(), "a batch has at least one request");
        Batch { entries, batch_size }
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
