//! Converts errors of the crate `forest` to statuses.

use galatea_forest::fil::FilError;
use galatea_infer::Status;

pub(crate) fn refused(error: FilError) -> Status {
    match error {
        FilError::Internal(text) => Status::internal(text),
        FilError::InvalidArgument(text) => Status::invalid_argument(text),
        FilError::Unsupported(text) => Status::unsupported(text),
    }
}
