//! Type names: a name that many crates or several modules define says nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::files::File;

/// The maximum number of crates that may define a type with the same name.
const CRATES_MAX: usize = 3;

/// Names of types that may occur in any number of crates, each with the reason.
const ALLOWED: [(&str, &str); 1] =
    [("Error", "each crate has errors of its own, and the crate is part of the path")];

/// The maximum number of modules that may define a type with the same name, if at least one of the
/// types is private: the third needs a qualifier.
const MODULES_MAX: usize = 2;

/// Every type name that too many crates or modules define.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let sources = files.iter().filter(|file| file.path.starts_with("crates/") && file.is("rs"));
    let sources: Vec<&File> = sources.filter(|file| !file.is_test()).collect();
    let mut found = in_crates(&sources);
    found.extend(in_modules(&sources));
    found
}

/// The modules that define a name.
#[derive(Default)]
struct Definitions<'a> {
    modules: BTreeSet<&'a str>,
    is_private: bool,
}

/// Every private type name that too many modules define.
fn in_modules(sources: &[&File]) -> Vec<Violation> {
    let mut names: BTreeMap<String, Definitions<'_>> = BTreeMap::new();
    for file in sources {
        for (name, is_private) in all_types(&file.production_code()) {
            let definitions = names.entry(name.to_owned()).or_default();
            definitions.modules.insert(&file.path);
            definitions.is_private |= is_private;
        }
    }
    names.retain(|_, found| found.is_private && found.modules.len() > MODULES_MAX);
    let violation = |(name, Definitions { modules, .. }): (&String, &Definitions<'_>)| {
        let list: Vec<&str> = modules.iter().copied().collect();
        let text = format!("private type {name} is one of {}: {}", list.len(), list.join(", "));
        Violation { area: String::from("names"), text }
    };
    names.iter().map(violation).collect()
}

/// Every public type name that too many crates define.
fn in_crates(sources: &[&File]) -> Vec<Violation> {
    let mut crates: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for file in sources {
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

/// The names of the types that a source defines, excluding nested types, and whether they are
/// private.
fn all_types(code: &str) -> impl Iterator<Item = (&str, bool)> {
    code.lines().filter_map(|line| {
        let is_private = !line.starts_with("pub");
        let mut words =
            line.split(' ').skip_while(|word| word.starts_with("pub") || word.ends_with(')'));
        let is_definition = matches!(words.next()?, "struct" | "enum" | "trait" | "union" | "type");
        let name = words.next().filter(|_| is_definition)?;
        let name = name.split(|character: char| !character.is_alphanumeric() && character != '_');
        Some((name.into_iter().next()?, is_private))
    })
}

/// The names of the public types in a source. Types that are private to a file may have short
/// names.
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
        let sources: Vec<&File> = files.iter().filter(|file| !file.is_test()).collect();
        let found: Vec<String> = in_crates(&sources).into_iter().map(|found| found.text).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn definitions_are_found() {
        let code = "pub(in crate::a) struct A<T> {\npub enum B {\n    type C = u8;\npub type D = u8;\n\
                    pub trait E: F {\nlet struct_g = 1;\n    pub struct H;\nstruct I;\n";
        assert_eq!(types(code).collect::<Vec<_>>(), ["A", "B", "D", "E", "H"]);
    }

    #[test]
    fn a_private_name_in_three_modules_is_one_too_many() {
        let three = [
            ("crates/a/src/x.rs", "struct State;\npub(super) struct Other;"),
            ("crates/a/src/y.rs", "pub struct State<T>(T);\npub struct Other;"),
            ("crates/b/src/x.rs", "pub(crate) enum State {}\npub struct Other;\n    struct Third;"),
        ];
        let files = three.map(|(path, text)| File::new(path, text));
        let sources: Vec<&File> = files.iter().collect();
        let check = |sources: &[&File]| -> Vec<String> {
            in_modules(sources).into_iter().map(|found| found.text).collect()
        };
        let paths = "crates/a/src/x.rs, crates/a/src/y.rs, crates/b/src/x.rs";
        assert_eq!(check(&sources), [format!("private type State is one of 3: {paths}")]);
        assert!(check(&sources[1..]).is_empty());
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
