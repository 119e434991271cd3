//! The versions that another one, an ensemble, executes as its steps.

use galatea_backend::ComposingModels;

use super::LoadedModel;

/// The composing versions of a version. The implementation keeps them in service for as
/// long as it lives.
pub trait ComposingVersions: ComposingModels {
    /// The version of a model with this number, or its newest version.
    fn version(&self, name: &str, number: Option<i64>) -> Option<&LoadedModel>;

    /// All versions, in order of names and numbers.
    fn versions(&self) -> Vec<&LoadedModel>;
}
