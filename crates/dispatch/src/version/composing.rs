//! The versions that an ensemble's version executes as its steps.

use galatea_backend::ComposingModels;

use super::LoadedModel;

/// A version's composing versions. The implementing object keeps these versions in service for as
/// long as it exists.
pub trait ComposingVersions: ComposingModels {
    /// The model's version with this number, or its newest version.
    fn version(&self, name: &str, number: Option<i64>) -> Option<&LoadedModel>;

    /// All versions, in order of name and number.
    fn versions(&self) -> Vec<&LoadedModel>;
}
