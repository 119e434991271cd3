//! The versions that another one, an ensemble, executes as its steps.

use galatea_backend::ComposingModels;

use super::LoadedModel;

/// The composing versions of a version. The implementation keeps them in service for as
/// long as it lives.
pub trait ComposingVersions: ComposingModels {
    /// A version by its model's name; without a number the newest.
    fn version(&self, name: &str, number: Option<i64>) -> Option<&LoadedModel>;

    /// All versions, in the order of their names and numbers.
    fn versions(&self) -> Vec<&LoadedModel>;
}
