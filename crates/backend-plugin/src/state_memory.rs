//! The memory of states that are written where they are read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use crate::host_buffer::HostBuffer;
use crate::lock::lock;

/// The memory of such states by address, to recognize it in a sequence's next request.
/// Entries of freed memory are removed when a new one is added.
#[derive(Default)]
pub(crate) struct SharedStateMemory(Mutex<BTreeMap<usize, Weak<HostBuffer>>>);

impl SharedStateMemory {
    /// The memory that contains these bytes. If they are not in such memory, a copy:
    /// other readers may share the original bytes.
    pub(crate) fn of(&self, bytes: &[u8]) -> Option<Arc<HostBuffer>> {
        let mut known = lock(&self.0);
        let found = known.get(&bytes.as_ptr().addr()).and_then(Weak::upgrade);
        if let Some(found) = found.filter(|found| found.byte_size() == bytes.len()) {
            return Some(found);
        }
        known.retain(|_, memory| memory.strong_count() > 0);
        let copy = Arc::new(HostBuffer::copy_of(bytes)?);
        known.insert(copy.address().addr(), Arc::downgrade(&copy));
        Some(copy)
    }
}
