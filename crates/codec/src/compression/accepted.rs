//! Selects the coding of a response by the header `Accept-Encoding`.

use super::ContentCoding;
use super::weight::leading_number;

/// Returns the coding for the response to a client that accepts `header`. `None` leaves the
/// response unchanged.
///
/// The heaviest of `gzip`, `deflate` and `identity` is chosen, and among equals the first. Like
/// Triton, the function compares names case-sensitively, accepts `;q=` only in this spelling, and
/// ignores entries that it does not understand, including `*`.
#[must_use]
pub fn accepted_coding(header: &[u8]) -> Option<ContentCoding> {
    let mut chosen = None;
    let mut weight_of_chosen = 0.0;
    for entry in header.split(|byte| *byte == b',') {
        let Some((name, weight)) = weighted(entry) else { continue };
        let coding = ContentCoding::named(name);
        if (coding.is_some() || name == b"identity") && weight > weight_of_chosen {
            (chosen, weight_of_chosen) = (coding, weight);
        }
    }
    chosen
}

/// Returns the name and weight of an entry, or `None` if it has no name or its weight is not a
/// number.
fn weighted(entry: &[u8]) -> Option<(&[u8], f64)> {
    const MARK: &[u8] = b";q=";
    let start = entry.iter().position(|byte| *byte != b' ')?;
    let Some(mark) = entry.windows(MARK.len()).position(|window| window == MARK) else {
        return Some((entry.get(start..)?, 1.0));
    };
    let name = entry.get(start..mark).filter(|name| !name.is_empty())?;
    let digits = entry.get(mark.checked_add(MARK.len())?..)?;
    Some((name, leading_number(digits)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &str, expected: Option<ContentCoding>) {
        assert_eq!(accepted_coding(header.as_bytes()), expected, "{header}");
    }

    #[test]
    fn the_heaviest_coding_is_chosen_and_of_several_the_first() {
        let (gzip, deflate) = (Some(ContentCoding::Gzip), Some(ContentCoding::Deflate));
        check("", None);
        check("gzip", gzip);
        check("deflate, gzip", deflate);
        check("deflate;q=0.5, gzip;q=0.6", gzip);
        check("gzip;q=0.5,deflate;q=0.5", gzip);
        check("identity, gzip", None);
        check("identity;q=0.4, gzip;q=0.5", gzip);
        check("br;q=1.0, gzip;q=0.8", gzip);
        check("gzip;q=0", None);
        check("gzip;q=-1", None);
        check("gzip;q=0.5, deflate;q=5", deflate);
    }

    #[test]
    fn what_is_not_understood_is_ignored() {
        let gzip = Some(ContentCoding::Gzip);
        for header in ["*", "GZIP", "gzip ;q=1", "gzip; q=1", "gzip;level=1", ";q=1", ",", "\tgzip"]
        {
            check(header, None);
        }
        for header in ["gzip;q=", "gzip;q=x", "gzip;q=nan", "gzip;q=1e9999", "gzip;q=1e-9999"] {
            check(header, None);
        }
        check(",,gzip", gzip);
        check("deflate;q=1e9999, gzip;q=0.1", gzip);
        check("gzip;q=0.5;q=0.1", gzip);
        check("gzip;q=1,5", gzip);
    }
}
