//! Converts server errors to the package's exceptions.

use galatea_infer::{Code, Status};
use pyo3::PyErr;

/// The package's exceptions, which use the names of Triton's exceptions.
mod exceptions {
    use pyo3::import_exception;

    import_exception!(galatea._errors, AlreadyExistsError);
    import_exception!(galatea._errors, CancelledError);
    import_exception!(galatea._errors, InternalError);
    import_exception!(galatea._errors, InvalidArgumentError);
    import_exception!(galatea._errors, NotFoundError);
    import_exception!(galatea._errors, UnavailableError);
    import_exception!(galatea._errors, UnknownError);
    import_exception!(galatea._errors, UnsupportedError);
}

/// The exception for a status.
pub(crate) fn raise(status: Status) -> PyErr {
    let message = status.message().to_owned();
    match status.code() {
        Code::Unknown => exceptions::UnknownError::new_err(message),
        Code::Internal => exceptions::InternalError::new_err(message),
        Code::NotFound => exceptions::NotFoundError::new_err(message),
        Code::InvalidArgument => exceptions::InvalidArgumentError::new_err(message),
        Code::Unavailable | Code::Exhausted | Code::DeadlineExceeded => {
            exceptions::UnavailableError::new_err(message)
        }
        Code::Unsupported => exceptions::UnsupportedError::new_err(message),
        Code::AlreadyExists => exceptions::AlreadyExistsError::new_err(message),
        Code::Cancelled => exceptions::CancelledError::new_err(message),
    }
}
