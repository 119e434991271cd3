//! Pointers that are released once.

use std::ptr::NonNull;

use super::error::OrtError;
use super::library::Api;

/// An object of the library's, with the function that releases it.
pub(super) struct Owned<T> {
    raw: NonNull<T>,
    release: unsafe extern "system" fn(*mut T),
}

impl<T> Owned<T> {
    /// Takes an object that the library returned.
    ///
    /// # Safety
    ///
    /// `raw` is null, or belongs to the caller and is released by `release`.
    pub(super) unsafe fn new(
        raw: *mut T,
        release: unsafe extern "system" fn(*mut T),
        what: &str,
    ) -> Result<Self, OrtError> {
        let raw = NonNull::new(raw).ok_or_else(|| OrtError::missing(what))?;
        Ok(Self { raw, release })
    }

    /// Makes an object with a constructor of the library's.
    ///
    /// # Safety
    ///
    /// `create` stores null or an object that `release` releases.
    pub(super) unsafe fn create(
        api: Api,
        release: unsafe extern "system" fn(*mut T),
        what: &str,
        create: impl FnOnce(*mut *mut T) -> ort_sys::OrtStatusPtr,
    ) -> Result<Self, OrtError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the status is the constructor's; the object is whatever it
        // stored, by this function's own contract.
        unsafe {
            api.check(create(&raw mut raw))?;
            Self::new(raw, release, what)
        }
    }

    pub(super) const fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object is ours, and this is the only place that
        // releases it.
        unsafe { (self.release)(self.raw.as_ptr()) };
    }
}
