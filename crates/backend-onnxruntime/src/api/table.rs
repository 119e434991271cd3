//! The library's function table.

use ort_sys::{OrtAllocator, OrtApi, OrtErrorCode, OrtStatus, OrtStatusPtr};

use super::error::{OrtError, text};

/// The library's function table.
#[derive(Copy, Clone)]
pub(super) struct ApiTable(&'static OrtApi);

impl ApiTable {
    pub(super) const fn new(table: &'static OrtApi) -> Self {
        Self(table)
    }

    pub(super) const fn table(self) -> &'static OrtApi {
        self.0
    }

    /// The allocator for CPU memory, which belongs to the library.
    pub(super) fn default_allocator(self) -> Result<*mut OrtAllocator, OrtError> {
        let mut allocator = std::ptr::null_mut();
        // SAFETY: the out pointer is valid; the library keeps ownership of the allocator.
        unsafe { self.check((self.0.GetAllocatorWithDefaultOptions)(&raw mut allocator))? };
        if allocator.is_null() { Err(OrtError::missing("allocator")) } else { Ok(allocator) }
    }

    /// Converts a returned status to a result and frees the status.
    ///
    /// # Safety
    ///
    /// `status` was returned by a function from this table and has not been freed yet.
    pub(super) unsafe fn check(self, status: OrtStatusPtr) -> Result<(), OrtError> {
        type GetCode = unsafe extern "system" fn(*const OrtStatus) -> OrtErrorCode;
        type GetNumber = unsafe extern "system" fn(*const OrtStatus) -> i32;
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: the enumeration is represented as an i32, so the signatures are compatible, and
        // any returned number is a valid i32.
        let get_error_code =
            unsafe { std::mem::transmute::<GetCode, GetNumber>(self.table().GetErrorCode) };
        // SAFETY: the status is alive until it is released below, and it owns the message.
        unsafe {
            let code = get_error_code(status.0);
            let message = text((self.table().GetErrorMessage)(status.0));
            (self.table().ReleaseStatus)(status.0);
            Err(OrtError::new(code, message))
        }
    }
}
