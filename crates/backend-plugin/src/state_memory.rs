//! The memory of states that are written where they are read.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use galatea_stdx::Lock;

use crate::host_buffer::HostBuffer;

/// The memory of such states by address, to recognize it in a sequence's next request.
/// Entries of freed memory are removed when a new one is added.
#[derive(Default)]
pub(crate) struct SharedStateMemory(Lock<BTreeMap<usize, Weak<HostBuffer>>>);

impl SharedStateMemory {
    /// The memory that contains these bytes. If they are not in such memory, a copy:
    /// other readers may share the original bytes.
    pub(crate) fn of(&self, bytes: &[u8]) -> Option<Arc<HostBuffer>> {
        let mut known = self.0.lock("find the memory of a state");
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
