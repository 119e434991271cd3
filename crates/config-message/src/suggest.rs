//! Suggests a known name for an unknown one.

use crate::BoundedText;

/// The maximum number of candidates to compare: a configuration may have any number of tensors, and
/// no enumeration or message in the schema has more entries than this.
const CANDIDATES_MAX: usize = 256;

/// The maximum length of a candidate to compare, in bytes.
const CANDIDATE_BYTES_MAX: usize = 256;

/// The candidate nearest to `name`, if it is near enough for a typo.
#[must_use]
pub fn nearest_name<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<BoundedText> {
    // A name far longer than any candidate can't be one of them, and computing its distance is
    // expensive.
    if name.len() > 64 {
        return None;
    }
    let limit = name.chars().count().div_ceil(3).max(1);
    candidates
        .take(CANDIDATES_MAX)
        .filter(|candidate| candidate.len() <= CANDIDATE_BYTES_MAX)
        .map(|candidate| (distance(&fold(name), &fold(candidate)), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| BoundedText::truncated(candidate))
}

/// The enumeration value with this name after its prefix, such as `TYPE_FP32` for `FP32`, or else
/// the nearest value.
pub fn nearest_enum_value(name: &str, values: &[String]) -> Option<BoundedText> {
    let tail = format!("_{}", name.to_ascii_uppercase());
    let prefixed = values
        .iter()
        .find(|value| value.ends_with(&tail))
        .map(|value| BoundedText::truncated(value));
    prefixed.or_else(|| nearest_name(name, values.iter().map(String::as_str)))
}

/// Removes differences in case and underscores, which are the most common.
fn fold(name: &str) -> Vec<char> {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// The number of insertions, deletions and replacements between two names.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i.saturating_add(1);
        for (cell, to) in row.iter_mut().skip(1).zip(b) {
            let replace = diagonal.saturating_add(usize::from(from != to));
            diagonal = *cell;
            left = replace.min(diagonal.saturating_add(1)).min(left.saturating_add(1));
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i.saturating_add(1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, expected: Option<&str>) {
        let fields = ["max_batch_size", "input", "output", "instance_group", "name"];
        assert_eq!(nearest_name(name, fields.into_iter()).as_deref(), expected, "{name}");
    }

    #[test]
    fn typing_errors_are_recognized_and_other_names_are_not() {
        check("maxBatchSize", Some("max_batch_size"));
        check("max_batchsize", Some("max_batch_size"));
        check("inputs", Some("input"));
        check("instance_groups", Some("instance_group"));
        check("nmae", Some("name"));
        check("colour", None);
        check("", None);
        check(&"a".repeat(1000), None);
    }

    #[test]
    fn distances_are_edit_distances() {
        let measure = |a: &str, b: &str| distance(&fold(a), &fold(b));
        assert_eq!(measure("kitten", "sitting"), 3);
        assert_eq!(measure("", "abc"), 3);
        assert_eq!(measure("abc", ""), 3);
        assert_eq!(measure("same", "same"), 0);
    }
}
