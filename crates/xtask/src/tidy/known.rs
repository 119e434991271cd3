//! Violations that are still to be mended: how many a check may find in an area.
//!
//! The list only shrinks. A check that finds fewer than its entry fails too, until the
//! entry is lowered or removed.

use std::collections::BTreeMap;

use super::Violation;

/// An area, the name of a check, and the number of its violations.
type Known = (&'static str, &'static str, usize);

const KNOWN: &[Known] = &[];

/// Every difference between what a check found and what is known.
pub(super) fn differences(check: &str, found: &[Violation]) -> Vec<String> {
    compare(KNOWN, check, found)
}

fn compare(known: &[Known], check: &str, found: &[Violation]) -> Vec<String> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for violation in found {
        let (count, _) = counts.entry(&violation.area).or_default();
        *count = count.saturating_add(1);
    }
    for (area, _, number) in known.iter().filter(|(_, name, _)| *name == check) {
        counts.entry(area).or_default().1 = *number;
    }
    let mut differences = Vec::new();
    for (area, (count, known)) in counts {
        if count > known {
            let of_area = found.iter().filter(|violation| violation.area == area);
            differences.extend(of_area.map(|violation| violation.text.clone()));
        } else if count < known {
            differences.push(format!(
                "{area}: {count} {check}, and the list in tidy/known.rs says {known}: lower it"
            ));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_must_be_exact() {
        let violation = |area: &str, text: &str| Violation { area: area.into(), text: text.into() };
        let found = [violation("a", "one"), violation("a", "two"), violation("b", "three")];
        let check = |known: &[Known]| compare(known, "words", &found);
        assert_eq!(check(&[]), ["one", "two", "three"]);
        assert_eq!(check(&[("a", "words", 2), ("b", "words", 1)]), Vec::<String>::new());
        assert_eq!(check(&[("a", "words", 1), ("b", "words", 1)]), ["one", "two"]);
        assert_eq!(
            check(&[("a", "words", 2), ("b", "words", 1), ("c", "words", 1)]),
            ["c: 0 words, and the list in tidy/known.rs says 1: lower it"]
        );
        assert_eq!(check(&[("a", "words", 2), ("b", "links", 1)]), ["three"]);
    }
}
