//! Handles for the library's objects.

use std::ptr::NonNull;

use super::error::OrtError;
use super::table::ApiTable;

/// An object from the library. It is released when the handle is dropped.
pub(super) struct OrtHandle<T> {
    raw: NonNull<T>,
    release: unsafe extern "system" fn(*mut T),
}

impl<T> OrtHandle<T> {
    /// Takes ownership of an object that the library returned.
    ///
    /// # Safety
    ///
    /// `raw` is null, or the caller owns it and `release` releases it.
    pub(super) unsafe fn new(
        raw: *mut T,
        release: unsafe extern "system" fn(*mut T),
        what: &str,
    ) -> Result<Self, OrtError> {
        let raw = NonNull::new(raw).ok_or_else(|| OrtError::missing(what))?;
        Ok(Self { raw, release })
    }

    /// Creates an object with one of the library's constructors.
    ///
    /// # Safety
    ///
    /// `create` stores null or an object that `release` releases.
    pub(super) unsafe fn create(
        api: ApiTable,
        release: unsafe extern "system" fn(*mut T),
        what: &str,
        create: impl FnOnce(*mut *mut T) -> ort_sys::OrtStatusPtr,
    ) -> Result<Self, OrtError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the status and the object come from the constructor, as this function's own
        // contract requires.
        unsafe {
            api.check(create(&raw mut raw))?;
            Self::new(raw, release, what)
        }
    }

    pub(super) const fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for OrtHandle<T> {
    fn drop(&mut self) {
        // SAFETY: the handle owns the object, and only this releases it.
        unsafe { (self.release)(self.raw.as_ptr()) };
    }
}
