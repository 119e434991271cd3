//! The checksums of the file that lists the variables of a `SavedModel`.
//!
//! `OpenVINO` doesn't check them, and ends the process while it reads some damaged files. The file is
//! a table of sorted strings: blocks, each followed by its kind and its checksum, then the places of
//! two blocks and a number by which the format is known. One of the two lists the other blocks.

use std::io::Read as _;
use std::path::Path;

/// The file in a model's directory.
const FILE: &str = "variables/variables.index";
/// A file has a few dozen bytes for each variable.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The end of the file, and the number that it ends with.
const FOOTER_BYTES: usize = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// The kind of a block that is not compressed.
const PLAIN: u8 = 0;

/// The place of a block.
struct BlockPlace {
    offset: usize,
    size: usize,
}

/// Returns true if a model has no variables, or lists them in a file whose checksums are right.
pub(crate) fn is_sound(directory: &Path) -> bool {
    let path = directory.join(FILE);
    if !path.exists() {
        return true;
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    let read = file.and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.is_ok() && has_checksums(&bytes).is_some()
}

/// Checks all blocks of a file; `None` if one is damaged.
fn has_checksums(file: &[u8]) -> Option<()> {
    let (_, footer) = file.split_at_checked(file.len().checked_sub(FOOTER_BYTES)?)?;
    let (mut places, magic) = footer.split_last_chunk()?;
    if u64::from_le_bytes(*magic) != MAGIC {
        return None;
    }
    let described = BlockPlace::read(&mut places)?;
    let index = BlockPlace::read(&mut places)?;
    block(file, &described)?;
    let mut entries = entries(block(file, &index)?)?;
    while !entries.is_empty() {
        // The key is not needed: the bytes that it shares with the one before, its own, the value.
        let [_, own, value] = [number(&mut entries)?, number(&mut entries)?, number(&mut entries)?];
        let (_, rest) = entries.split_at_checked(own)?;
        let (mut value, rest) = rest.split_at_checked(value)?;
        block(file, &BlockPlace::read(&mut value)?)?;
        entries = rest;
    }
    Some(())
}

impl BlockPlace {
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self { offset: number(bytes)?, size: number(bytes)? })
    }
}

/// The content of a block, if it has its checksum and is not compressed.
fn block<'a>(file: &'a [u8], place: &BlockPlace) -> Option<&'a [u8]> {
    let (content, rest) = file.get(place.offset..)?.split_at_checked(place.size)?;
    let (&kind, rest) = rest.split_first()?;
    let stored = u32::from_le_bytes(*rest.first_chunk()?);
    // The sum is stored in another form, because a block may contain sums.
    let sum = checksum(content.iter().chain([&kind])).rotate_right(15).wrapping_add(0xa282_ead8);
    (kind == PLAIN && stored == sum).then_some(content)
}

/// The entries of a block, which precede a list of places and the list's length.
fn entries(block: &[u8]) -> Option<&[u8]> {
    let (rest, count) = block.split_last_chunk()?;
    let list = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(4)?;
    rest.get(..rest.len().checked_sub(list)?)
}

/// Takes a number of seven bits a byte off the front.
fn number(bytes: &mut &[u8]) -> Option<usize> {
    let mut found = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        found |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return usize::try_from(found).ok();
        }
    }
    None
}

/// CRC-32C.
fn checksum<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    };
    !bytes.fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!(checksum(b"123456789".iter()), 0xe306_9283);
    }

    #[test]
    fn damaged_files_are_found() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tensorflow/models");
        for model in ["mlp", "embedding", "convolution"] {
            let file = models.join(model).join("1/model.savedmodel").join(FILE);
            let whole = std::fs::read(file).unwrap();
            assert_eq!(has_checksums(&whole), Some(()), "{model}");
            for length in 0..whole.len() {
                assert_eq!(has_checksums(&whole[..length]), None, "{model} {length}");
            }
            let blocks = whole.len() - FOOTER_BYTES;
            for place in 0..blocks {
                let mut damaged = whole.clone();
                damaged[place] ^= 0x10;
                assert_eq!(has_checksums(&damaged), None, "{model} {place}");
            }
        }
    }

    #[test]
    fn a_model_without_variables_is_sound() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tensorflow/models");
        assert!(is_sound(&models.join("mlp/1/model.savedmodel")));
        assert!(is_sound(&models.join("nothing")));
    }
}
