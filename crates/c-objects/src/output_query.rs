//! Where outputs would go: a question of backends to whoever made a request with C.

use core::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use galatea_abi::{
    TRITONSERVER_MemoryType, TRITONSERVER_ResponseAllocator,
    TRITONSERVER_ResponseAllocatorQueryFn_t,
};
use galatea_infer::Status;

use crate::error;

/// A function of an allocator that may be set at any time, also while requests that
/// will call it are on their way.
#[derive(Debug, Default)]
pub struct Settable<F>(Mutex<F>);

impl<F: Copy> Settable<F> {
    /// Sets it; null is none.
    pub fn set(&self, function: F) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = function;
    }

    /// The function that was set last.
    pub fn get(&self) -> F {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The function that tells where an output would go.
pub type QueryFunction = Settable<TRITONSERVER_ResponseAllocatorQueryFn_t>;

/// The function that is asked, with what it gets. It travels with the request.
#[derive(Debug)]
pub struct OutputQuery {
    function: Arc<QueryFunction>,
    allocator: *mut TRITONSERVER_ResponseAllocator,
    userp: *mut c_void,
}

// SAFETY: who makes one promises that the function can be called from any thread; the
// pointers are only handed to it.
unsafe impl Send for OutputQuery {}
// SAFETY: as above.
unsafe impl Sync for OutputQuery {}

impl OutputQuery {
    /// # Safety
    ///
    /// Whatever function is set must take the allocator and the pointer, from any thread,
    /// as long as this exists.
    #[must_use]
    pub const unsafe fn new(
        function: Arc<QueryFunction>,
        allocator: *mut TRITONSERVER_ResponseAllocator,
        userp: *mut c_void,
    ) -> Self {
        Self { function, allocator, userp }
    }

    /// Asks. `None` if there is no function: that is the caller's right.
    ///
    /// # Safety
    ///
    /// `name` and `byte_size` must be null or valid; the other two are read and written.
    pub unsafe fn ask(
        &self,
        name: *const c_char,
        byte_size: *mut usize,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) -> Option<Result<(), Status>> {
        let function = self.function.get()?;
        let Self { allocator, userp, .. } = *self;
        // SAFETY: the promises of this function's caller and of the object's maker.
        Some(unsafe {
            error::take_c(function(allocator, userp, name, byte_size, memory_type, memory_type_id))
        })
    }
}
