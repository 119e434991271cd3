//! The search for markers in a text whose end may be missing.

/// The result of a search.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum MarkerSearch<M> {
    /// The first marker, and its place.
    Found { start: usize, end: usize, marker: M },
    /// There is no marker, but one may begin after `clear` bytes.
    Missing { clear: usize },
}

/// Finds the first of these markers, each of which begins with `<`.
pub(super) fn search<M: Copy>(text: &str, markers: &[(&str, M)]) -> MarkerSearch<M> {
    for (start, _) in text.match_indices('<') {
        let rest = text.get(start..).unwrap_or_default();
        if let Some((word, marker)) = markers.iter().find(|(word, _)| rest.starts_with(word)) {
            return MarkerSearch::Found {
                start,
                end: start.saturating_add(word.len()),
                marker: *marker,
            };
        }
        if markers.iter().any(|(word, _)| word.starts_with(rest)) {
            return MarkerSearch::Missing { clear: start };
        }
    }
    MarkerSearch::Missing { clear: text.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_marker_is_no_text() {
        let find = |text| search(text, &[("<a>", 1), ("<ab>", 2)]);
        assert_eq!(find("x<ab>"), MarkerSearch::Found { start: 1, end: 5, marker: 2 });
        assert_eq!(find("<<a><ab>"), MarkerSearch::Found { start: 1, end: 4, marker: 1 });
        assert_eq!(find("é<"), MarkerSearch::Missing { clear: 2 });
        assert_eq!(find("<a<a"), MarkerSearch::Missing { clear: 2 });
        assert_eq!(find("<b>é"), MarkerSearch::Missing { clear: 5 });
    }
}
