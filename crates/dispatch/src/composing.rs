//! The versions that another one, an ensemble, is loaded with.

use galatea_backend::ComposingModels;

use crate::LoadedModel;

/// The versions that a version executes as its steps. Whoever implements it keeps them
/// in service for as long as it lives.
pub trait ComposingVersions: ComposingModels {
    /// One of them; without a number the newest.
    fn version(&self, name: &str, number: Option<i64>) -> Option<&LoadedModel>;

    /// All of them, in the order of their names and numbers.
    fn versions(&self) -> Vec<&LoadedModel>;
}
