//! Hashing of the parts of a key or fingerprint.
//!
//! Each part is prefixed with its length, so different lists of parts hash different bytes.

use blake3::Hasher;
use galatea_stdx::len64;

pub(super) fn add_bytes(hasher: &mut Hasher, bytes: &[u8]) {
    add_count(hasher, bytes.len());
    hasher.update(bytes);
}

pub(super) fn add_text(hasher: &mut Hasher, text: &str) {
    add_bytes(hasher, text.as_bytes());
}

pub(super) fn add_count(hasher: &mut Hasher, count: usize) {
    hasher.update(&len64(count).to_le_bytes());
}
