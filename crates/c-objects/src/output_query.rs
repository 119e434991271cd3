//! Queries of where a C API caller would place an output, on behalf of a backend.

use core::ffi::{c_char, c_void};
use std::sync::Arc;

use galatea_abi::{
    TRITONSERVER_MemoryType, TRITONSERVER_ResponseAllocator,
    TRITONSERVER_ResponseAllocatorQueryFn_t,
};
use galatea_infer::Status;
use galatea_stdx::Lock;

use crate::error;

/// An allocator callback. It may be set at any time, even while requests that will call it are in
/// flight.
#[derive(Debug, Default)]
pub struct CallbackCell<F>(Lock<F>);

impl<F: Copy> CallbackCell<F> {
    /// Sets the callback. Null removes it.
    pub fn set(&self, callback: F) {
        *self.0.lock("set the callback") = callback;
    }

    /// Returns the most recently set callback.
    pub fn get(&self) -> F {
        *self.0.lock("read the callback")
    }
}

/// A callback that reports where an output would be placed.
pub type OutputQueryCallback = CallbackCell<TRITONSERVER_ResponseAllocatorQueryFn_t>;

/// A query callback and its arguments, which accompany the request.
#[derive(Debug)]
pub struct OutputBufferQuery {
    callback: Arc<OutputQueryCallback>,
    allocator: *mut TRITONSERVER_ResponseAllocator,
    userp: *mut c_void,
}

// SAFETY: the creator guarantees that the callback can be called on any thread. The pointers are
// only passed to it.
unsafe impl Send for OutputBufferQuery {}
// SAFETY: as above.
unsafe impl Sync for OutputBufferQuery {}

impl OutputBufferQuery {
    /// # Safety
    ///
    /// Every callback that is set must accept the allocator and the pointer on any thread, as long
    /// as this value exists.
    #[must_use]
    pub const unsafe fn new(
        callback: Arc<OutputQueryCallback>,
        allocator: *mut TRITONSERVER_ResponseAllocator,
        userp: *mut c_void,
    ) -> Self {
        Self { callback, allocator, userp }
    }

    /// Calls the callback. Returns `None` if no callback is set, which is allowed.
    ///
    /// # Safety
    ///
    /// `name` and `byte_size` must be null or valid. The other two pointers must be valid for reads
    /// and writes.
    pub unsafe fn call(
        &self,
        name: *const c_char,
        byte_size: *mut usize,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) -> Option<Result<(), Status>> {
        let callback = self.callback.get()?;
        let Self { allocator, userp, .. } = *self;
        // SAFETY: guaranteed by this function's caller and the value's creator.
        Some(unsafe {
            error::take_c_error(callback(
                allocator,
                userp,
                name,
                byte_size,
                memory_type,
                memory_type_id,
            ))
        })
    }
}
