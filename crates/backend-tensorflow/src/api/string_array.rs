//! The strings of an input.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_tensor::Shape;
use galatea_tensor::elements::BytesElements;

use super::functions::RawString;
use super::library::{ALIGNMENT, Library};

/// The size of the library's string object.
pub(super) const OBJECT_BYTES: usize = size_of::<RawString>();

/// The strings of an input, which are copies of a request's strings.
pub(super) struct StringArray {
    start: NonNull<RawString>,
    /// The number of initialized strings, which come first.
    length: usize,
    layout: Layout,
    library: Arc<Library>,
}

impl StringArray {
    /// Copies the elements of all `parts`, whose number must match the shape.
    pub(super) fn new(
        library: &Arc<Library>,
        shape: &Shape,
        parts: &[&[u8]],
    ) -> Result<Self, Status> {
        let too_large = || Status::invalid_argument(format!("shape {shape} is too large"));
        let count = usize::try_from(shape.element_count()).map_err(|_| too_large())?;
        let byte_size = count.checked_mul(OBJECT_BYTES).ok_or_else(too_large)?;
        // Even a tensor without elements has an address.
        let layout = Layout::from_size_align(byte_size.max(OBJECT_BYTES), ALIGNMENT)
            .map_err(|_| too_large())?;
        // SAFETY: the size isn't zero.
        let start = NonNull::new(unsafe { alloc(layout) }.cast::<RawString>());
        let start = start.unwrap_or_else(|| handle_alloc_error(layout));
        let mut array = Self { start, length: 0, layout, library: library.clone() };
        for element in parts.iter().flat_map(|part| BytesElements::new(part)) {
            let element = element.map_err(|error| Status::invalid_argument(error.to_string()))?;
            if array.length == count {
                return Err(Status::internal(format!("more than {count} strings for {shape}")));
            }
            array.push(element);
        }
        if array.length != count {
            return Err(Status::internal(format!("{} strings for {shape}", array.length)));
        }
        Ok(array)
    }

    /// Adds a string. There must be memory for it.
    fn push(&mut self, element: &[u8]) {
        let functions = self.library.functions();
        // SAFETY: the memory for this string is allocated and aligned; the string is initialized
        // before the element, which has this many bytes, is copied into it.
        unsafe {
            let string = self.start.as_ptr().add(self.length);
            (functions.TF_StringInit)(string);
            self.length += 1;
            (functions.TF_StringCopy)(string, element.as_ptr().cast::<c_char>(), element.len());
        }
    }

    pub(super) const fn as_ptr(&self) -> *mut RawString {
        self.start.as_ptr()
    }

    pub(super) const fn byte_size(&self) -> usize {
        self.length * OBJECT_BYTES
    }
}

impl Drop for StringArray {
    fn drop(&mut self) {
        let functions = self.library.functions();
        // SAFETY: the first strings are initialized, and only this frees them and the memory.
        unsafe {
            for index in 0..self.length {
                (functions.TF_StringDealloc)(self.start.as_ptr().add(index));
            }
            dealloc(self.start.as_ptr().cast(), self.layout);
        }
    }
}
