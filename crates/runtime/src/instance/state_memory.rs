//! Memory for the states that sequences keep between requests.
//!
//! A batch's states are rows of one tensor. Each sequence gets a slice of it. Nothing is copied,
//! but a single row keeps the whole tensor alive. While all sequences continue, the next batch
//! replaces every row. A paused sequence keeps a whole tensor alive although only its own row is
//! used. With large batches, most of the memory would be unused rows.
//!
//! An instance therefore counts the bytes of live tensors and the bytes of used rows. If the unused
//! bytes exceed both the used bytes and [`SLACK_BYTES`], each row of the next tensor is copied to
//! its own memory, and the tensor is freed after its run. This bounds the memory for an instance's
//! states to about twice the peak size of the states themselves, plus one batch and the slack,
//! regardless of how sequences pause.
//!
//! States that an instance on a GPU produces stay in the GPU's memory. States that have to be
//! copied go to host memory, which is larger, and return with the next request of their sequence.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use galatea_tensor::{Buffer, DeviceRegion};

/// The number of unused bytes that doesn't justify a copy.
const SLACK_BYTES: usize = 1 << 20;

/// The memory for the states that an instance produces.
#[derive(Debug, Default)]
pub(super) struct StateMemory {
    counters: Arc<StateCounters>,
}

/// The counters are not updated atomically together. They are an estimate that only affects
/// performance.
#[derive(Debug, Default)]
struct StateCounters {
    /// The bytes of tensors that at least one row keeps alive.
    tensor_bytes: AtomicUsize,
    /// The bytes of these rows.
    row_bytes: AtomicUsize,
}

/// A tensor with a state for the whole batch, from which sequences receive their rows.
#[derive(Debug)]
pub(super) enum StateRows {
    /// Sequences get slices.
    Shared(Arc<SharedTensor>),
    /// Sequences get copies.
    Copied(Bytes),
}

/// A tensor with the states of a batch, in host or GPU memory.
#[derive(Clone)]
pub(super) enum StateTensor {
    Host(Bytes),
    Device(DeviceRegion),
}

/// A tensor with a batch's states. It lives as long as any of its rows.
#[derive(Debug)]
pub(super) struct SharedTensor {
    content: StateTensor,
    counters: Arc<StateCounters>,
}

/// A row that a sequence keeps.
struct SharedRow {
    tensor: Arc<SharedTensor>,
    range: Range<usize>,
}

impl StateMemory {
    /// Prepares the rows of a tensor. Sequences will use `used` bytes of it.
    pub(super) fn rows(&self, tensor: StateTensor, used: usize) -> StateRows {
        match tensor {
            StateTensor::Host(bytes) if self.would_waste(bytes.len(), used) => {
                StateRows::Copied(bytes)
            }
            content => {
                let counters = self.counters.clone();
                counters.tensor_bytes.fetch_add(content.byte_size(), Ordering::Relaxed);
                StateRows::Shared(Arc::new(SharedTensor { content, counters }))
            }
        }
    }

    /// Returns true if too much memory would be unused after adding a tensor of `length` bytes,
    /// `used` of which sequences will use.
    pub(super) fn would_waste(&self, length: usize, used: usize) -> bool {
        let unused = length.saturating_sub(used);
        let rows = self.counters.row_bytes.load(Ordering::Relaxed);
        let tensors = self.counters.tensor_bytes.load(Ordering::Relaxed);
        tensors.saturating_sub(rows).saturating_add(unused) > rows.max(SLACK_BYTES)
    }
}

impl StateRows {
    /// The bytes in `range`, in a form that a sequence may keep.
    pub(super) fn row(&self, range: Range<usize>) -> Buffer {
        let tensor = match self {
            Self::Shared(tensor) if !range.is_empty() => tensor,
            Self::Shared(_) => return Buffer::empty(),
            Self::Copied(bytes) => {
                let row = Bytes::copy_from_slice(bytes.get(range).unwrap_or_default());
                return Buffer::from_bytes(row);
            }
        };
        tensor.counters.row_bytes.fetch_add(range.len(), Ordering::Relaxed);
        let row = SharedRow { tensor: tensor.clone(), range };
        match &tensor.content {
            StateTensor::Host(_) => Buffer::from_bytes(Bytes::from_owner(row)),
            StateTensor::Device(region) => {
                let region = sub_region(region, &row.range);
                Buffer::from_device(DeviceRegion { owner: Arc::new(row), ..region })
            }
        }
    }
}

impl StateTensor {
    fn byte_size(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Device(region) => region.byte_size,
        }
    }
}

impl From<Bytes> for StateTensor {
    fn from(bytes: Bytes) -> Self {
        Self::Host(bytes)
    }
}

impl std::fmt::Debug for StateTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateTensor({} bytes)", self.byte_size())
    }
}

/// The part of a region with these bytes, which must be within the region.
pub(super) fn sub_region(region: &DeviceRegion, range: &Range<usize>) -> DeviceRegion {
    let start = u64::try_from(range.start).unwrap_or(u64::MAX);
    DeviceRegion {
        device: region.device,
        address: region.address.saturating_add(start),
        byte_size: range.len(),
        owner: region.owner.clone(),
    }
}

impl AsRef<[u8]> for SharedRow {
    fn as_ref(&self) -> &[u8] {
        match &self.tensor.content {
            StateTensor::Host(bytes) => bytes.get(self.range.clone()).unwrap_or_default(),
            // A row in GPU memory is identified by its address.
            StateTensor::Device(_) => &[],
        }
    }
}

impl Drop for SharedRow {
    fn drop(&mut self) {
        self.tensor.counters.row_bytes.fetch_sub(self.range.len(), Ordering::Relaxed);
    }
}

impl Drop for SharedTensor {
    fn drop(&mut self) {
        self.counters.tensor_bytes.fetch_sub(self.content.byte_size(), Ordering::Relaxed);
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
        rows.row(index * ROW..(index + 1) * ROW).host_bytes().unwrap().clone()
    }

    fn tensor_and_row_count(memory: &StateMemory) -> (usize, usize) {
        let rows = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed) / ROW;
        (rows(&memory.counters.tensor_bytes), rows(&memory.counters.row_bytes))
    }

    #[test]
    fn rows_are_slices_that_keep_their_tensor_alive() {
        let memory = StateMemory::default();
        let tensor = tensor(2);
        let rows = memory.rows(tensor.clone().into(), tensor.len());
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
        let rows = memory.rows(Bytes::new().into(), 0);
        assert!(rows.row(0..0).is_empty());
    }

    #[test]
    fn states_of_sequences_that_continue_together_are_never_copied() {
        let memory = StateMemory::default();
        let mut states: Vec<Bytes> = Vec::new();
        for _ in 0..10 {
            let rows = memory.rows(tensor(8).into(), 8 * ROW);
            assert!(matches!(rows, StateRows::Shared(_)));
            states = (0..8).map(|index| row(&rows, index)).collect();
        }
        drop(states);
        assert_eq!(tensor_and_row_count(&memory), (0, 0));
    }

    /// Another sequence pauses with each batch. Without a bound, each would keep eight rows alive.
    #[test]
    fn paused_sequences_keep_a_bounded_amount_of_memory() {
        const SEQUENCES: usize = 64;
        const BATCH: usize = 8;
        let memory = StateMemory::default();
        let mut states: Vec<Bytes> = vec![Bytes::new(); SEQUENCES];
        let mut most_used = 0;
        let mut shared = 0;
        for first in 0..SEQUENCES - BATCH {
            let rows = memory.rows(tensor(BATCH).into(), BATCH * ROW);
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
        let rows = memory.rows(tensor.clone().into(), ROW);
        assert!(matches!(rows, StateRows::Copied(_)));
        let state = row(&rows, 3);
        assert_eq!(state, tensor.slice(3 * ROW..4 * ROW));
        assert_ne!(state.as_ptr(), tensor.slice(3 * ROW..).as_ptr());
        assert_eq!(tensor_and_row_count(&memory), (0, 0));
    }

    #[test]
    fn rows_in_a_gpus_memory_are_parts_that_keep_the_tensor_alive() {
        let memory = StateMemory::default();
        let owner = Arc::new(());
        let region =
            DeviceRegion { device: 1, address: 512, byte_size: 2 * ROW, owner: owner.clone() };
        let rows = memory.rows(StateTensor::Device(region), 2 * ROW);
        let row = rows.row(ROW..2 * ROW);
        drop(rows);
        assert_eq!(tensor_and_row_count(&memory), (2, 1));
        let place = row.device_region().unwrap();
        assert_eq!((place.device, place.byte_size), (1, ROW));
        assert_eq!(place.address, 512 + u64::try_from(ROW).unwrap());
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(row);
        assert_eq!((tensor_and_row_count(&memory), Arc::strong_count(&owner)), ((0, 0), 1));
    }
}
