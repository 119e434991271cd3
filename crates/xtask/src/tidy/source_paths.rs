//! Source paths in the comments of sources.

use std::collections::BTreeSet;

use super::Violation;
use super::files::File;

/// Every path in backticks in a Rust comment that matches no source.
///
/// A path may be relative to the source's folder or its parent, to the folder of its module's
/// parts, to its crate or the crate's `src`, or to the root. A path may also begin with the name of
/// another crate instead of `crates/NAME/src`, as in ARCHITECTURE.md.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let sources: BTreeSet<&str> =
        files.iter().filter(|file| file.is("rs")).map(|file| file.path.as_str()).collect();
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.is("rs")) {
        for (line, path) in named(&file.text) {
            if !places(&file.path, path).iter().any(|place| sources.contains(place.as_str())) {
                let text = format!("{}:{line}: {path}: no such source", file.path);
                found.push(Violation { area: file.area.clone(), text });
            }
        }
    }
    found
}

/// The paths in backticks in a text's comments, with their lines. A path with a pattern or a word
/// in capitals stands for several.
fn named(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let comments = text.lines().enumerate().filter(|(_, line)| line.trim().starts_with("//"));
    let spans = comments.flat_map(|(index, line)| {
        line.split('`').skip(1).step_by(2).map(move |code| (index + 1, code))
    });
    let is_part =
        |one: char| one.is_ascii_lowercase() || one.is_ascii_digit() || "_-/.".contains(one);
    spans.filter(move |(_, code)| code.ends_with(".rs") && code.chars().all(is_part))
}

/// The locations that a path in a source comment may refer to.
fn places(source: &str, path: &str) -> Vec<String> {
    let folder = source.rsplit_once('/').map_or("", |(folder, _)| folder);
    let above = folder.rsplit_once('/').map_or("", |(above, _)| above);
    let module = source.strip_suffix(".rs").unwrap_or(source);
    let mut places: Vec<String> =
        [folder, above, module].iter().map(|start| format!("{start}/{path}")).collect();
    if let Some(name) = source.strip_prefix("crates/").and_then(|rest| rest.split('/').next()) {
        places.push(format!("crates/{name}/{path}"));
        places.push(format!("crates/{name}/src/{path}"));
    }
    if let Some((name, rest)) = path.split_once('/') {
        places.push(format!("crates/{name}/src/{rest}"));
    }
    places.push(path.to_owned());
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(comment: &str, expected: &[&str]) {
        let files = [
            File::new("crates/a/src/one/two.rs", &format!("//! {comment}\nfn f() {{}}\n")),
            File::new("crates/a/src/one/mod.rs", ""),
            File::new("crates/a/src/one/two/part.rs", ""),
            File::new("crates/a/src/three.rs", ""),
            File::new("crates/a/tests/four.rs", ""),
            File::new("crates/b/src/five.rs", ""),
        ];
        let found: Vec<String> = check(&files).into_iter().map(|found| found.text).collect();
        let expected: Vec<String> = expected
            .iter()
            .map(|path| format!("crates/a/src/one/two.rs:1: {path}: no such source"))
            .collect();
        assert_eq!(found, expected, "{comment}");
    }

    #[test]
    fn paths_lead_to_sources() {
        check_one("`mod.rs`, `part.rs`, `three.rs`, `tests/four.rs`, `one/two.rs`", &[]);
        check_one("`b/five.rs`, `crates/b/src/five.rs`, `a/three.rs`", &[]);
        check_one("`five.rs` and `b/three.rs`", &["five.rs", "b/three.rs"]);
        check_one("`NAME.rs`, `*.rs`, model.rs, `model.py`", &[]);
    }
}
