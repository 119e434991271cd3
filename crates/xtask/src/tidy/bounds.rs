//! The server's bounds: constants whose names end with `_MAX`.
//!
//! A bound is defined next to the code that uses it, so no file lists all bounds. This module finds
//! them, prints them as a table (`cargo xtask bounds`) and requires each bound to have a comment.

use std::fmt::Write as _;

use super::Violation;
use super::files::{self, File};

/// Folders of `crates` that contribute nothing to the server.
const BESIDE: [&str; 7] = ["abi", "crc-fast", "fakes", "load", "sim", "simulate", "xtask"];

/// A constant that bounds something.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    /// The crate.
    area: String,
    /// The bound's file and line.
    place: String,
    name: String,
    /// The value as written in the source.
    value: String,
    /// The first paragraph of the bound's comment, on one line.
    meaning: String,
}

/// Bounds without a comment.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let is_silent = |bound: &Bound| bound.meaning.is_empty();
    let silent = all(files).into_iter().filter(is_silent);
    let violation = |bound: Bound| Violation {
        text: format!("{}: '{}' doesn't say what it bounds", bound.place, bound.name),
        area: bound.area,
    };
    silent.map(violation).collect()
}

/// The task: prints all bounds as a Markdown table.
pub(crate) fn print() -> Result<(), String> {
    println!("{}", table(&all(&files::all()?)));
    Ok(())
}

fn table(bounds: &[Bound]) -> String {
    let mut text = String::from("| crate | bound | value | meaning |\n|---|---|---|---|\n");
    for Bound { area, name, value, meaning, .. } in bounds {
        // Writing to a string can't fail.
        let _ = writeln!(text, "| `{area}` | `{name}` | `{value}` | {meaning} |");
    }
    text
}

fn all(files: &[File]) -> Vec<Bound> {
    let is_source = |file: &&File| {
        file.is("rs") && file.path.starts_with("crates/") && file.path.contains("/src/")
    };
    let is_of_server = |file: &&File| !file.is_test() && !BESIDE.contains(&file.area.as_str());
    files.iter().filter(is_source).filter(is_of_server).flat_map(bounds).collect()
}

fn bounds(file: &File) -> Vec<Bound> {
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if *line == "mod tests {" {
            break;
        }
        let Some(name) = name_of_bound(line) else { continue };
        let (before, from) = lines.split_at(index);
        found.push(Bound {
            area: file.area.clone(),
            place: format!("{}:{}", file.path, index.saturating_add(1)),
            name: name.to_owned(),
            value: value(from),
            meaning: meaning(before),
        });
    }
    found
}

/// The name of the bound that a line declares.
fn name_of_bound(line: &str) -> Option<&str> {
    let visible = line.strip_prefix("pub").map(|rest| match rest.split_once(") ") {
        Some((scope, rest)) if scope.starts_with('(') => rest,
        _ => rest.trim_start(),
    });
    let declaration = visible.unwrap_or(line).strip_prefix("const ")?;
    let (name, _) = declaration.split_once(": ")?;
    (name == "MAX" || name.ends_with("_MAX")).then_some(name)
}

/// The constant's expression, which begins on the first line.
fn value(lines: &[&str]) -> String {
    let end = lines.iter().position(|line| line.ends_with(';')).unwrap_or_default();
    let declaration = lines.get(..=end).unwrap_or_default().join(" ");
    let value = declaration.split_once('=').map(|(_, value)| value.trim()).unwrap_or_default();
    value.trim_end_matches(';').to_owned()
}

/// The first paragraph of the comment at the end of these lines.
fn meaning(before: &[&str]) -> String {
    let is_attribute = |line: &&&str| line.starts_with("#[");
    let above = before.iter().rev().skip_while(is_attribute);
    let mut comment: Vec<&str> = above.map_while(|line| line.strip_prefix("///")).collect();
    comment.reverse();
    let first = comment.iter().map(|line| line.trim()).take_while(|line| !line.is_empty());
    first.collect::<Vec<&str>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_found_with_their_values_and_meanings() {
        let text = "/// The longest name,\n/// in bytes.\n///\n/// More.\npub(crate) const NAME_MAX: u8 = 1 << 3;\n\
                    const OTHER: u8 = 2;\nconst WAIT_MAX: Duration =\n    from_secs(2);\n\
                    mod tests {\n    const TESTED_MAX: u8 = 1;\n}\n";
        let files = [
            File::new("crates/http/src/a.rs", text),
            File::new("crates/sim/src/a.rs", text),
            File::new("crates/http/src/a_tests.rs", text),
        ];
        assert_eq!(
            table(&all(&files)),
            "| crate | bound | value | meaning |\n|---|---|---|---|\n\
             | `http` | `NAME_MAX` | `1 << 3` | The longest name, in bytes. |\n\
             | `http` | `WAIT_MAX` | `from_secs(2)` |  |\n"
        );
        let silent: Vec<String> = check(&files).into_iter().map(|found| found.text).collect();
        assert_eq!(silent, ["crates/http/src/a.rs:7: 'WAIT_MAX' doesn't say what it bounds"]);
    }

    /// Also shows the table, with `--nocapture`.
    #[test]
    fn the_bounds_of_the_server_have_a_meaning() {
        let files = files::all().unwrap();
        println!("{}", table(&all(&files)));
        let silent: Vec<String> = check(&files).into_iter().map(|found| found.text).collect();
        assert_eq!(silent, Vec::<String>::new());
        assert!(all(&files).len() > 100);
    }
}
