//! Response caches: tritoncache.h.

use core::ffi::{c_char, c_void};

use crate::functions;
use crate::opaque::*;

functions! {
    /// The functions that the server provides.
    PROVIDED:
    TRITONCACHE_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONCACHE_CacheEntryBufferCount(entry: *mut TRITONCACHE_CacheEntry, count: *mut usize) -> *mut TRITONSERVER_Error;
    TRITONCACHE_CacheEntryAddBuffer(entry: *mut TRITONCACHE_CacheEntry, base: *mut c_void, buffer_attributes: *mut TRITONSERVER_BufferAttributes) -> *mut TRITONSERVER_Error;
    TRITONCACHE_CacheEntryGetBuffer(entry: *mut TRITONCACHE_CacheEntry, index: usize, base: *mut *mut c_void, buffer_attributes: *mut TRITONSERVER_BufferAttributes) -> *mut TRITONSERVER_Error;
    TRITONCACHE_CacheEntrySetBuffer(entry: *mut TRITONCACHE_CacheEntry, index: usize, new_base: *mut c_void, buffer_attributes: *mut TRITONSERVER_BufferAttributes) -> *mut TRITONSERVER_Error;
    TRITONCACHE_Copy(allocator: *mut TRITONCACHE_Allocator, entry: *mut TRITONCACHE_CacheEntry) -> *mut TRITONSERVER_Error;
}

functions! {
    /// The functions that a plug-in provides.
    PLUGIN:
    TRITONCACHE_CacheInitialize(cache: *mut *mut TRITONCACHE_Cache, config: *const c_char) -> *mut TRITONSERVER_Error;
    TRITONCACHE_CacheFinalize(cache: *mut TRITONCACHE_Cache) -> *mut TRITONSERVER_Error;
    TRITONCACHE_CacheInsert(cache: *mut TRITONCACHE_Cache, key: *const c_char, entry: *mut TRITONCACHE_CacheEntry, allocator: *mut TRITONCACHE_Allocator) -> *mut TRITONSERVER_Error;
    TRITONCACHE_CacheLookup(cache: *mut TRITONCACHE_Cache, key: *const c_char, entry: *mut TRITONCACHE_CacheEntry, allocator: *mut TRITONCACHE_Allocator) -> *mut TRITONSERVER_Error;
}
