//! A closed batch: who runs together. It never reopens.

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
    /// A row that keeps the others in their slots: this slot of a direct
    /// sequence batch has nothing to run.
    Padding,
}

/// One request of a sequence, with what its execution must know of the sequence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SequenceStep {
    /// The request.
    pub key: RequestKey,
    /// The sequence that it belongs to.
    pub sequence: SequenceKey,
    /// Its sequence begins, so that whatever is known of the sequence's state
    /// is void.
    pub start: bool,
    /// Its sequence ends with it.
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

    /// What the batch is made of, in the order of rows.
    pub fn entries(&self) -> &[BatchEntry] {
        &self.entries
    }

    /// What the batch is made of, by value.
    pub fn into_entries(self) -> Vec<BatchEntry> {
        self.entries
    }

    /// Rows of all entries together; a request without rows counts as one, and
    /// so does padding.
    pub fn batch_size(&self) -> u32 {
        self.batch_size
    }
}
