//! The reasons for the differences from Triton, and the number of differences for each reason.

use std::collections::BTreeMap;

use super::Violation;
use super::files::File;

const PAGE: &str = "docs/differences.md";
/// The heading of the table with the counts.
const REASONS: &str = "## Reasons";

/// Rows whose reason is not in the list, and wrong counts in the list.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let page = files.iter().find(|file| file.path == PAGE);
    let found = page.map(|page| (page, mistakes(&page.text)));
    let violation = |page: &File, text| Violation { area: page.area.clone(), text };
    found
        .into_iter()
        .flat_map(|(page, texts)| texts.into_iter().map(|text| violation(page, text)))
        .collect()
}

/// The mistakes on the page.
fn mistakes(page: &str) -> Vec<String> {
    let mut listed: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    let mut rows: Vec<(usize, &str)> = Vec::new();
    let mut heading = "";
    for (number, line) in (1..).zip(page.lines()) {
        if line.starts_with("## ") {
            heading = line;
        }
        let Some(cells) = cells(line) else { continue };
        match cells.as_slice() {
            [reason, count, _] if heading == REASONS => {
                listed.insert(reason.trim_matches('*'), (number, count));
            }
            [_, _, _, reason] => rows.push((number, reason)),
            _ => {}
        }
    }
    let mut counted: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (number, cell) in rows {
        let reason = cell.split([':', ';']).next().unwrap_or_default();
        if !listed.contains_key(reason) {
            found.push(format!("{PAGE}:{number}: '{reason}' is not in the list of reasons"));
        }
        let count = counted.entry(reason).or_default();
        *count = count.saturating_add(1);
    }
    for (reason, (number, listed)) in listed {
        let count = counted.get(reason).copied().unwrap_or(0).to_string();
        if count != listed {
            found.push(format!("{PAGE}:{number}: {count} rows have the reason '{reason}'"));
        }
    }
    found
}

/// The cells of a table row; `None` for the table's header and the line below it.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inside = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let is_head = ["what | ", "reason | "].iter().any(|head| inside.starts_with(head));
    (!is_head).then(|| inside.split(" | ").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "## Reasons\n| reason | rows | meaning |\n|---|---|---|\n\
                        | **safety** | 2 | m |\n| **no hang** | 1 | m |\n## HTTP\n\
                        | what | Triton | Galatea | reason |\n|---|---|---|---|\n";

    #[test]
    fn true_numbers_pass() {
        let rows = "| a | b | c | safety |\n| a | b | c | no hang; safety |\n\
                    | a | b | c | safety: because |\n";
        assert_eq!(mistakes(&format!("{LIST}{rows}")), Vec::<String>::new());
    }

    #[test]
    fn wrong_numbers_and_unknown_reasons_are_found() {
        let rows = "| a | b | c | safety |\n| a | b | c | nicer |\n";
        let found = mistakes(&format!("{LIST}{rows}"));
        let expected = [
            "docs/differences.md:10: 'nicer' is not in the list of reasons",
            "docs/differences.md:5: 0 rows have the reason 'no hang'",
            "docs/differences.md:4: 1 rows have the reason 'safety'",
        ];
        assert_eq!(found, expected);
    }
}
