//! The limit for the memory of models that are loaded on demand.

/// The value of `--model-memory`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelMemoryLimit {
    /// A number of bytes.
    Bytes(usize),
    /// A percentage of the memory that the process may use, from 1 to 100.
    Percent(u8),
}

impl ModelMemoryLimit {
    /// The number of bytes, if `usable` bytes may be used.
    pub(crate) fn bytes_of(self, usable: usize) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => usable / 100 * usize::from(percent),
        }
    }
}
