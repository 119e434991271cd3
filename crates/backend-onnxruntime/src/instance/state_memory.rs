//! Memory of the states that sequences keep between their requests.
//!
//! The states of a batch are rows of one tensor, and each is handed on as a
//! slice of it: nothing is copied. But one row keeps the whole tensor. As long
//! as all sequences go on that is no loss, since the next batch replaces every
//! row. A sequence that pauses, however, keeps a tensor of which only its row
//! is still used, and with batches of many rows most of the memory would be
//! such remains.
//!
//! So an instance counts the bytes of tensors that are kept and the bytes of
//! rows that are used. When the remains are more than the used rows, and more
//! than [`SLACK_BYTES`], the rows of the next tensor are copied, each into
//! memory of its own, and the tensor goes with its run. The memory of an
//! instance's states is thereby bounded by about twice the most that the
//! states themselves took, one batch, and the slack, however sequences pause.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Remains that are not worth a copy.
const SLACK_BYTES: usize = 1 << 20;

/// The states that come from one instance.
#[derive(Debug, Default)]
pub(super) struct StateMemory {
    ledger: Arc<Ledger>,
}

/// Counted without an order between the two: it is an estimate that decides
/// about costs only.
#[derive(Debug, Default)]
struct Ledger {
    /// Bytes of tensors that at least one row keeps.
    kept: AtomicUsize,
    /// Bytes of the rows that keep them.
    used: AtomicUsize,
}

/// The tensor with a state of a whole batch, whose rows are to be handed on.
#[derive(Debug)]
pub(super) enum StateRows {
    /// As slices.
    Shared(Arc<KeptTensor>),
    /// As copies.
    Copied(Bytes),
}

/// A tensor that lives as long as one of its rows.
#[derive(Debug)]
pub(super) struct KeptTensor {
    bytes: Bytes,
    ledger: Arc<Ledger>,
}

/// A row that a sequence keeps.
struct Row {
    tensor: Arc<KeptTensor>,
    range: Range<usize>,
}

impl StateMemory {
    /// Takes a tensor of which sequences will use `used` bytes.
    pub(super) fn rows(&self, tensor: Bytes, used: usize) -> StateRows {
        if self.would_waste(tensor.len().saturating_sub(used)) {
            return StateRows::Copied(tensor);
        }
        let ledger = self.ledger.clone();
        ledger.kept.fetch_add(tensor.len(), Ordering::Relaxed);
        StateRows::Shared(Arc::new(KeptTensor { bytes: tensor, ledger }))
    }

    /// Whether too much is kept for too little, with `unused` bytes more.
    fn would_waste(&self, unused: usize) -> bool {
        let used = self.ledger.used.load(Ordering::Relaxed);
        let kept = self.ledger.kept.load(Ordering::Relaxed);
        kept.saturating_sub(used).saturating_add(unused) > used.max(SLACK_BYTES)
    }
}

impl StateRows {
    /// The bytes in `range`, for a sequence to keep.
    pub(super) fn row(&self, range: Range<usize>) -> Bytes {
        match self {
            Self::Shared(tensor) if !range.is_empty() => {
                tensor.ledger.used.fetch_add(range.len(), Ordering::Relaxed);
                Bytes::from_owner(Row { tensor: tensor.clone(), range })
            }
            Self::Shared(_) => Bytes::new(),
            Self::Copied(bytes) => Bytes::copy_from_slice(bytes.get(range).unwrap_or_default()),
        }
    }
}

impl AsRef<[u8]> for Row {
    fn as_ref(&self) -> &[u8] {
        self.tensor.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        self.tensor.ledger.used.fetch_sub(self.range.len(), Ordering::Relaxed);
    }
}

impl Drop for KeptTensor {
    fn drop(&mut self) {
        self.ledger.kept.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: usize = SLACK_BYTES;

    fn tensor(rows: usize) -> Bytes {
        Bytes::from(vec![7; rows * ROW])
    }

    fn row(rows: &StateRows, index: usize) -> Bytes {
        rows.row(index * ROW..(index + 1) * ROW)
    }

    fn kept_and_used(memory: &StateMemory) -> (usize, usize) {
        let rows = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed) / ROW;
        (rows(&memory.ledger.kept), rows(&memory.ledger.used))
    }

    #[test]
    fn rows_are_slices_that_keep_their_tensor() {
        let memory = StateMemory::default();
        let tensor = tensor(2);
        let rows = memory.rows(tensor.clone(), tensor.len());
        let states = [row(&rows, 0), row(&rows, 1)];
        drop(rows);
        assert_eq!(states[0].as_ptr(), tensor.as_ptr());
        assert_eq!(states[1].as_ptr().addr() - states[0].as_ptr().addr(), ROW);
        assert_eq!(kept_and_used(&memory), (2, 2));
        let [first, second] = states;
        drop(first);
        assert_eq!(kept_and_used(&memory), (2, 1));
        drop(second);
        assert_eq!(kept_and_used(&memory), (0, 0));
        let rows = memory.rows(Bytes::new(), 0);
        assert!(rows.row(0..0).is_empty());
    }

    #[test]
    fn sequences_that_go_on_together_are_never_copied() {
        let memory = StateMemory::default();
        let mut states: Vec<Bytes> = Vec::new();
        for _ in 0..10 {
            let rows = memory.rows(tensor(8), 8 * ROW);
            assert!(matches!(rows, StateRows::Shared(_)));
            states = (0..8).map(|index| row(&rows, index)).collect();
        }
        drop(states);
        assert_eq!(kept_and_used(&memory), (0, 0));
    }

    /// Each step one sequence more pauses: without a bound every one of them
    /// would keep eight rows.
    #[test]
    fn sequences_that_pause_keep_a_bounded_amount() {
        const SEQUENCES: usize = 64;
        const BATCH: usize = 8;
        let memory = StateMemory::default();
        let mut states: Vec<Bytes> = vec![Bytes::new(); SEQUENCES];
        let mut most_used = 0;
        let mut shared = 0;
        for first in 0..SEQUENCES - BATCH {
            let rows = memory.rows(tensor(BATCH), BATCH * ROW);
            shared += usize::from(matches!(rows, StateRows::Shared(_)));
            for index in 0..BATCH {
                states[first + index] = row(&rows, index);
            }
            drop(rows);
            let (kept, used) = kept_and_used(&memory);
            most_used = most_used.max(used);
            assert!(kept <= 2 * most_used + BATCH, "{kept} for {most_used}");
        }
        assert!(shared > 0 && shared < SEQUENCES - BATCH, "{shared}");
        assert!(states.iter().filter_map(|state| state.first()).all(|&byte| byte == 7));
        drop(states);
        assert_eq!(kept_and_used(&memory), (0, 0));
    }

    #[test]
    fn a_batch_that_is_mostly_padding_is_copied() {
        let memory = StateMemory::default();
        let tensor = tensor(16);
        let rows = memory.rows(tensor.clone(), ROW);
        assert!(matches!(rows, StateRows::Copied(_)));
        let state = row(&rows, 3);
        assert_eq!(state, tensor.slice(3 * ROW..4 * ROW));
        assert_ne!(state.as_ptr(), tensor.slice(3 * ROW..).as_ptr());
        assert_eq!(kept_and_used(&memory), (0, 0));
    }
}
