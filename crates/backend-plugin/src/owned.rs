//! Objects that this crate owns and C can refer to.

use galatea_c_objects::handle::{self, CObject};

/// An object at an address. Dropping the value releases the object.
pub(crate) struct Owned<T: CObject>(*mut T::Opaque);

// SAFETY: the address isn't dereferenced here, and the object behind it moves between threads only
// if it is `Send`.
unsafe impl<T: CObject + Send> Send for Owned<T> {}
// SAFETY: as above, for shared access to the object.
unsafe impl<T: CObject + Send + Sync> Sync for Owned<T> {}

impl<T: CObject> Owned<T> {
    pub(crate) fn new(object: T) -> Self {
        Self(handle::into_raw(object))
    }

    /// The address to pass to C.
    pub(crate) const fn address(&self) -> *mut T::Opaque {
        self.0
    }

    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: the address came from `into_raw`, and only dropping `self` releases it. If C
        // releases it in violation of its contract, an error is returned.
        unsafe { handle::borrow(self.0, T::NAME) }.ok()
    }

    /// Returns the object itself. Its address becomes invalid.
    pub(crate) fn into_inner(self) -> Option<T> {
        let address = self.0;
        std::mem::forget(self);
        // SAFETY: as in `get`; nothing borrows from `self` any more.
        unsafe { handle::take(address, T::NAME) }.ok()
    }
}

impl<T: CObject> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: as in `into_inner`.
        drop(unsafe { handle::take::<T>(self.0, T::NAME) });
    }
}
