//! The reasons for the differences from Triton.

use std::collections::BTreeMap;

use super::Violation;
use super::files::File;

const PAGE: &str = "docs/differences.md";
/// The heading of the list of reasons.
const REASONS: &str = "## Reasons";

/// Rows whose reason is not in the list, and reasons in the list that no row has.
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
    let mut listed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut rows: Vec<(usize, &str)> = Vec::new();
    let mut heading = "";
    for (number, line) in (1..).zip(page.lines()) {
        if line.starts_with("## ") {
            heading = line;
        }
        let Some(cells) = cells(line) else { continue };
        match cells.as_slice() {
            [reason, _] if heading == REASONS => {
                listed.insert(reason.trim_matches('*'), number);
            }
            [_, _, _, cell] => {
                rows.push((number, cell.split([':', ';']).next().unwrap_or_default()));
            }
            _ => {}
        }
    }
    let unlisted = rows.iter().filter(|(_, reason)| !listed.contains_key(reason));
    let unused =
        listed.iter().filter(|(listed, _)| rows.iter().all(|(_, reason)| reason != *listed));
    unlisted
        .map(|(number, reason)| {
            format!("{PAGE}:{number}: '{reason}' is not in the list of reasons")
        })
        .chain(
            unused.map(|(reason, number)| {
                format!("{PAGE}:{number}: no row has the reason '{reason}'")
            }),
        )
        .collect()
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

    const LIST: &str = "## Reasons\n| reason | meaning |\n|---|---|\n\
                        | **safety** | m |\n| **no hang** | m |\n## HTTP\n\
                        | what | Triton | Galatea | reason |\n|---|---|---|---|\n";

    #[test]
    fn rows_may_have_several_reasons_or_an_explanation() {
        let rows = "| a | b | c | safety |\n| a | b | c | no hang; safety |\n\
                    | a | b | c | safety: because |\n";
        assert_eq!(mistakes(&format!("{LIST}{rows}")), Vec::<String>::new());
    }

    #[test]
    fn unlisted_and_unused_reasons_are_found() {
        let rows = "| a | b | c | safety |\n| a | b | c | nicer |\n";
        let found = mistakes(&format!("{LIST}{rows}"));
        let expected = [
            "docs/differences.md:10: 'nicer' is not in the list of reasons",
            "docs/differences.md:5: no row has the reason 'no hang'",
        ];
        assert_eq!(found, expected);
    }
}
