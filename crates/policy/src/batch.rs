//! A closed batch: who runs together. It never reopens.

use crate::ids::RequestKey;

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

    /// Rows of all requests together; a request without rows counts as one.
    pub fn batch_size(&self) -> u32 {
        self.batch_size
    }
}
