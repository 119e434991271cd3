//! The objects that a cache receives with each call: an entry, which is a list of buffers, and an
//! allocator, which copies data when the cache asks for it.

use core::ffi::c_void;

use bytes::Bytes;
use galatea_abi::{
    TRITONCACHE_Allocator, TRITONCACHE_CacheEntry, TRITONSERVER_BufferAttributes,
    TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_CPU_PINNED,
};
use galatea_backend::CacheKey;
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::{handle, pointer};
use galatea_infer::{InferenceResponse, Status};
use galatea_stdx::Lock;

use super::format::{EncodedResponse, decode};

/// The buffers that the cache and the server exchange.
#[derive(Default)]
pub(super) struct CacheEntryObject {
    buffers: Lock<Vec<EntryBuffer>>,
}
galatea_c_objects::object!(CacheEntryObject as TRITONCACHE_CacheEntry, kind 35);

/// A region of memory that belongs to the cache.
#[derive(Clone, Debug)]
struct EntryBuffer {
    /// Null until the cache sets it.
    base: *mut c_void,
    attributes: BufferAttributesObject,
}

// SAFETY: the address isn't dereferenced until a copy is made, on the thread that requests it.
unsafe impl Send for EntryBuffer {}

impl CacheEntryObject {
    /// Creates an entry with one buffer, for which the cache must provide memory.
    pub(super) fn requesting(byte_size: usize) -> Self {
        let attributes = BufferAttributesObject { byte_size, ..Default::default() };
        let requested = EntryBuffer { base: core::ptr::null_mut(), attributes };
        Self { buffers: Lock::new(vec![requested]) }
    }

    /// Calls `call` with the buffers. The closure must not fail partway.
    fn with<T>(&self, call: impl FnOnce(&mut Vec<EntryBuffer>) -> T) -> T {
        call(&mut self.buffers.lock("use the buffers"))
    }

    /// The entry's only buffer. A response takes exactly one buffer.
    fn single_buffer(&self) -> Result<EntryBuffer, Status> {
        self.with(|buffers| match buffers.as_slice() {
            [only] => Ok(only.clone()),
            others => Err(Status::invalid_argument(format!(
                "the entry has {} buffers, and a response takes 1",
                others.len()
            ))),
        })
    }
}

/// A copy that the cache requests.
pub(super) enum AllocatorObject {
    /// Copies from the server to the cache's buffer.
    Insertion(EncodedResponse),
    /// Copies from the cache's buffer to the server.
    Lookup {
        /// The key that the response must have been stored under.
        key: CacheKey,
        /// The response that has been copied.
        found: Lock<Option<InferenceResponse>>,
    },
}
galatea_c_objects::object!(AllocatorObject as TRITONCACHE_Allocator, kind 32);

impl AllocatorObject {
    /// # Safety
    ///
    /// The buffer must be null or as large as its attributes state. During the call, nothing else
    /// may modify it or read data that is being written to it.
    unsafe fn copy(&self, buffer: &EntryBuffer) -> Result<(), Status> {
        let byte_size = buffer.attributes.byte_size;
        if buffer.base.is_null() {
            return Err(Status::invalid_argument("the entry's buffer is null"));
        }
        match self {
            Self::Insertion(encoded) => {
                if byte_size != encoded.byte_size() {
                    return Err(Status::invalid_argument(format!(
                        "the entry's buffer has {byte_size} bytes, and the response takes {}",
                        encoded.byte_size()
                    )));
                }
                let mut target = buffer.base.cast::<u8>();
                encoded.write(|part| {
                    // SAFETY: the parts together are as long as the buffer, and the buffer can't
                    // overlap the server's memory.
                    unsafe {
                        core::ptr::copy_nonoverlapping(part.as_ptr(), target, part.len());
                        target = target.add(part.len());
                    }
                });
                Ok(())
            }
            Self::Lookup { key, found } => {
                // SAFETY: the caller guarantees `byte_size` bytes.
                let entry = unsafe { copy_bytes(buffer.base.cast(), byte_size) }?;
                let response = decode(key, &entry).map_err(|reason| {
                    Status::internal(format!("the entry can't be used: {reason}"))
                })?;
                *found.lock("store the found response") = Some(response);
                Ok(())
            }
        }
    }
}

/// # Safety
///
/// The pointer must not be null, and must be valid for reads of `byte_size` bytes.
unsafe fn copy_bytes(base: *const u8, byte_size: usize) -> Result<Bytes, Status> {
    let impossible =
        || Status::internal(format!("the entry can't be used: it has {byte_size} bytes"));
    if isize::try_from(byte_size).is_err() {
        return Err(impossible());
    }
    let mut copy = Vec::new();
    // The size comes from the cache. An absurdly large size must not end the process.
    copy.try_reserve_exact(byte_size).map_err(|_| impossible())?;
    // SAFETY: the caller guarantees `byte_size` bytes, which fit in the address space.
    copy.extend_from_slice(unsafe { core::slice::from_raw_parts(base, byte_size) });
    Ok(Bytes::from(copy))
}

/// Returns a buffer's attributes after checking that they describe CPU-readable memory.
///
/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn checked_attributes(
    attributes: *mut TRITONSERVER_BufferAttributes,
) -> Result<BufferAttributesObject, Status> {
    // SAFETY: guaranteed by the caller.
    let attributes: &BufferAttributesObject =
        unsafe { handle::borrow(attributes, "buffer_attributes") }?;
    match attributes.memory_type {
        TRITONSERVER_MEMORY_CPU | TRITONSERVER_MEMORY_CPU_PINNED => Ok(attributes.clone()),
        _ => Err(Status::invalid_argument("only buffers in CPU memory can be cached")),
    }
}

fn out_of_range(index: usize, count: usize) -> Status {
    Status::invalid_argument(format!("there is no buffer {index}: the entry has {count}"))
}

functions! {
    use cache;

    /// Returns the version of this interface.
    fn TRITONCACHE_ApiVersion(major: *mut u32, minor: *mut u32) {
        pointer::write(major, galatea_abi::CACHE_API_VERSION.0, "major")?;
        pointer::write(minor, galatea_abi::CACHE_API_VERSION.1, "minor")
    }

    /// Returns the number of buffers in an entry.
    fn TRITONCACHE_CacheEntryBufferCount(entry: *mut TRITONCACHE_CacheEntry, count: *mut usize) {
        let entry: &CacheEntryObject = handle::borrow(entry, "entry")?;
        pointer::write(count, entry.with(|buffers| buffers.len()), "count")
    }

    /// Adds a buffer. The server reads its contents only during the copy.
    fn TRITONCACHE_CacheEntryAddBuffer(
        entry: *mut TRITONCACHE_CacheEntry,
        base: *mut c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) {
        let entry: &CacheEntryObject = handle::borrow(entry, "entry")?;
        let attributes = checked_attributes(buffer_attributes)?;
        if base.is_null() {
            return Err(Status::invalid_argument("base must not be null"));
        }
        if attributes.byte_size == 0 {
            return Err(Status::invalid_argument("the buffer's size is 0"));
        }
        entry.with(|buffers| buffers.push(EntryBuffer { base, attributes }));
        Ok(())
    }

    /// Returns a buffer and its attributes.
    fn TRITONCACHE_CacheEntryGetBuffer(
        entry: *mut TRITONCACHE_CacheEntry,
        index: usize,
        base: *mut *mut c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) {
        let entry: &CacheEntryObject = handle::borrow(entry, "entry")?;
        let found = entry
            .with(|buffers| buffers.get(index).cloned().ok_or(buffers.len()))
            .map_err(|count| out_of_range(index, count))?;
        let attributes: &mut BufferAttributesObject =
            handle::borrow_mut(buffer_attributes, "buffer_attributes")?;
        pointer::write(base, found.base, "base")?;
        *attributes = found.attributes;
        Ok(())
    }

    /// Replaces a buffer. The server accesses its contents only during the copy.
    fn TRITONCACHE_CacheEntrySetBuffer(
        entry: *mut TRITONCACHE_CacheEntry,
        index: usize,
        new_base: *mut c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) {
        let entry: &CacheEntryObject = handle::borrow(entry, "entry")?;
        let attributes = match buffer_attributes.is_null() {
            true => None,
            false => Some(checked_attributes(buffer_attributes)?),
        };
        entry.with(|buffers| {
            let count = buffers.len();
            let buffer = buffers.get_mut(index).ok_or_else(|| out_of_range(index, count))?;
            buffer.base = new_base;
            if let Some(attributes) = attributes {
                buffer.attributes = attributes;
            }
            Ok(())
        })
    }

    /// Copies data between the entry's buffer and the server.
    fn TRITONCACHE_Copy(
        allocator: *mut TRITONCACHE_Allocator,
        entry: *mut TRITONCACHE_CacheEntry,
    ) {
        let allocator: &AllocatorObject = handle::borrow(allocator, "allocator")?;
        let entry: &CacheEntryObject = handle::borrow(entry, "entry")?;
        allocator.copy(&entry.single_buffer()?)
    }
}
