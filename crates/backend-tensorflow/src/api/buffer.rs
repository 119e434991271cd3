//! Buffers for encoded messages.

use std::ptr::NonNull;

use galatea_infer::Status;

use super::functions::{Functions, RawBuffer};
use super::status::missing;

/// A library buffer.
pub(super) struct Buffer<'a> {
    raw: NonNull<RawBuffer>,
    functions: &'a Functions,
}

impl<'a> Buffer<'a> {
    /// An empty buffer, which the library fills.
    pub(super) fn new(functions: &'a Functions) -> Result<Self, Status> {
        // SAFETY: the constructor takes no arguments.
        let raw = NonNull::new(unsafe { (functions.TF_NewBuffer)() });
        Ok(Self { raw: raw.ok_or_else(|| missing("buffer"))?, functions })
    }

    /// A buffer with a copy of a message.
    pub(super) fn copied(functions: &'a Functions, message: &[u8]) -> Result<Self, Status> {
        let (data, length) = (message.as_ptr().cast(), message.len());
        // SAFETY: the message has this many bytes, which are copied.
        let raw = NonNull::new(unsafe { (functions.TF_NewBufferFromString)(data, length) });
        Ok(Self { raw: raw.ok_or_else(|| missing("buffer"))?, functions })
    }

    pub(super) const fn as_ptr(&self) -> *mut RawBuffer {
        self.raw.as_ptr()
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        // SAFETY: the buffer is alive, and owns this many bytes if the pointer isn't null.
        unsafe {
            let RawBuffer { data, length, .. } = self.raw.as_ref();
            if data.is_null() {
                return Vec::new();
            }
            std::slice::from_raw_parts(data.cast::<u8>(), *length).to_vec()
        }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: the buffer is alive, and only this deletes it.
        unsafe { (self.functions.TF_DeleteBuffer)(self.as_ptr()) };
    }
}
