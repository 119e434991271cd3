//! Detects truncated shared libraries from their ELF headers.
//!
//! The dynamic loader maps the segments that the header lists without checking the file's length,
//! and the process crashes when it touches a missing page. A library that was only partially copied
//! must not bring down the server.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const LOAD_SEGMENT: u32 = 1;

/// Returns true if the file at `path` ends before the end of a segment that the loader maps.
/// Returns false if the file isn't a 64-bit little-endian ELF library, because the loader reports
/// such errors.
#[must_use]
pub fn is_library_truncated(path: &Path) -> bool {
    File::open(path).and_then(|file| is_truncated(&file)).unwrap_or(false)
}

fn is_truncated(file: &File) -> io::Result<bool> {
    let identity: [u8; 6] = bytes(file, 0)?;
    if identity != [0x7f, b'E', b'L', b'F', 2, 1] {
        return Ok(false);
    }
    let length = file.metadata()?.len();
    let table = number(file, 32)?;
    let size = u64::from(u16::from_le_bytes(bytes(file, 54)?));
    let count = u64::from(u16::from_le_bytes(bytes(file, 56)?));
    for index in 0..count {
        let Some(at) = table.checked_add(index * size) else { return Ok(true) };
        if u32::from_le_bytes(bytes(file, at)?) != LOAD_SEGMENT {
            continue;
        }
        let (offset, in_file) = (number(file, at + 8)?, number(file, at + 32)?);
        if offset.checked_add(in_file).is_none_or(|end| end > length) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn bytes<const N: usize>(file: &File, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

fn number(file: &File, at: u64) -> io::Result<u64> {
    Ok(u64::from_le_bytes(bytes(file, at)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test executable is itself an ELF file.
    #[test]
    fn a_truncated_library_is_detected() {
        let own = std::env::current_exe().unwrap();
        assert!(!is_library_truncated(&own));
        let name = format!("galatea-shared-library-{}", std::process::id());
        let copy = std::env::temp_dir().join(name);
        let mut beginning = [0; 4096];
        File::open(&own).unwrap().read_exact_at(&mut beginning, 0).unwrap();
        std::fs::write(&copy, beginning).unwrap();
        let of_header = is_library_truncated(&copy);
        std::fs::write(&copy, "text").unwrap();
        let of_text = is_library_truncated(&copy);
        std::fs::remove_file(&copy).unwrap();
        assert!(of_header && !of_text);
        assert!(!is_library_truncated(Path::new("/nowhere/none.so")));
    }
}
