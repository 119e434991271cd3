//! An empty shared library, which has only a name.

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

const HEADER: u64 = 64;
const SEGMENT: u64 = 56;
const SYMBOL: u64 = 24;
const PAGE: u64 = 0x1_0000;

/// The contents of a shared library without functions, whose name is `soname`. The loader considers
/// a library of that name as loaded once it has loaded this one.
///
/// The library consists of headers, two segments, a symbol table with one null symbol, a hash
/// table, the name, and the dynamic section.
#[must_use]
pub fn empty_library(soname: &str) -> Vec<u8> {
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
