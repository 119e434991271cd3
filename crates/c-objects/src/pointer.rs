//! Pointers from C: strings and arrays to read, and destinations for results.

use core::ffi::{CStr, c_char};

use galatea_infer::Status;

/// Returns the string behind a pointer.
///
/// # Errors
///
/// `InvalidArgument`, with the argument's name, if the pointer is null or the bytes aren't UTF-8.
///
/// # Safety
///
/// A non-null pointer must refer to NUL-terminated bytes that live as long as the reference.
pub unsafe fn required_c_str<'a>(
    pointer: *const c_char,
    argument: &str,
) -> Result<&'a str, Status> {
    if pointer.is_null() {
        return Err(Status::invalid_argument(format!("{argument} must not be null")));
    }
    // SAFETY: the caller guarantees a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Status::invalid_argument(format!("{argument} is not valid UTF-8")))
}

/// Checks that C can receive a result, before creating one that C would have to release.
///
/// # Errors
///
/// `InvalidArgument`, with the argument's name, if the pointer is null.
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
/// `InvalidArgument`, with the argument's name, if the pointer is null.
///
/// # Safety
///
/// A non-null pointer must be valid for a write of `T`.
pub unsafe fn write<T>(pointer: *mut T, value: T, argument: &str) -> Result<(), Status> {
    check_not_null(pointer, argument)?;
    // SAFETY: the caller guarantees that the pointer is valid for a write.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Returns the elements behind a pointer. They must not be accessed as another type in the
/// meantime.
///
/// # Errors
///
/// `InvalidArgument`, with the argument's name, if the pointer is null and the count is nonzero.
///
/// # Safety
///
/// If the count is nonzero, the pointer must be null or valid for reads of `count` elements for as
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
    // SAFETY: the caller guarantees `count` readable elements.
    Ok(unsafe { core::slice::from_raw_parts(pointer, count) })
}

/// A pointer through which C receives a result, together with the argument's name.
pub struct OutPointer<T> {
    pointer: *mut T,
    argument: &'static str,
}

impl<T> OutPointer<T> {
    /// Wraps an out pointer.
    ///
    /// # Safety
    ///
    /// A non-null pointer must be valid for a write of `T` for as long as this value lives.
    pub const unsafe fn new(pointer: *mut T, argument: &'static str) -> Self {
        Self { pointer, argument }
    }

    /// Writes a result.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, with the argument's name, if the pointer is null.
    pub fn write(self, value: T) -> Result<(), Status> {
        // SAFETY: the creator of this value guaranteed that the pointer is valid for a write.
        unsafe { write(self.pointer, value, self.argument) }
    }
}
