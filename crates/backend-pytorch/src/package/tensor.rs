//! A tensor in a compiled model's source.

use galatea_tensor::DataType;

use super::formula::integer;

/// A tensor in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceTensor {
    /// The element type.
    pub(crate) datatype: DataType,
    /// The sizes, as written in the source: `s77` or `3L`.
    pub(super) sizes: Vec<String>,
}

impl SourceTensor {
    pub(super) fn new(datatype: DataType, sizes: Vec<String>) -> Self {
        Self { datatype, sizes }
    }

    /// The sizes, where -1 means variable.
    pub(crate) fn dims(&self) -> Vec<i64> {
        self.sizes.iter().map(|size| integer(size).unwrap_or(-1)).collect()
    }

    /// The first size, if it is variable.
    pub(crate) fn batch_symbol(&self) -> Option<&str> {
        self.sizes.first().map(String::as_str).filter(|size| integer(size).is_none())
    }
}
