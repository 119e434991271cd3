//! Conversions that can't fail.

/// `length` as 64 bits, which every length in memory fits in.
#[must_use]
pub fn len64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
