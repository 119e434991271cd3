//! Compressed bodies and messages. HTTP and gRPC use gzip and deflate, which is the zlib format.
//!
//! [`Inflater`] works in slices, so that a caller decides how long a thread is occupied, and never
//! holds more output than its limit. [`compress`] compresses a body that consists of several parts.

mod accepted;
mod deflate;
mod inflater;
mod weight;

pub use accepted::accepted_coding;
pub use deflate::{DeflateLevel, compress};
pub use inflater::{CompressedStreamEnd, CompressionFormat, InflateProgress, Inflater};

/// A coding of bodies and messages.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// A gzip member.
    Gzip,
    /// A zlib stream, which the protocols call deflate.
    Deflate,
}

impl ContentCoding {
    /// The coding's name in headers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// Returns the coding with this name. Triton compares names case-sensitively.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        [Self::Gzip, Self::Deflate].into_iter().find(|coding| coding.name().as_bytes() == name)
    }
}
