//! Messages: JSON documents that are passed in either direction.

use core::ffi::c_char;

use galatea_abi::server::{
    TRITONSERVER_MessageDelete, TRITONSERVER_MessageNewFromSerializedJson,
    TRITONSERVER_MessageSerializeToJson,
};
use galatea_abi::{TRITONSERVER_Error, TRITONSERVER_Message};
use galatea_infer::Status;

use crate::guard::catch_panic;
use crate::{handle, pointer};

/// A JSON document.
pub struct MessageObject {
    json: String,
}
crate::object!(MessageObject as TRITONSERVER_Message, kind 2);

impl MessageObject {
    /// Creates a message from this JSON string.
    #[must_use]
    pub const fn new(json: String) -> Self {
        Self { json }
    }
}

/// Creates a message for C, which the receiver deletes.
pub fn into_c(json: String) -> *mut TRITONSERVER_Message {
    handle::into_raw(MessageObject { json })
}

/// Returns the JSON string of a message that C owns.
///
/// # Errors
///
/// `InvalidArgument` if the object isn't a message.
///
/// # Safety
///
/// The pointer must be null or an object of this library that lives as long as the string is used.
pub unsafe fn json<'a>(
    message: *const TRITONSERVER_Message,
    argument: &str,
) -> Result<&'a str, Status> {
    // SAFETY: guaranteed by the caller.
    let message = unsafe { handle::borrow::<MessageObject>(message, argument)? };
    Ok(&message.json)
}

const _: TRITONSERVER_MessageNewFromSerializedJson = TRITONSERVER_MessageNewFromSerializedJson;
/// Creates a message from a serialized JSON document.
///
/// # Safety
///
/// `message` must be valid for a write, and `base` must be valid for reads of `byte_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MessageNewFromSerializedJson(
    message: *mut *mut TRITONSERVER_Message,
    base: *const c_char,
    byte_size: usize,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_MessageNewFromSerializedJson", || {
        // SAFETY: the caller guarantees `byte_size` bytes.
        let bytes = unsafe { pointer::slice(base.cast::<u8>(), byte_size, "base")? };
        let json = core::str::from_utf8(bytes)
            .map_err(|_| Status::invalid_argument("the message is not valid UTF-8"))?;
        if message.is_null() {
            return Err(Status::invalid_argument("message must not be null"));
        }
        // SAFETY: the caller guarantees that the pointer is valid for a write.
        unsafe { pointer::write(message, into_c(json.to_owned()), "message") }
    })
}

const _: TRITONSERVER_MessageDelete = TRITONSERVER_MessageDelete;
/// Deletes a message.
///
/// # Safety
///
/// `message` must be null or a message that is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MessageDelete(
    message: *mut TRITONSERVER_Message,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_MessageDelete", || {
        // SAFETY: guaranteed by the caller.
        unsafe { handle::delete::<MessageObject>(message, "message") }
    })
}

const _: TRITONSERVER_MessageSerializeToJson = TRITONSERVER_MessageSerializeToJson;
/// Returns the serialized document. It lives as long as the message and isn't NUL-terminated.
///
/// # Safety
///
/// `message` must be null or a message, and `base` and `byte_size` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MessageSerializeToJson(
    message: *mut TRITONSERVER_Message,
    base: *mut *const c_char,
    byte_size: *mut usize,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_MessageSerializeToJson", || {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let json = json(message, "message")?;
            pointer::write(base, json.as_ptr().cast(), "base")?;
            pointer::write(byte_size, json.len(), "byte_size")
        }
    })
}
