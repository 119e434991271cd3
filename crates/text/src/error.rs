//! Errors in a model's files or settings.

/// A mistake in a file or a setting of a text model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct TextModelError {
    place: String,
    problem: String,
}

impl TextModelError {
    /// Creates an error about a file or a setting.
    pub fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into() }
    }
}
