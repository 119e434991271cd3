//! Memory that the server shares with one of its own processes.

use std::io;
use std::sync::Arc;

use galatea_tensor::ForeignError;
use rustix::fd::AsFd;

use crate::mapping::Mapping;

/// The beginning of a memory object that another process has mapped, too.
///
/// That process may write to the memory at any moment, so it is only copied, like clients' regions.
/// Clones share a mapping.
#[derive(Clone)]
pub struct SharedMemory {
    mapping: Arc<Mapping>,
}

impl SharedMemory {
    /// Maps the first bytes of an object that is at least this long. `name` is for errors.
    ///
    /// # Errors
    ///
    /// If the system refuses, for example because address space is limited.
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
    /// If the part no longer exists, or there is no memory for the copy.
    pub fn read(&self, offset: usize, byte_size: usize) -> Result<Vec<u8>, ForeignError> {
        self.mapping.copy_out(offset, byte_size)
    }

    /// Copies bytes into the memory.
    ///
    /// # Errors
    ///
    /// If the part no longer exists.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), ForeignError> {
        self.mapping.copy_in(offset, bytes)
    }
}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedMemory")
    }
}
