//! Bounds on what one request may bring, the same at every door.

/// What a request's sizes are compared with before anything is allocated.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body, and the longest tensor made of a body, in bytes.
    pub input_bytes_max: u64,
}

impl Limits {
    /// Longest body and tensor by default: 64 MiB, as in the original.
    pub const DEFAULT_INPUT_BYTES_MAX: u64 = 1 << 26;
    /// How deeply arrays and objects of a JSON text may be nested.
    pub const JSON_DEPTH_MAX: usize = 100;
    /// How many pieces a chunked body may come in.
    pub const CHUNKS_MAX: u32 = 65_536;
    /// How many inputs, and how many requested outputs, a request may name.
    ///
    /// The original has no such bound; this one is far above any model's
    /// interface and keeps a small body from naming millions of tensors.
    pub const TENSORS_MAX: usize = 4096;
}

impl Default for Limits {
    fn default() -> Self {
        Self { input_bytes_max: Self::DEFAULT_INPUT_BYTES_MAX }
    }
}
