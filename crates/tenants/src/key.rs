//! Keys and their hashes.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// The beginning of every key, by which scanners for secrets find keys in files.
const PREFIX: &str = "gk_";

/// The number of random bytes of a key's ID, and of its secret.
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// The public part of a key, in hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct KeyId(String);

impl KeyId {
    /// Checks an ID.
    pub(crate) fn new(text: &str) -> Option<Self> {
        is_hexadecimal(text, ID_BYTES).then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the ID in a caller's key, which may be any text.
    pub(crate) fn of_key(key: &[u8]) -> Option<Self> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(PREFIX)?;
        let (id, secret) = rest.split_once('_')?;
        if !is_hexadecimal(secret, SECRET_BYTES) {
            return None;
        }
        Self::new(id)
    }
}

fn is_hexadecimal(text: &str, bytes: usize) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 2 * bytes && text.bytes().all(is_digit)
}

/// The SHA-256 hash of a whole key.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyHash([u8; 32]);

impl KeyHash {
    pub(crate) fn of_key(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Reads a hash in hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if !is_hexadecimal(text, 32) {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(hash))
    }

    pub(crate) fn to_text(self) -> String {
        hexadecimal(&self.0)
    }

    /// Compares two hashes in a time that doesn't depend on their bytes.
    pub(crate) fn is_same(self, other: Self) -> bool {
        let bytes = self.0.iter().zip(other.0);
        // Without the barrier, the compiler may leave the loop at the first difference.
        bytes.fold(0, |difference, (one, other)| black_box(difference | (one ^ other))) == 0
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key that was just made. Only its owner learns the text.
pub(crate) struct MadeKey {
    pub(crate) id: KeyId,
    pub(crate) text: String,
}

impl MadeKey {
    /// Makes a key of the system's random bytes.
    pub(crate) fn random() -> io::Result<Self> {
        let mut bytes = [0; ID_BYTES + SECRET_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let (id, secret) = bytes.split_at(ID_BYTES);
        let id = hexadecimal(id);
        let text = format!("{PREFIX}{id}_{}", hexadecimal(secret));
        Ok(Self { id: KeyId(id), text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_key_has_its_id_and_is_found_by_its_hash() {
        let (one, other) = (MadeKey::random().unwrap(), MadeKey::random().unwrap());
        assert_ne!(one.text, other.text);
        assert_eq!(KeyId::of_key(one.text.as_bytes()), Some(one.id));
        let hash = KeyHash::of_key(one.text.as_bytes());
        assert_eq!(KeyHash::parse(&hash.to_text()), Some(hash));
        assert!(hash.is_same(hash));
        assert!(!hash.is_same(KeyHash::of_key(other.text.as_bytes())));
    }

    #[test]
    fn hashes_are_sha_256() {
        // FIPS 180-4, the example of one block.
        let hash = KeyHash::of_key(b"abc").to_text();
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn hashes_differ_in_every_bit() {
        let hash = KeyHash::of_key(b"abc");
        for index in 0..32 {
            for bit in 0..8 {
                let mut wrong = hash;
                wrong.0[index] ^= 1 << bit;
                assert!(!wrong.is_same(hash));
            }
        }
    }

    #[test]
    fn other_texts_are_no_keys() {
        let (id, secret) = ("0123456789abcdef", "0".repeat(64));
        assert!(KeyId::of_key(format!("gk_{id}_{secret}").as_bytes()).is_some());
        for wrong in [
            String::new(),
            format!("gk_{id}"),
            format!("{id}_{secret}"),
            format!("gk_{id}_{secret}0"),
            format!("gk_{}_{secret}", "0123456789ABCDEF"),
            format!("gk_{}_{secret}", &id[1..]),
        ] {
            assert_eq!(KeyId::of_key(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(KeyId::of_key(b"gk_\xff"), None);
        assert_eq!(KeyHash::parse("ab"), None);
    }
}
