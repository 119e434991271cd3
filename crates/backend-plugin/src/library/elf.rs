//! The names of a library's dependencies, as read from its file.
//!
//! Plug-ins are linked against Triton's `libtritonserver.so`, under its original name or a mangled
//! one. This process contains the functions that plug-ins need from that library, so it suffices to
//! load a library of that name before opening the plug-in.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const DYNAMIC_SEGMENT: u32 = 2;
const LOAD_SEGMENT: u32 = 1;
const TAG_NEEDED: u64 = 1;
const TAG_STRINGS: u64 = 5;
/// A limit that no valid library reaches. A file with more entries is damaged.
const ENTRIES_MAX: u64 = 4096;
/// The maximum length of a library name in bytes. File names have at most 255.
const NAME_BYTES_MAX: usize = 512;

/// The names of the dependencies of the library at `path`. Empty if the file isn't a 64-bit
/// little-endian library, because the loader reports such errors.
pub(super) fn needed(path: &Path) -> Vec<String> {
    File::open(path).ok().and_then(|file| ElfFile { file: &file }.needed().ok()).unwrap_or_default()
}

struct ElfFile<'a> {
    file: &'a File,
}

struct ElfSegment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

impl ElfFile<'_> {
    fn needed(&self) -> io::Result<Vec<String>> {
        let identity: [u8; 6] = self.bytes(0)?;
        if identity != [0x7f, b'E', b'L', b'F', 2, 1] {
            return Ok(Vec::new());
        }
        let segments = self.segments()?;
        let Some(dynamic) = segments.iter().find(|segment| segment.kind == DYNAMIC_SEGMENT) else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        let mut strings = 0;
        for index in 0..(dynamic.size / 16).min(ENTRIES_MAX) {
            let at = damaged(dynamic.offset.checked_add(index * 16))?;
            let (tag, value) = (self.number(at)?, self.number(damaged(at.checked_add(8))?)?);
            match tag {
                0 => break,
                TAG_NEEDED => names.push(value),
                TAG_STRINGS => strings = value,
                _ => {}
            }
        }
        let holds = |segment: &&ElfSegment| {
            segment.kind == LOAD_SEGMENT
                && strings.checked_sub(segment.address).is_some_and(|inside| inside < segment.size)
        };
        let Some(load) = segments.iter().find(holds) else { return Ok(Vec::new()) };
        let strings = damaged(load.offset.checked_add(strings - load.address))?;
        names.into_iter().map(|name| self.text(damaged(strings.checked_add(name))?)).collect()
    }

    fn segments(&self) -> io::Result<Vec<ElfSegment>> {
        let table = self.number(32)?;
        let size = u64::from(u16::from_le_bytes(self.bytes(54)?));
        let count = u64::from(u16::from_le_bytes(self.bytes(56)?));
        (0..count)
            .map(|index| {
                let at = damaged(table.checked_add(index * size))?;
                let field = |offset: u64| self.number(damaged(at.checked_add(offset))?);
                Ok(ElfSegment {
                    kind: u32::from_le_bytes(self.bytes(at)?),
                    offset: field(8)?,
                    address: field(16)?,
                    size: field(32)?,
                })
            })
            .collect()
    }

    fn bytes<const N: usize>(&self, at: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    fn number(&self, at: u64) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(at)?))
    }

    fn text(&self, at: u64) -> io::Result<String> {
        let mut bytes = vec![0; NAME_BYTES_MAX];
        let read = self.file.read_at(&mut bytes, at)?;
        bytes.truncate(read);
        let end = damaged(bytes.iter().position(|byte| *byte == 0))?;
        bytes.truncate(end);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn damaged<T>(found: Option<T>) -> io::Result<T> {
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Folder, compile};

    #[test]
    fn the_names_are_read_from_a_compiled_library() {
        let folder = Folder::new();
        let needed_by = compile(&folder, "libneeded.so", "int a(void) { return 1; }", &[]);
        let path = needed_by.display().to_string();
        let source = "int a(void); int b(void) { return a(); }";
        let library = compile(&folder, "libuser.so", source, &[&path]);
        let names = needed(&library);
        assert!(names.iter().any(|name| name.ends_with("libneeded.so")), "{names:?}");
        assert!(needed(&needed_by).iter().all(|name| !name.contains("needed")));
    }

    #[test]
    fn damaged_files_need_nothing() {
        let folder = Folder::new();
        let library = compile(&folder, "libx.so", "int a(void) { return 1; }", &["-lm"]);
        let whole = std::fs::read(&library).unwrap();
        let damaged = folder.path().join("damaged.so");
        for length in (0..whole.len().min(2_000)).step_by(7) {
            std::fs::write(&damaged, &whole[..length]).unwrap();
            let _ = needed(&damaged);
        }
        for position in 0..200 {
            let mut bytes = whole.clone();
            bytes[position] ^= 0xff;
            std::fs::write(&damaged, &bytes).unwrap();
            let _ = needed(&damaged);
        }
        assert_eq!(needed(&folder.path().join("none")), Vec::<String>::new());
    }
}
