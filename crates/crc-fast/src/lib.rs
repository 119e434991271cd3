//! The part of the crate `crc-fast` that `object_store` uses: the checksum CRC-64/NVME of an
//! upload. The server uploads nothing, but the code must compile.
//!
//! The crate on crates.io always brings a C interface, whose functions a library exports
//! beside its own and which keep the tables of a hundred checksums in the program: 0.9 MB.
//! Cargo takes this crate in its place (`[patch.crates-io]` in the workspace's manifest).
//! A use of more by `object_store`, one day, fails to compile here.
//!
//! This crate is *not* fast: it takes a step for each bit.

#![forbid(unsafe_code)]

/// The polynomial x⁶⁴ + … of NVM Express, reflected.
const POLYNOMIAL: u64 = 0x9A6C_9329_AC4B_C9B5;

/// A kind of checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcAlgorithm {
    /// CRC-64 of NVM Express, the one that Amazon S3 knows.
    Crc64Nvme,
}

/// A checksum in the making.
#[derive(Clone, Debug)]
pub struct Digest {
    register: u64,
}

impl Digest {
    /// The checksum of nothing so far.
    pub fn new(algorithm: CrcAlgorithm) -> Self {
        match algorithm {
            CrcAlgorithm::Crc64Nvme => Self { register: u64::MAX },
        }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.register ^= u64::from(*byte);
            for _ in 0..u8::BITS {
                let odd = self.register & 1 == 1;
                self.register >>= 1;
                if odd {
                    self.register ^= POLYNOMIAL;
                }
            }
        }
    }

    /// The checksum of all bytes.
    pub fn finalize(self) -> u64 {
        !self.register
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(parts: &[&[u8]]) -> u64 {
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        for part in parts {
            digest.update(part);
        }
        digest.finalize()
    }

    /// The catalogues of checksums list this value.
    #[test]
    fn the_digits_have_the_listed_checksum() {
        assert_eq!(checksum(&[b"123456789"]), 0xAE8B_1486_0A79_9888);
        assert_eq!(checksum(&[b"1234", b"", b"56789"]), 0xAE8B_1486_0A79_9888);
    }

    /// A value of the NVM Command Set specification.
    #[test]
    fn zeros_have_the_specified_checksum() {
        assert_eq!(checksum(&[&[0; 4096]]), 0x6482_D367_EB22_B64E);
    }
}
