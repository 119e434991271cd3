//! Texts that come from C, and places that C wants written.

use core::ffi::{CStr, c_char};

use galatea_infer::Status;

/// The text behind a pointer.
///
/// # Errors
///
/// `InvalidArgument` that names the argument, for null and for bytes that are
/// not UTF-8.
///
/// # Safety
///
/// A pointer that is not null must point to bytes that end in a zero byte and
/// live as long as the reference.
pub unsafe fn required<'a>(pointer: *const c_char, argument: &str) -> Result<&'a str, Status> {
    if pointer.is_null() {
        return Err(Status::invalid_argument(format!("{argument} must not be null")));
    }
    // SAFETY: the caller promises a text that ends in a zero byte.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Status::invalid_argument(format!("{argument} is not valid UTF-8")))
}

/// Checks that C has a place for a result, before one is made that C would have to
/// release.
///
/// # Errors
///
/// `InvalidArgument` that names the argument, for null.
pub fn check_place<T>(place: *mut T, argument: &str) -> Result<(), Status> {
    if place.is_null() {
        return Err(Status::invalid_argument(format!("{argument} must not be null")));
    }
    Ok(())
}

/// Writes a result to where C wants it. For one that C releases, the place is to be
/// checked before it is made.
///
/// # Errors
///
/// `InvalidArgument` that names the argument, for null.
///
/// # Safety
///
/// A pointer that is not null must be valid for a write of `T`.
pub unsafe fn write<T>(place: *mut T, value: T, argument: &str) -> Result<(), Status> {
    check_place(place, argument)?;
    // SAFETY: the caller promises that the place can be written.
    unsafe { place.write(value) };
    Ok(())
}

/// The elements behind a pointer; none of them may be read through another
/// reference as something else.
///
/// # Errors
///
/// `InvalidArgument` that names the argument, for null with a count above 0.
///
/// # Safety
///
/// With a count above 0, the pointer must be null or valid for reads of so many
/// elements for as long as the reference lives.
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
    // SAFETY: the caller promises so many readable elements.
    Ok(unsafe { core::slice::from_raw_parts(pointer, count) })
}

/// A place that C wants written, with the name of the argument that gives it.
pub struct Place<T> {
    pointer: *mut T,
    argument: &'static str,
}

impl<T> Place<T> {
    /// A place behind a pointer.
    ///
    /// # Safety
    ///
    /// A pointer that is not null must be valid for a write of `T` as long as the
    /// place lives.
    pub const unsafe fn new(pointer: *mut T, argument: &'static str) -> Self {
        Self { pointer, argument }
    }

    /// Writes a result.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the argument, for null.
    pub fn write(self, value: T) -> Result<(), Status> {
        // SAFETY: whoever made the place promised that it can be written.
        unsafe { write(self.pointer, value, self.argument) }
    }
}
