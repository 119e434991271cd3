//! Errors for files that can't be turned into a forest, and for buffers of the wrong length.

/// The reason why a file can't be turned into a forest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Bytes that the format doesn't allow, or numbers that contradict each other.
    #[error("{0}")]
    Malformed(String),
    /// A model that is valid in its format but that this crate can't execute.
    #[error("{0}")]
    Unsupported(String),
}

impl ReadError {
    pub(crate) fn malformed(text: impl Into<String>) -> Self {
        Self::Malformed(text.into())
    }

    pub(crate) fn unsupported(text: impl Into<String>) -> Self {
        Self::Unsupported(text.into())
    }
}

/// A buffer whose length doesn't match the forest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} has {actual} values, expected {expected}")]
pub struct LengthError {
    /// The buffer's name.
    pub what: &'static str,
    /// The expected length.
    pub expected: usize,
    /// The actual length.
    pub actual: usize,
}

impl LengthError {
    /// Checks the length of a buffer for `count` rows.
    pub(crate) fn check(
        what: &'static str,
        actual: usize,
        count: usize,
        per_row: usize,
    ) -> Result<(), Self> {
        let expected = count.saturating_mul(per_row);
        if actual == expected { Ok(()) } else { Err(Self { what, expected, actual }) }
    }
}
