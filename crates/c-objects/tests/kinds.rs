//! Tests that object kinds have unique numbers across all crates.
//!
//! This number is all that distinguishes the addresses of different kinds of objects. The crates
//! that define objects don't know each other, so the test searches the sources for duplicates.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeMap;
use std::path::Path;

/// Adds the kinds that a file or folder defines, together with their files.
fn collect(path: &Path, kinds: &mut BTreeMap<u16, Vec<String>>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), kinds);
        }
        return;
    }
    if path.extension().is_none_or(|extension| extension != "rs") {
        return;
    }
    let text = std::fs::read_to_string(path).unwrap();
    for definition in text.split("object!(").skip(1) {
        let (definition, _) = definition.split_once(')').unwrap();
        let (name, number) = definition.split_once(", kind ").unwrap();
        let name = name.trim();
        let number = number.trim().replace('_', "").parse().unwrap();
        kinds.entry(number).or_default().push(format!("{name} in {}", path.display()));
    }
}

#[test]
fn no_kind_has_the_number_of_another() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir(crates).unwrap() {
        let sources = entry.unwrap().path().join("src");
        if sources.is_dir() {
            collect(&sources, &mut kinds);
        }
    }
    assert!(kinds.len() > 20, "the definitions are not found: {kinds:?}");
    let twice: Vec<_> = kinds.iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(twice.is_empty(), "numbers that several kinds have: {twice:#?}");
}
