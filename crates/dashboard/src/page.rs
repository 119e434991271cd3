//! The page, a single document that is assembled from the files under `page/` when the server
//! starts.
//!
//! Styles and scripts are part of the document. The document's policy allows them by their hashes
//! and nothing else, so text that gets into the page can't run, and the page can't contact other
//! servers.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

const FRAME: &str = include_str!("../page/index.html");

const STYLE: &str = include_str!("../page/style.css");

/// The scripts, each after those that it uses. They are combined into one module.
const SCRIPTS: [&str; 9] = [
    include_str!("../page/format.js"),
    include_str!("../page/model.js"),
    include_str!("../page/stream.js"),
    include_str!("../page/draw.js"),
    include_str!("../page/timeline.js"),
    include_str!("../page/cards.js"),
    include_str!("../page/residency.js"),
    include_str!("../page/form.js"),
    include_str!("../page/main.js"),
];

/// The document, along with the values that its HTTP response needs.
#[derive(Clone, Debug)]
pub struct Page {
    html: Bytes,
    gzip: Bytes,
    policy: String,
    tag: String,
}

impl Page {
    /// Assembles the page.
    #[must_use]
    pub fn new() -> Self {
        let script = SCRIPTS.concat();
        let html = FRAME.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", &script);
        let policy = policy(&script, STYLE);
        let tag = format!("\"{}\"", hex(Sha256::digest(&html).get(..16).unwrap_or_default()));
        let html = Bytes::from(html);
        Self { gzip: gzip(&html), html, policy, tag }
    }

    /// The document.
    #[must_use]
    pub const fn html(&self) -> &Bytes {
        &self.html
    }

    /// The document, compressed.
    #[must_use]
    pub const fn gzip(&self) -> &Bytes {
        &self.gzip
    }

    /// Returns the value of the header `Content-Security-Policy`.
    #[must_use]
    pub fn content_security_policy(&self) -> &str {
        &self.policy
    }

    /// Returns the value of the header `ETag`.
    #[must_use]
    pub fn etag(&self) -> &str {
        &self.tag
    }
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

/// Creates a policy that allows only this script, this style, and requests to the same server.
fn policy(script: &str, style: &str) -> String {
    let hash = |text: &str| format!("'sha256-{}'", base64(&Sha256::digest(text)));
    format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(script),
        hash(style)
    )
}

fn gzip(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().map(Bytes::from).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes bytes as base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or_default());
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for (place, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let index = usize::try_from((bits >> shift) & 63).unwrap_or_default();
            let digit = DIGITS.get(index).filter(|_| place <= group.len());
            text.push(digit.map_or('=', |digit| char::from(*digit)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn base_64_has_padding() {
        let encoded = ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes()));
        assert_eq!(encoded, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }

    #[test]
    fn the_page_is_whole_and_refers_to_nothing() {
        let page = Page::new();
        let html = std::str::from_utf8(page.html()).unwrap();
        assert!(!html.contains("/*STYLE*/") && !html.contains("/*SCRIPT*/"));
        assert_eq!(html.matches("<script").count(), 1);
        assert_eq!(html.matches("</script>").count(), 1);
        assert_eq!(html.matches("<style").count(), 1);
        for outside in ["http://", "https://", "src=", "@import", "url(", "style=\"", " onclick"] {
            let without_names = html.replace("http://www.w3.org/2000/svg", "");
            assert!(!without_names.contains(outside), "{outside}");
        }
    }

    #[test]
    fn texts_never_become_html() {
        for script in SCRIPTS {
            for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!script.contains(sink), "{sink}");
            }
        }
    }

    #[test]
    fn the_policy_has_the_hashes_of_what_the_browser_sees() {
        let page = Page::new();
        let html = std::str::from_utf8(page.html()).unwrap();
        let between = |begin: &str, end: &str| {
            let (_, rest) = html.split_once(begin).unwrap();
            rest.split_once(end).unwrap().0.to_owned()
        };
        let script = between("<script type=\"module\">", "</script>");
        let style = between("<style>", "</style>");
        assert_eq!(page.content_security_policy(), policy(&script, &style));
    }

    #[test]
    fn the_compressed_page_is_the_page() {
        let page = Page::new();
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&page.gzip()[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, page.html()[..]);
        assert!(page.gzip().len() < 24 << 10, "{}", page.gzip().len());
    }
}
