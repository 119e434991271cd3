//! Empty libraries that only provide a name.
//!
//! The loader searches for each library that a plug-in requires, unless a library with that name is
//! already loaded. This module therefore builds an empty library in memory and loads it under the
//! required name. The plug-in's functions are then resolved in this executable.

use std::fs::File;
use std::io::Write;
use std::os::fd::IntoRawFd;

use rustix::fs::{MemfdFlags, memfd_create};

/// Permanently loads an empty library named `soname`.
pub(super) fn provide(soname: &str) -> Result<(), String> {
    let descriptor = memfd_create("empty library", MemfdFlags::CLOEXEC)
        .map_err(|error| format!("no memory for a library: {error}"))?;
    let mut file = File::from(descriptor);
    file.write_all(&image(soname)).map_err(|error| error.to_string())?;
    // The file is left open: the loader identifies libraries by path, so no path may be reused.
    let path = format!("/proc/self/fd/{}", file.into_raw_fd());
    // SAFETY: the library has no code, so opening it runs none.
    let library = unsafe { libloading::Library::new(path) };
    // The library must stay loaded as long as plug-ins do, which is permanently.
    std::mem::forget(library.map_err(|error| error.to_string())?);
    Ok(())
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

const HEADER: u64 = 64;
const SEGMENT: u64 = 56;
const SYMBOL: u64 = 24;
const PAGE: u64 = 0x1_0000;

/// A shared library without functions. It consists of headers, two segments, a symbol table with
/// one null symbol, a hash table, the name, and the dynamic section.
fn image(soname: &str) -> Vec<u8> {
    let mut strings = vec![0];
    strings.extend_from_slice(soname.as_bytes());
    strings.push(0);
    strings.resize(strings.len().next_multiple_of(8), 0);
    let strings_size = strings.len() as u64;
    let symbols = HEADER + 2 * SEGMENT;
    let hash = symbols + SYMBOL;
    let names = hash + 24;
    let dynamic = names + strings_size;
    let entries: [(u64, u64); 7] = [
        (14, 1), // the library's name, in the strings
        (4, hash),
        (5, names),
        (6, symbols),
        (10, strings_size),
        (11, SYMBOL),
        (0, 0),
    ];
    let dynamic_size = 16 * entries.len() as u64;
    let size = dynamic + dynamic_size;

    let mut image = Vec::new();
    image.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
    push(&mut image, &[0]);
    for half in [3, MACHINE] {
        image.extend_from_slice(&half.to_le_bytes());
    }
    image.extend_from_slice(&1_u32.to_le_bytes());
    push(&mut image, &[0, HEADER, 0]);
    image.extend_from_slice(&0_u32.to_le_bytes());
    for half in [64, 56, 2, 64, 0, 0_u16] {
        image.extend_from_slice(&half.to_le_bytes());
    }
    // Both segments are writable because the loader records its relocations there.
    for (kind, start, length) in [(1_u32, 0, size), (2, dynamic, dynamic_size)] {
        image.extend_from_slice(&kind.to_le_bytes());
        image.extend_from_slice(&6_u32.to_le_bytes());
        let alignment = if kind == 1 { PAGE } else { 8 };
        push(&mut image, &[start, start, start, length, length, alignment]);
    }
    push(&mut image, &[0; 3]);
    for word in [1_u32, 1, 0, 0, 0, 0] {
        image.extend_from_slice(&word.to_le_bytes());
    }
    image.extend_from_slice(&strings);
    for (tag, value) in entries {
        push(&mut image, &[tag, value]);
    }
    image
}

fn push(image: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        image.extend_from_slice(&number.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Folder, compile};

    #[test]
    fn a_library_that_needs_the_name_can_be_opened() {
        let folder = Folder::new();
        let place = folder.path().display().to_string();
        let names = ["libgalatea_one.so", "libgalatea_two.so"];
        for name in names {
            let source = format!("int a{}(void) {{ return 1; }}", name.len());
            compile(&folder, name, &source, &[&format!("-Wl,-soname,{name}")]);
        }
        let flags = ["-Wl,--no-as-needed", "-L", &place, "-lgalatea_one", "-lgalatea_two"];
        let library = compile(&folder, "libuser.so", "int b(void) { return 2; }", &flags);
        for name in names {
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
        for name in names {
            // SAFETY: opening these libraries executes no code.
            let error = unsafe { libloading::Library::new(&library) }.unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains(name), "{cause}");
            provide(name).unwrap();
        }
        // SAFETY: as above.
        unsafe { libloading::Library::new(&library) }.unwrap();
    }
}
