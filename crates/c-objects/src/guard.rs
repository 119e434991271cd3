//! The wrapper for every exported function.

use std::panic::{AssertUnwindSafe, catch_unwind};

use galatea_abi::TRITONSERVER_Error;
use galatea_infer::Status;

use crate::{error, log};

/// Runs an exported function's body. Returns null if the body succeeds, or an error object if it
/// fails or panics. A panic must not propagate into C.
pub fn catch_panic(
    function: &str,
    body: impl FnOnce() -> Result<(), Status>,
) -> *mut TRITONSERVER_Error {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => core::ptr::null_mut(),
        Ok(Err(status)) => error::into_c(status),
        Err(_) => {
            let text = format!("{function} failed unexpectedly inside the server");
            log::error(&text);
            error::into_c(Status::internal(text))
        }
    }
}

/// Like [`catch_panic`], but for a function that returns a value. Returns `fallback` if the body panics.
pub fn catch_panic_or<T>(function: &str, fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        log::error(&format!("{function} failed unexpectedly inside the server"));
        fallback
    })
}
