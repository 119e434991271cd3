//! Memory of the states that sequences keep between their requests.
//!
//! The states of a batch are rows of one tensor. Each sequence gets a slice of it: nothing is
//! copied, but one row keeps the whole tensor alive. While all sequences continue, the next
//! batch replaces every row. A sequence that pauses keeps a tensor of which only its row is
//! used; with batches of many rows, most of the memory would be unused rows.
//!
//! So an instance counts the bytes of tensors that are alive and the bytes of rows that are
//! used. When the unused bytes are more than the used ones, and more than [`SLACK_BYTES`], the
//! rows of the next tensor are copied, each into memory of its own, and the tensor is freed
//! after its run. This bounds the memory of an instance's states, however sequences pause:
//! about twice the most that the states themselves took, one batch, and the slack.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Unused bytes that are not worth a copy.
const SLACK_BYTES: usize = 1 << 20;

/// The memory of the states that one instance makes.
#[derive(Debug, Default)]
pub(super) struct StateMemory {
    counters: Arc<StateCounters>,
}

/// The two are not updated together: they are an estimate, which affects only costs.
#[derive(Debug, Default)]
struct StateCounters {
    /// Bytes of tensors that at least one row keeps alive.
    tensor_bytes: AtomicUsize,
    /// Bytes of these rows.
    row_bytes: AtomicUsize,
}

/// The tensor with a state of a whole batch, whose rows sequences get.
#[derive(Debug)]
pub(super) enum StateRows {
    /// Sequences get slices.
    Shared(Arc<SharedTensor>),
    /// Sequences get copies.
    Copied(Bytes),
}

/// A tensor with the states of a batch. It lives as long as any of its rows.
#[derive(Debug)]
pub(super) struct SharedTensor {
    bytes: Bytes,
    counters: Arc<StateCounters>,
}

/// A row that a sequence keeps.
struct SharedRow {
    tensor: Arc<SharedTensor>,
    range: Range<usize>,
}

impl StateMemory {
    /// Prepares the rows of a tensor of which sequences will use `used` bytes.
    pub(super) fn rows(&self, tensor: Bytes, used: usize) -> StateRows {
        if self.would_waste(tensor.len().saturating_sub(used)) {
            return StateRows::Copied(tensor);
        }
        let counters = self.counters.clone();
        counters.tensor_bytes.fetch_add(tensor.len(), Ordering::Relaxed);
        StateRows::Shared(Arc::new(SharedTensor { bytes: tensor, counters }))
    }

    /// Whether too much memory would be unused, with `unused` bytes more.
    fn would_waste(&self, unused: usize) -> bool {
        let rows = self.counters.row_bytes.load(Ordering::Relaxed);
        let tensors = self.counters.tensor_bytes.load(Ordering::Relaxed);
        tensors.saturating_sub(rows).saturating_add(unused) > rows.max(SLACK_BYTES)
    }
}

impl StateRows {
    /// The bytes in `range`, which a sequence may keep.
    pub(super) fn row(&self, range: Range<usize>) -> Bytes {
        match self {
            Self::Shared(tensor) if !range.is_empty() => {
                tensor.counters.row_bytes.fetch_add(range.len(), Ordering::Relaxed);
                Bytes::from_owner(SharedRow { tensor: tensor.clone(), range })
            }
            Self::Shared(_) => Bytes::new(),
            Self::Copied(bytes) => Bytes::copy_from_slice(bytes.get(range).unwrap_or_default()),
        }
    }
}

impl AsRef<[u8]> for SharedRow {
    fn as_ref(&self) -> &[u8] {
        self.tensor.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

impl Drop for SharedRow {
    fn drop(&mut self) {
        self.tensor.counters.row_bytes.fetch_sub(self.range.len(), Ordering::Relaxed);
    }
}

impl Drop for SharedTensor {
    fn drop(&mut self) {
        self.counters.tensor_bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
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

    fn tensor_and_row_count(memory: &StateMemory) -> (usize, usize) {
        let rows = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed) / ROW;
        (rows(&memory.counters.tensor_bytes), rows(&memory.counters.row_bytes))
    }

    #[test]
    fn rows_are_slices_that_keep_their_tensor_alive() {
        let memory = StateMemory::default();
        let tensor = tensor(2);
        let rows = memory.rows(tensor.clone(), tensor.len());
        let states = [row(&rows, 0), row(&rows, 1)];
        drop(rows);
        assert_eq!(states[0].as_ptr(), tensor.as_ptr());
        assert_eq!(states[1].as_ptr().addr() - states[0].as_ptr().addr(), ROW);
        assert_eq!(tensor_and_row_count(&memory), (2, 2));
        let [first, second] = states;
        drop(first);
        assert_eq!(tensor_and_row_count(&memory), (2, 1));
        drop(second);
        assert_eq!(tensor_and_row_count(&memory), (0, 0));
        let rows = memory.rows(Bytes::new(), 0);
        assert!(rows.row(0..0).is_empty());
    }

    #[test]
    fn states_of_sequences_that_continue_together_are_never_copied() {
        let memory = StateMemory::default();
        let mut states: Vec<Bytes> = Vec::new();
        for _ in 0..10 {
            let rows = memory.rows(tensor(8), 8 * ROW);
            assert!(matches!(rows, StateRows::Shared(_)));
            states = (0..8).map(|index| row(&rows, index)).collect();
        }
        drop(states);
        assert_eq!(tensor_and_row_count(&memory), (0, 0));
    }

    /// With each batch another sequence pauses. Without a bound, each of them would keep
    /// eight rows.
    #[test]
    fn paused_sequences_keep_a_bounded_amount_of_memory() {
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
            let (tensors, used) = tensor_and_row_count(&memory);
            most_used = most_used.max(used);
            assert!(tensors <= 2 * most_used + BATCH, "{tensors} for {most_used}");
        }
        assert!(shared > 0 && shared < SEQUENCES - BATCH, "{shared}");
        assert!(states.iter().filter_map(|state| state.first()).all(|&byte| byte == 7));
        drop(states);
        assert_eq!(tensor_and_row_count(&memory), (0, 0));
    }

    #[test]
    fn states_of_a_batch_that_is_mostly_padding_are_copied() {
        let memory = StateMemory::default();
        let tensor = tensor(16);
        let rows = memory.rows(tensor.clone(), ROW);
        assert!(matches!(rows, StateRows::Copied(_)));
        let state = row(&rows, 3);
        assert_eq!(state, tensor.slice(3 * ROW..4 * ROW));
        assert_ne!(state.as_ptr(), tensor.slice(3 * ROW..).as_ptr());
        assert_eq!(tensor_and_row_count(&memory), (0, 0));
    }
}
