//! Memory for states that are updated in place.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use galatea_stdx::Lock;

use crate::host_buffer::HostBuffer;

/// The minimum capacity for a growable state, because growing from one byte would take many copies.
const GROWABLE_BYTES_MIN: usize = 4096;

/// The memory of such states, keyed by address so that it is recognized in the sequence's next
/// request. Entries for freed memory are removed when a new entry is added.
#[derive(Default)]
pub(crate) struct SharedStateMemory(Lock<BTreeMap<usize, Weak<HostBuffer>>>);

impl SharedStateMemory {
    /// Returns the memory that contains these bytes. If the bytes are elsewhere, copies them to new
    /// memory, because other readers may share them.
    pub(crate) fn memory_of(&self, bytes: &[u8]) -> Option<Arc<HostBuffer>> {
        let found = self.find(bytes).filter(|found| found.byte_size() == bytes.len());
        found.or_else(|| self.keep(HostBuffer::copy_of(bytes)?))
    }

    /// Like [`Self::memory_of`], but for a growable state, whose memory has spare capacity.
    pub(crate) fn growable(&self, bytes: &[u8]) -> Option<Arc<HostBuffer>> {
        let found = self.find(bytes).filter(|found| found.byte_size() >= bytes.len());
        found.or_else(|| self.keep(HostBuffer::copy_with_room(bytes, room_for(bytes.len()))?))
    }

    /// Returns larger memory that begins with the existing contents. Because the capacity doubles,
    /// each byte of a growing state is copied about once on average, regardless of the number of
    /// steps.
    pub(crate) fn grow(
        &self,
        memory: &HostBuffer,
        used: usize,
        byte_size: usize,
    ) -> Option<Arc<HostBuffer>> {
        let larger = HostBuffer::copy_with_room(memory.first(used), room_for(byte_size));
        // If there isn't enough memory to double the capacity, a smaller increase suffices.
        self.keep(larger.or_else(|| HostBuffer::copy_with_room(memory.first(used), byte_size))?)
    }

    fn find(&self, bytes: &[u8]) -> Option<Arc<HostBuffer>> {
        let known = self.0.lock("find the memory of a state");
        known.get(&bytes.as_ptr().addr()).and_then(Weak::upgrade)
    }

    fn keep(&self, memory: HostBuffer) -> Option<Arc<HostBuffer>> {
        let memory = Arc::new(memory);
        let mut known = self.0.lock("keep the memory of a state");
        known.retain(|_, memory| memory.strong_count() > 0);
        known.insert(memory.address().addr(), Arc::downgrade(&memory));
        Some(memory)
    }
}

fn room_for(byte_size: usize) -> usize {
    byte_size.saturating_mul(2).max(GROWABLE_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // row: IMP-09
    fn a_state_that_grows_is_seldom_copied() {
        let states = SharedStateMemory::default();
        let mut memory = states.growable(&[7; 10]).unwrap();
        let (mut copies, mut used) = (0, 10);
        for byte_size in (1000..1_000_000).step_by(1000) {
            let same = states.growable(memory.first(used)).unwrap();
            assert!(Arc::ptr_eq(&same, &memory), "what was kept is recognized");
            if memory.byte_size() < byte_size {
                memory = states.grow(&memory, used, byte_size).unwrap();
                copies += 1;
            }
            used = byte_size;
            assert_eq!(memory.first(12), [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0]);
        }
        assert!((1..10).contains(&copies), "{copies} copies");
        assert!(states.grow(&memory, used, usize::MAX).is_none());
    }

    #[test]
    fn a_fixed_state_has_memory_of_its_size() {
        let states = SharedStateMemory::default();
        let bytes = [1, 2, 3];
        let first = states.memory_of(&bytes).unwrap();
        assert!(!std::ptr::eq(first.first(3), &raw const bytes[..]) && first.byte_size() == 3);
        assert!(Arc::ptr_eq(&states.memory_of(first.first(3)).unwrap(), &first));
        assert!(!Arc::ptr_eq(&states.memory_of(first.first(2)).unwrap(), &first));
    }
}
