//! Load failures.

use galatea_infer::Status;

/// A version that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadFailure {
    /// The model's name.
    pub name: String,
    /// The version; `None` if the model failed as a whole.
    pub version: Option<i64>,
    /// The reason for the failure.
    pub status: Status,
}
