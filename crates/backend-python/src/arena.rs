//! Memory that the server and a worker share, without a name in the file system.
//!
//! The worker maps the memory and reads tensors in place. The server copies the data that it
//! writes, and it copies data before examining it, so nothing that a worker does to the memory can
//! crash the server or change data after it has been checked: see [`ProcessSharedMemory`]. The part beyond
//! the server's mapping is written and read with system calls, which takes three times as long. The
//! memory is sparse and sealed against shrinking.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use galatea_infer::Status;
use galatea_shm::ProcessSharedMemory;
use galatea_stdx::Lock;
use galatea_tensor::{Buffer, ForeignMemoryError};
use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::blocks::Blocks;

/// The length of an unlimited arena. Only written parts take up memory.
pub(crate) const ARENA_BYTES: u64 = 64 << 30;

/// The number of bytes that are mapped at the beginning of an arena, which is used first. Reading a
/// hole there allocates memory, so this also limits how much memory a worker can make the server
/// allocate.
const MAPPED_BYTES_MAX: u64 = 1 << 30;

/// Tensors longer than this are read only if that much memory has been written.
const CHECKED_BYTES_MIN: u64 = 1 << 20;

/// Memory that is shared in one direction.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: OwnedFd,
    /// `None` if the system doesn't allow a mapping.
    mapped: Option<ProcessSharedMemory>,
    length: u64,
    blocks: Lock<ArenaBlocks>,
}

#[derive(Debug)]
struct ArenaBlocks {
    blocks: Blocks,
    /// True if unused parts may still occupy memory.
    is_dirty: bool,
    /// The memory that blocks describe, keyed by offset. It stays alive while the blocks are in
    /// use.
    described: BTreeMap<u64, Buffer>,
}

impl Arena {
    /// Creates an empty arena of this length, which must be a multiple of the page size.
    pub(crate) fn new(name: &str, length: u64) -> Result<Self, Status> {
        let made = || -> Result<OwnedFd, Errno> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memory = rustix::fs::memfd_create(name, flags)?;
            rustix::fs::ftruncate(&memory, length)?;
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&memory, seals)?;
            Ok(memory)
        };
        let memory = made().map_err(|error| failed("make shared memory", error))?;
        let mapped = usize::try_from(length.min(MAPPED_BYTES_MAX)).ok();
        let mapped = mapped.and_then(|length| ProcessSharedMemory::map(&memory, length, name).ok());
        let blocks = ArenaBlocks {
            blocks: Blocks::new(length),
            is_dirty: false,
            described: BTreeMap::new(),
        };
        Ok(Self { memory, mapped, length, blocks: Lock::new(blocks) })
    }

    /// Copies bytes into a new block and returns its offset.
    pub(crate) fn store(&self, bytes: &[u8]) -> Result<u64, Status> {
        let length = galatea_stdx::len64(bytes.len());
        let offset =
            self.blocks.lock("take a block").blocks.allocate(length).ok_or_else(|| {
                Status::unavailable("the shared memory of the Python model is full")
            })?;
        self.write(bytes, offset).inspect_err(|_| {
            self.release(offset);
        })?;
        Ok(offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Status> {
        if let Some((mapped, offset)) = self.mapped(offset, bytes.len()) {
            return mapped.write(offset, bytes).map_err(|error| lost(&error));
        }
        write_all(&self.memory, bytes, offset).map_err(|error| failed("write shared memory", error))
    }

    /// The mapping that covers this part, if any, and the part's offset in the mapping.
    fn mapped(&self, offset: u64, byte_size: usize) -> Option<(&ProcessSharedMemory, usize)> {
        let (mapped, offset) = (self.mapped.as_ref()?, usize::try_from(offset).ok()?);
        mapped.contains(offset, byte_size).then_some((mapped, offset))
    }

    /// Keeps the memory that the block at this offset describes until the block is released.
    pub(crate) fn keep_until_release(&self, offset: u64, memory: Buffer) {
        self.blocks.lock("keep what a block describes").described.insert(offset, memory);
    }

    /// The memory that the block at this offset describes.
    pub(crate) fn described(&self, offset: u64) -> Option<Buffer> {
        self.blocks.lock("find what a block describes").described.get(&offset).cloned()
    }

    /// Releases a block. Returns false if no block begins there.
    pub(crate) fn release(&self, offset: u64) -> bool {
        let mut blocks = self.blocks.lock("give a block back");
        blocks.is_dirty = true;
        let described = blocks.described.remove(&offset);
        let was_used = blocks.blocks.release(offset);
        drop(blocks);
        // The driver may now free the memory, which takes time.
        drop(described);
        was_used
    }

    /// Copies part of a block that is in use; `None` if the part is not inside such a block.
    pub(crate) fn load_used(&self, offset: u64, length: u64) -> Result<Option<Vec<u8>>, Status> {
        if !self.blocks.lock("find a block").blocks.contains(offset, length) {
            return Ok(None);
        }
        self.load(offset, length)
    }

    /// Copies part of the arena; `None` if the part is out of bounds or has not been written.
    pub(crate) fn load(&self, offset: u64, length: u64) -> Result<Option<Vec<u8>>, Status> {
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        if !is_inside || (length > CHECKED_BYTES_MIN && length > self.memory_bytes()?) {
            return Ok(None);
        }
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        if let Some((mapped, offset)) = self.mapped(offset, length) {
            return mapped.copy_out(offset, length).map(Some).map_err(|error| lost(&error));
        }
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(length).is_err() {
            return Err(Status::unavailable("there is no memory for an output"));
        }
        read_all(&self.memory, &mut bytes, length, offset)
            .map_err(|error| failed("read shared memory", error))?;
        Ok(Some(bytes))
    }

    /// The memory that the arena occupies, in bytes.
    pub(crate) fn memory_bytes(&self) -> Result<u64, Status> {
        let stat = rustix::fs::fstat(&self.memory);
        let stat = stat.map_err(|error| failed("measure shared memory", error))?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512))
    }

    /// Returns the memory of unused parts to the system.
    pub(crate) fn trim(&self) {
        let mut blocks = self.blocks.lock("trim the shared memory");
        if !std::mem::take(&mut blocks.is_dirty) {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for (offset, length) in blocks.blocks.free_parts() {
            // Memory that can't be returned is simply reused.
            let _ = rustix::fs::fallocate(&self.memory, flags, offset, length);
        }
    }
}

impl AsFd for Arena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

fn lost(error: &ForeignMemoryError) -> Status {
    Status::unavailable(format!("failed to copy shared memory: {error}"))
}

fn failed(what: &str, error: Errno) -> Status {
    Status::unavailable(format!("failed to {what}: {}", io::Error::from(error)))
}

fn write_all(memory: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(memory, bytes, offset) {
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                offset = offset.saturating_add(galatea_stdx::len64(count));
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_all(
    memory: &OwnedFd,
    bytes: &mut Vec<u8>,
    length: usize,
    offset: u64,
) -> Result<(), Errno> {
    while bytes.len() < length {
        let position = offset.saturating_add(galatea_stdx::len64(bytes.len()));
        match rustix::io::pread(memory, spare_capacity(bytes), position) {
            Ok(0) => return Err(Errno::IO),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    // The vector may have more capacity than requested.
    bytes.truncate(length);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BLOCK_BYTES;

    #[test]
    fn what_is_stored_can_be_loaded() {
        let arena = Arena::new("test", ARENA_BYTES).unwrap();
        let long = vec![7; (2 << 20) + 3];
        let first = arena.store(b"abc").unwrap();
        let second = arena.store(&long).unwrap();
        assert_eq!(arena.load_used(first, 3).unwrap().unwrap(), b"abc");
        assert_eq!(arena.load_used(second, galatea_stdx::len64(long.len())).unwrap(), Some(long));
        assert_eq!(arena.load_used(first, 5000).unwrap(), None);
        assert!(arena.release(first) && !arena.release(first));
        assert_eq!(arena.load_used(first, 3).unwrap(), None);
    }

    #[test]
    fn what_is_not_mapped_goes_by_system_calls() {
        let arena = Arena::new("test", ARENA_BYTES).unwrap();
        let first = arena.blocks.lock("test").blocks.allocate(MAPPED_BYTES_MAX - BLOCK_BYTES);
        assert_eq!(first, Some(0));
        let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
        let offset = arena.store(&bytes).unwrap();
        assert_eq!(offset, MAPPED_BYTES_MAX - BLOCK_BYTES, "it begins where the mapping ends");
        assert!(arena.mapped(offset, 4096).is_some() && arena.mapped(offset, 4097).is_none());
        assert_eq!(arena.load(offset, 5000).unwrap().unwrap(), bytes);
        assert_eq!(arena.load(offset, 4096).unwrap().unwrap(), bytes[..4096]);
        let unmapped = Arena { mapped: None, ..Arena::new("test", ARENA_BYTES).unwrap() };
        let offset = unmapped.store(&bytes).unwrap();
        assert_eq!(unmapped.load_used(offset, 5000).unwrap().unwrap(), bytes);
    }

    #[test]
    fn what_was_not_written_takes_no_memory() {
        let arena = Arena::new("test", ARENA_BYTES).unwrap();
        assert_eq!(arena.load(0, ARENA_BYTES).unwrap(), None);
        assert_eq!(arena.load(ARENA_BYTES, 1).unwrap(), None);
        assert_eq!(arena.load(u64::MAX, 2).unwrap(), None);
        assert_eq!(arena.load(0, 4).unwrap(), Some(vec![0; 4]));
    }

    #[test]
    fn memory_goes_back() {
        let arena = Arena::new("test", ARENA_BYTES).unwrap();
        let kept = arena.store(&[1; 10]).unwrap();
        let offset = arena.store(&vec![1; 8 << 20]).unwrap();
        assert!(arena.memory_bytes().unwrap() >= 8 << 20);
        arena.trim();
        assert!(arena.memory_bytes().unwrap() >= 8 << 20, "it is in use");
        assert!(arena.release(offset));
        arena.trim();
        assert!(arena.memory_bytes().unwrap() < 1 << 20);
        assert_eq!(arena.load_used(kept, 10).unwrap().unwrap(), [1; 10]);
    }
}
