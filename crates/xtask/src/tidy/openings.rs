//! The first words of doc comments.
//!
//! A doc comment opens with its subject's noun or verb: a clause (`What is kept of requests`) hides
//! the noun that a reader looks for (`Recorded requests`).

use super::Violation;
use super::files::File;

/// Words that open a clause.
const CLAUSES: [&str; 7] = ["What", "Whether", "How", "Where", "Which", "Who", "Whose"];

/// Every doc comment that opens with a clause.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    files.iter().filter(|file| file.is("rs")).flat_map(clauses).collect()
}

fn clauses(file: &File) -> Vec<Violation> {
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| lines.get(before));
        let is_first = before.is_none_or(|before| content(before).is_none_or(str::is_empty));
        let first = content(line).and_then(|text| text.split_whitespace().next());
        let first = first.map(|word| word.trim_end_matches(|one: char| !one.is_alphanumeric()));
        if let Some(word) = first.filter(|word| is_first && CLAUSES.contains(word)) {
            let text = format!("{}:{}: a comment that opens with '{word}'", file.path, index + 1);
            found.push(Violation { area: file.area.clone(), text });
        }
    }
    found
}

/// The text of a doc comment line.
fn content(line: &str) -> Option<&str> {
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_opens_with_a_noun_or_a_verb() {
        let text = "//! What this is.\n//!\n//! Where it is.\n\n/// Sums, of\n/// What is there.\n\
                    /// # Errors\nfn a() {}\n// How it works.\nfn b() {}\n    /// Whether.\n";
        let found = check(&[File::new("crates/measure/src/a.rs", text)]);
        let lines: Vec<&str> = found.iter().map(|found| found.text.as_str()).collect();
        assert_eq!(
            lines,
            [
                "crates/measure/src/a.rs:1: a comment that opens with 'What'",
                "crates/measure/src/a.rs:3: a comment that opens with 'Where'",
                "crates/measure/src/a.rs:11: a comment that opens with 'Whether'",
            ]
        );
    }
}
