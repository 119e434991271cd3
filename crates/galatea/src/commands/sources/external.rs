//! Tensors that an ONNX model keeps in files next to it.
//!
//! Such a tensor has an entry with the key `location`, whose value is a path relative to the
//! model's directory. The search for the entry doesn't parse the message around it, because the
//! bytes in front of the value are always the same.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The entry's fields: a key of eight bytes, followed by a value.
const ENTRY: &[u8] = b"\x0a\x08location\x12";

/// The number of bytes to read from the file at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Returns true if the model names a file, and that file exists. Weights may by chance contain the
/// bytes of an entry, but such bytes don't name an existing file.
pub(super) fn has_data_beside(model: &Path) -> io::Result<bool> {
    let folder = model.parent().unwrap_or(Path::new(""));
    let mut file = File::open(model)?;
    let mut buffer = Vec::new();
    loop {
        let before = buffer.len();
        let read = file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut buffer)?;
        if named_in(&buffer).any(|name| folder.join(name).is_file()) {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
        // An entry may span the end of a chunk.
        let overlap = (ENTRY.len() + 2 * 127).min(before + read);
        buffer.drain(..buffer.len() - overlap);
    }
}

/// The values of the entries in these bytes. A one-byte length suffices for all paths that tools
/// write.
fn named_in(bytes: &[u8]) -> impl Iterator<Item = &str> {
    let places = bytes.windows(ENTRY.len()).enumerate().filter(|(_, window)| *window == ENTRY);
    places.filter_map(|(place, _)| {
        let (length, rest) = bytes.get(place + ENTRY.len()..)?.split_first()?;
        let name = std::str::from_utf8(rest.get(..usize::from(*length))?).ok()?;
        (!name.is_empty()).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_wherever_they_are() {
        let folder = std::env::temp_dir().join(format!("galatea-external-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("w.bin"), "").unwrap();
        let check = |content: &[u8], expected: bool| {
            let model = folder.join("m.onnx");
            std::fs::write(&model, content).unwrap();
            assert_eq!(has_data_beside(&model).unwrap(), expected);
        };
        let entry = [ENTRY, b"\x05w.bin"].concat();
        check(b"", false);
        check(&entry, true);
        check(&entry[..entry.len() - 1], false);
        check(&[ENTRY, b"\x05x.bin"].concat(), false);
        for place in [CHUNK_BYTES - entry.len() - 1, CHUNK_BYTES - 7, CHUNK_BYTES, 3 * CHUNK_BYTES]
        {
            check(&[&vec![0; place], entry.as_slice(), b"more"].concat(), true);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
