//! Why a model doesn't serve.

use galatea_infer::Status;

/// A version that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadFailure {
    /// The model's name.
    pub name: String,
    /// The version; `None` if it is the model as a whole that failed.
    pub version: Option<i64>,
    /// Why.
    pub status: Status,
}
