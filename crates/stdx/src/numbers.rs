//! Conversions that can't fail.

/// `length` as a 64-bit number, which can represent every length in memory.
#[must_use]
pub fn len64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
