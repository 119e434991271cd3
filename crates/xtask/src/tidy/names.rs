//! The names of types: one that many crates define says nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::files::File;

/// The number of crates that may define a type of the same name.
const CRATES_MAX: usize = 3;

/// Names that may be in more crates, and why.
const ALLOWED: [(&str, &str); 1] =
    [("Error", "each crate has errors of its own, and the crate is part of the path")];

/// Every name that too many crates give to a type.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let mut crates: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let sources = files.iter().filter(|file| file.path.starts_with("crates/") && file.is("rs"));
    for file in sources.filter(|file| !file.is_test()) {
        for name in types(&file.production_code()) {
            crates.entry(name.to_owned()).or_default().insert(&file.area);
        }
    }
    crates.retain(|name, areas| {
        areas.len() > CRATES_MAX && !ALLOWED.iter().any(|(allowed, _)| allowed == name)
    });
    let violations = crates.iter().map(|(name, areas)| {
        let list: Vec<&str> = areas.iter().copied().collect();
        let text = format!("type {name} is defined in {} crates: {}", areas.len(), list.join(", "));
        Violation { area: String::from("names"), text }
    });
    violations.collect()
}

/// The names of the types that a source defines for others. What is private to a file
/// may have a short name.
fn types(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let is_nested = line.starts_with(' ');
        let mut words = line.split_whitespace();
        let mut word = words.next().filter(|first| first.starts_with("pub"))?;
        while word == "pub" || word.starts_with("pub(") || word.ends_with(')') {
            word = words.next()?;
        }
        // A nested `type` belongs to a trait.
        let defines =
            matches!(word, "struct" | "enum" | "trait" | "union") || (word == "type" && !is_nested);
        let name = words.next().filter(|_| defines)?;
        name.split(|character: char| !character.is_alphanumeric() && character != '_').next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_names(paths: &[&str], text: &str, expected: &[&str]) {
        let files: Vec<File> = paths.iter().map(|path| File::new(path, text)).collect();
        let found: Vec<String> = check(&files).into_iter().map(|found| found.text).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn definitions_are_found() {
        let code = "pub(in crate::a) struct A<T> {\npub enum B {\n    type C = u8;\npub type D = u8;\n\
                    pub trait E: F {\nlet struct_g = 1;\n    pub struct H;\nstruct I;\n";
        assert_eq!(types(code).collect::<Vec<_>>(), ["A", "B", "D", "E", "H"]);
    }

    #[test]
    fn a_name_in_four_crates_is_one_too_many() {
        let four =
            ["crates/a/src/x.rs", "crates/b/src/x.rs", "crates/c/src/x.rs", "crates/d/src/x.rs"];
        let expected = ["type State is defined in 4 crates: a, b, c, d"];
        check_names(&four, "pub struct State;", &expected);
        check_names(&four, "pub struct Error;", &[]);
        check_names(&four[1..], "pub struct State;", &[]);
        check_names(&four, "#[cfg(test)]\nmod tests {\n    pub struct State;\n}", &[]);
    }
}
