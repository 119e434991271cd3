//! Request and response tensors.

use std::sync::Arc;

use galatea_tensor::{Buffer, DataType, Shape};

/// One input tensor of a request.
#[derive(Clone, Debug)]
pub struct InputTensor {
    /// The name in the model's configuration.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape, with the batch dimension if the model has one.
    pub shape: Shape,
    /// Its elements in row-major order, little-endian. Each `BYTES` element is preceded by its
    /// length.
    pub data: Buffer,
}

/// One output tensor of a response.
#[derive(Clone, Debug)]
pub struct OutputTensor {
    /// The name in the model's configuration.
    pub name: Arc<str>,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape, with the batch dimension if the model has one.
    pub shape: Shape,
    /// Its elements, laid out as in an [`InputTensor`].
    pub data: Buffer,
}
