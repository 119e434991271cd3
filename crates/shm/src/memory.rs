//! Memory that the server shares with one of its own processes.

use std::io;
use std::sync::Arc;

use galatea_tensor::ForeignMemoryError;
use rustix::fd::AsFd;

use crate::mapping::Mapping;

/// The leading part of a memory object that another process has also mapped.
///
/// That process may write to the memory at any time, so the memory is accessed only through copies,
/// like clients' regions. Clones share the mapping.
#[derive(Clone)]
pub struct ProcessSharedMemory {
    mapping: Arc<Mapping>,
}

impl ProcessSharedMemory {
    /// Maps the first bytes of an object that is at least this long. `name` is used in error
    /// messages.
    ///
    /// # Errors
    ///
    /// Returned if the system refuses, for example because the address space is limited.
    pub fn map(object: &impl AsFd, byte_size: usize, name: &str) -> io::Result<Self> {
        let mapping = Mapping::new(object, 0, byte_size, name.to_owned())?;
        mapping.leave_out_of_dumps();
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// Returns true if this part is mapped.
    #[must_use]
    pub fn contains(&self, offset: usize, byte_size: usize) -> bool {
        self.mapping.part(offset, byte_size).is_some()
    }

    /// Copies a part of the memory.
    ///
    /// # Errors
    ///
    /// Returned if the part no longer exists or there isn't enough memory for the copy.
    pub fn copy_out(&self, offset: usize, byte_size: usize) -> Result<Vec<u8>, ForeignMemoryError> {
        self.mapping.copy_out(offset, byte_size)
    }

    /// Copies bytes into the memory.
    ///
    /// # Errors
    ///
    /// Returned if the part no longer exists.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), ForeignMemoryError> {
        self.mapping.copy_in(offset, bytes)
    }
}

impl std::fmt::Debug for ProcessSharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedMemory")
    }
}
