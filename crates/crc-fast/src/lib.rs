//! The part of the crate `crc-fast` that `object_store` uses: the CRC-64/NVME checksum for uploads.
//! The server doesn't upload anything, but the code must compile.
//!
//! The crate on crates.io always includes a C interface. A library exports its functions in
//! addition to its own, and they keep the tables for a hundred checksums in the program, which take
//! 0.9 MB. Cargo uses this crate instead (`[patch.crates-io]` in the workspace's manifest). If
//! `object_store` ever uses more of the crate, the build fails here.
//!
//! This crate is *not* fast: it processes one bit at a time.

#![forbid(unsafe_code)]

/// The polynomial x⁶⁴ + … of NVM Express, bit-reversed.
const POLYNOMIAL: u64 = 0x9A6C_9329_AC4B_C9B5;

/// A checksum algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcAlgorithm {
    /// CRC-64 as defined by NVM Express, the variant that Amazon S3 supports.
    Crc64Nvme,
}

/// A checksum that is being computed.
#[derive(Clone, Debug)]
pub struct Digest {
    register: u64,
}

impl Digest {
    /// Creates the checksum of an empty input.
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

    /// The checksum of all bytes so far.
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
