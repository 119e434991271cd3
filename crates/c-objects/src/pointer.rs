//! Pointers that C passes: strings and arrays to read, and destinations for results.

use core::ffi::{CStr, c_char};

use galatea_infer::Status;

/// The string behind a pointer.
///
/// # Errors
///
/// `InvalidArgument` that names the argument, for null and for bytes that are
/// not UTF-8.
///
/// # Safety
///
/// A pointer that is not null must point to bytes that are NUL-terminated and live as long as the
/// reference.
pub unsafe fn required_text<'a>(pointer: *const c_char, argument: &str) -> Result<&'a str, Status> {
    if pointer.is_null() {
        return Err(Status::invalid_argument(format!("{argument} must not be null")));
    }
    // SAFETY: the caller promises a text that ends in a zero byte.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Status::invalid_argument(format!("{argument} is not valid UTF-8")))
}

/// Checks that C can receive a result, before creating one that C would have to release.
///
/// # Errors
///
/// `InvalidArgument` that names the argument, for null.
pub fn check_not_null<T>(pointer: *mut T, argument: &str) -> Result<(), Status> {
    if pointer.is_null() {
        return Err(Status::invalid_argument(format!("{argument} must not be null")));
    }
    Ok(())
}

/// Writes a result for C. If C must release the result, check the pointer before creating it.
///
/// # Errors
///
/// `InvalidArgument` that names the argument, for null.
///
/// # Safety
///
/// A pointer that is not null must be valid for a write of `T`.
pub unsafe fn write<T>(pointer: *mut T, value: T, argument: &str) -> Result<(), Status> {
    check_not_null(pointer, argument)?;
    // SAFETY: the caller promises that the pointer can be written to.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The elements behind a pointer. They must not be accessed as another type meanwhile.
///
/// # Errors
///
/// `InvalidArgument` that names the argument, for null with a nonzero count.
///
/// # Safety
///
/// With a nonzero count, the pointer must be null or valid for reads of `count` elements for as
/// long as the reference lives.
pub unsafe fn slice<'a, T>(
    pointer: *const T,
    count: usize,
    argument: &str,
) -> Result<&'a [T], Status> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Status::invalid_argument(format!("{argument} must not be null")));
    }
    // SAFETY: the caller promises `count` readable elements.
    Ok(unsafe { core::slice::from_raw_parts(pointer, count) })
}

/// A pointer that C passes to receive a result, with the name of its argument.
pub struct OutPointer<T> {
    pointer: *mut T,
    argument: &'static str,
}

impl<T> OutPointer<T> {
    /// Wraps an out pointer.
    ///
    /// # Safety
    ///
    /// A pointer that is not null must be valid for a write of `T` for as long as this value lives.
    pub const unsafe fn new(pointer: *mut T, argument: &'static str) -> Self {
        Self { pointer, argument }
    }

    /// Writes a result.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the argument, for null.
    pub fn write(self, value: T) -> Result<(), Status> {
        // SAFETY: the maker of this value promised that the pointer can be written to.
        unsafe { write(self.pointer, value, self.argument) }
    }
}
