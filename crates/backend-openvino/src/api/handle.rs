//! Handles for the library's objects.

use std::ptr::NonNull;

use galatea_infer::Status;

use super::functions::OvStatus;
use super::library::Api;

/// An object of the library, which is freed when the handle is dropped.
pub(super) struct Handle<T> {
    raw: NonNull<T>,
    free: unsafe extern "C" fn(*mut T),
}

impl<T> Handle<T> {
    /// Creates an object with one of the library's constructors; `doing` describes the call in an
    /// error.
    ///
    /// # Safety
    ///
    /// `create` stores null or an object that `free` can free.
    pub(super) unsafe fn create(
        api: &Api,
        free: unsafe extern "C" fn(*mut T),
        doing: &str,
        create: impl FnOnce(*mut *mut T) -> OvStatus,
    ) -> Result<Self, Status> {
        let mut raw = std::ptr::null_mut();
        api.check(create(&raw mut raw), doing)?;
        Self::of(raw, free, doing)
    }

    /// Like `create`, but for a load, which repeats a failed call.
    ///
    /// # Safety
    ///
    /// `create` stores null or an object that `free` can free; it stores nothing if it fails.
    pub(super) unsafe fn load(
        api: &Api,
        free: unsafe extern "C" fn(*mut T),
        doing: &str,
        mut create: impl FnMut(*mut *mut T) -> OvStatus,
    ) -> Result<Self, Status> {
        let mut raw = std::ptr::null_mut();
        api.load(doing, || create(&raw mut raw))?;
        Self::of(raw, free, doing)
    }

    fn of(raw: *mut T, free: unsafe extern "C" fn(*mut T), doing: &str) -> Result<Self, Status> {
        let raw = NonNull::new(raw)
            .ok_or_else(|| Status::internal(format!("openvino error in {doing} : no object")))?;
        Ok(Self { raw, free })
    }

    pub(super) const fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: the handle owns the object, and only this frees it.
        unsafe { (self.free)(self.raw.as_ptr()) };
    }
}
