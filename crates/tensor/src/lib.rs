//! Tensors: a data type, a checked shape and a reference-counted region of bytes. Start with
//! `buffer/mod.rs`.
//!
//! The crate knows nothing about requests, models, protocols or backends. It does no arithmetic on
//! elements and has no `unsafe` code: foreign memory enters as the owner of a [`bytes::Bytes`] or a
//! [`DeviceRegion`], or as a [`ForeignRegion`] if others may change it.
//!
//! ```
//! use galatea_tensor::{Buffer, DataType, Shape};
//!
//! let shape = Shape::new(&[2, 3])?;
//! let data = Buffer::from_vec(vec![0_u8; 24]);
//! assert_eq!(shape.byte_size(DataType::Fp32), Some(data.len() as u64));
//! # Ok::<(), galatea_tensor::ShapeError>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod buffer;
mod datatype;
pub mod elements;
mod shape;

pub use buffer::{
    Buffer, DeviceRegion, ForeignMemory, ForeignMemoryError, ForeignRegion, MemoryKind,
};
pub use datatype::DataType;
pub use shape::{Shape, ShapeError};
