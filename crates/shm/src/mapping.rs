//! The memory mapping of a region.

use std::any::Any;
use std::io;
use std::ptr::NonNull;

use bytes::Bytes;
use galatea_control::SystemShmRegion;
use galatea_infer::Status;
use galatea_tensor::{Buffer, ForeignMemory, ForeignMemoryError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FileType, Mode, fstat};
use rustix::mm::{MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::shm::OFlags;

use crate::copy::{self, copy};

/// A region's memory mapping, which has a constant address and length.
///
/// The contents change when other processes write to them, and pages disappear when other processes
/// shorten the object.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    byte_size: usize,
    /// The region's name, for error messages.
    name: String,
}

// SAFETY: the mapping isn't tied to a thread, and its fields never change.
#[expect(unsafe_code, reason = "an address is not Send by itself")]
unsafe impl Send for Mapping {}

// SAFETY: the contents are accessed only through copies, which tolerate concurrent writes.
#[expect(unsafe_code, reason = "an address is not Sync by itself")]
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Opens and maps a region's object.
    ///
    /// # Errors
    ///
    /// `Internal` if the object doesn't exist; `InvalidArgument` if it is shorter than the region
    /// or can't be mapped.
    pub(crate) fn open(region: &SystemShmRegion) -> Result<Self, Status> {
        let SystemShmRegion { name, key, offset, byte_size } = region;
        let object = open_object(key)?;
        let refused = |reason: &str| {
            Status::invalid_argument(format!(
                "failed to register shared memory region '{name}': {reason}"
            ))
        };
        let length = object_length(&object, key)?;
        if offset.checked_add(*byte_size).is_none_or(|end| end > length) {
            return Err(refused("invalid args"));
        }
        let byte_size = usize::try_from(*byte_size).map_err(|_| refused("invalid args"))?;
        let failed = |error: io::Error| {
            // Triton's message also lacks a space here.
            refused(&format!("unable to process address space{}", error_text(&error)))
        };
        Self::new(&object, *offset, byte_size, name.clone()).map_err(failed)
    }

    /// Maps a part of an object.
    pub(crate) fn new(
        object: &impl AsFd,
        offset: u64,
        byte_size: usize,
        name: String,
    ) -> io::Result<Self> {
        copy::prepare()?;
        let start = map(object, offset, byte_size)?;
        Ok(Self { start, byte_size, name })
    }

    /// Asks the system to exclude the contents from core dumps.
    pub(crate) fn leave_out_of_dumps(&self) {
        let advice = rustix::mm::Advice::LinuxDontDump;
        // SAFETY: the mapping belongs to this value, and the call doesn't change its contents.
        #[expect(unsafe_code, reason = "the region is known by its address")]
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.byte_size, advice) };
    }

    /// Copies a part of the mapping to a new vector.
    pub(crate) fn copy_out(
        &self,
        offset: usize,
        byte_size: usize,
    ) -> Result<Vec<u8>, ForeignMemoryError> {
        let from = self.part(offset, byte_size).ok_or_else(|| self.lost())?;
        let mut copied = Vec::new();
        copied.try_reserve_exact(byte_size).map_err(|_| ForeignMemoryError::NoMemory(byte_size))?;
        // SAFETY: the vector has capacity for these bytes and isn't borrowed. The part lies within
        // the mapping. After a copy without a fault, all bytes have been written.
        #[expect(unsafe_code, reason = "the region is known by its address")]
        unsafe {
            copy(copied.as_mut_ptr(), from, byte_size).map_err(|_| self.lost())?;
            copied.set_len(byte_size);
        }
        Ok(copied)
    }

    /// Copies bytes into the mapping.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), ForeignMemoryError> {
        let to = self.part(offset, bytes.len()).ok_or_else(|| self.lost())?;
        // SAFETY: the part lies within the mapping, which is never borrowed.
        #[expect(unsafe_code, reason = "the region is known by its address")]
        let copied = unsafe { copy(to, bytes.as_ptr(), bytes.len()) };
        copied.map_err(|_| self.lost())
    }

    /// Returns a part's address, or `None` if the part extends beyond the region.
    pub(crate) fn part(&self, offset: usize, byte_size: usize) -> Option<*mut u8> {
        let end = offset.checked_add(byte_size)?;
        (end <= self.byte_size).then(|| self.start.as_ptr().wrapping_add(offset))
    }

    fn lost(&self) -> ForeignMemoryError {
        ForeignMemoryError::Lost(format!(
            "shared memory region '{}' is not as large any more as it was when it was registered",
            self.name
        ))
    }
}

impl ForeignMemory for Mapping {
    fn read(&self, offset: usize, byte_size: usize) -> Result<Bytes, ForeignMemoryError> {
        self.copy_out(offset, byte_size).map(Bytes::from)
    }

    fn write(&self, offset: usize, source: &Buffer) -> Result<(), ForeignMemoryError> {
        if let Some(bytes) = source.host_bytes() {
            return self.copy_in(offset, bytes);
        }
        let byte_size = source.len();
        let to = self.part(offset, byte_size).ok_or_else(|| self.lost())?;
        let Some(foreign) = source.foreign() else { return Err(ForeignMemoryError::NotReadable) };
        let Some(mapping) = foreign.memory.as_any().downcast_ref::<Self>() else {
            let own = Buffer::from_bytes(foreign.memory.read(foreign.offset, byte_size)?);
            return self.write(offset, &own);
        };
        let from = mapping.part(foreign.offset, byte_size).ok_or_else(|| mapping.lost())?;
        // SAFETY: both parts lie within their mappings, which are never borrowed. If they overlap,
        // the resulting bytes are arbitrary, but they are the client's own.
        #[expect(unsafe_code, reason = "the regions are known by their addresses")]
        let copied = unsafe { copy(to, from, byte_size) };
        copied.map_err(|_| {
            // Either object may have been shortened.
            if mapping.name == self.name { self.lost() } else { either_lost(mapping, self) }
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and every copy borrows the value.
        #[expect(unsafe_code, reason = "unmapping ends the validity of addresses")]
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.byte_size) };
    }
}

fn either_lost(from: &Mapping, to: &Mapping) -> ForeignMemoryError {
    ForeignMemoryError::Lost(format!(
        "shared memory region '{}' or '{}' is not as large any more as it was when it was \
         registered",
        from.name, to.name
    ))
}

/// Opens a shared memory object. A key that contains a slash is invalid. As in the C library, links
/// aren't followed, and opening a pipe doesn't block.
fn open_object(key: &str) -> Result<OwnedFd, Status> {
    let more = (fs::OFlags::NOFOLLOW | fs::OFlags::CLOEXEC | fs::OFlags::NONBLOCK).bits();
    let flags = OFlags::RDWR | OFlags::from_bits_retain(more);
    rustix::shm::open(key, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|_| Status::internal(format!("Unable to open shared memory region: '{key}'")))
}

/// Returns an object's length. The object must be a regular file.
fn object_length(object: &OwnedFd, key: &str) -> Result<u64, Status> {
    let invalid = || Status::internal(format!("Invalid shared memory region: '{key}'"));
    let status = fstat(object).map_err(|_| invalid())?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(invalid());
    }
    u64::try_from(status.st_size).map_err(|_| invalid())
}

fn map(object: &impl AsFd, offset: u64, byte_size: usize) -> io::Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an address that nothing else uses.
    #[expect(unsafe_code, reason = "mapping makes addresses valid")]
    let start =
        unsafe { mmap(std::ptr::null_mut(), byte_size, access, MapFlags::SHARED, object, offset)? };
    NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// The system's message for an error, without the number that the standard library appends.
fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
impl Mapping {
    /// Reads in the way that other architectures do.
    pub(crate) fn read_by_kernel(&self, offset: usize, byte_size: usize) -> Option<Vec<u8>> {
        let from = self.part(offset, byte_size).unwrap();
        let mut copied = vec![0; byte_size];
        // SAFETY: the vector has capacity for these bytes, and the part lies within the mapping.
        #[expect(unsafe_code, reason = "the region is known by its address")]
        let result = unsafe { copy::kernel_copy(copied.as_mut_ptr(), from, byte_size) };
        result.ok().map(|()| copied)
    }

    /// Reads without any protection.
    pub(crate) fn touch(&self) -> u8 {
        // SAFETY: the address lies within the mapping. The read may end the process.
        #[expect(unsafe_code, reason = "the region is known by its address")]
        unsafe {
            self.start.as_ptr().read_volatile()
        }
    }
}
