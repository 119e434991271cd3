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

/// Returns the number of bytes up to the end of the marker, or of the text that can't belong to it,
/// and true if the marker was found.
pub(super) fn skip_past(text: &str, marker: &str, is_last: bool) -> (usize, bool) {
    match search(text, &[(marker, ())]) {
        MarkerSearch::Found { end, .. } => (end, true),
        MarkerSearch::Missing { .. } if is_last => (text.len(), false),
        MarkerSearch::Missing { clear } => (clear, false),
    }
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
