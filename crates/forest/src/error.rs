//! Reasons for which a file gives no forest.

/// A file that gives no forest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Bytes that the format does not allow, or numbers that contradict each other.
    #[error("{0}")]
    Malformed(String),
    /// A model that its format allows and this crate does not execute.
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

/// A buffer whose length does not fit the forest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} has {actual} values, expected {expected}")]
pub struct LengthError {
    /// The name of the buffer.
    pub what: &'static str,
    /// The length that it should have.
    pub expected: usize,
    /// The length that it has.
    pub actual: usize,
}

impl LengthError {
    /// Checks a buffer of `count` rows.
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
