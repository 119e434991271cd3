//! Where outputs would go: a question of backends to whoever made a request with C.

use core::ffi::{c_char, c_void};

use galatea_abi::{
    TRITONSERVER_MemoryType, TRITONSERVER_ResponseAllocator,
    TRITONSERVER_ResponseAllocatorQueryFn_t,
};
use galatea_infer::Status;

use crate::error;

/// The function that is asked, with what it gets. It travels with the request.
#[derive(Debug)]
pub struct OutputQuery {
    function: TRITONSERVER_ResponseAllocatorQueryFn_t,
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
    /// The function must take the allocator and the pointer, from any thread, as long as
    /// this exists.
    #[must_use]
    pub const unsafe fn new(
        function: TRITONSERVER_ResponseAllocatorQueryFn_t,
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
        let function = self.function?;
        let Self { allocator, userp, .. } = *self;
        // SAFETY: the promises of this function's caller and of the object's maker.
        Some(unsafe {
            error::take_c(function(allocator, userp, name, byte_size, memory_type, memory_type_id))
        })
    }
}
