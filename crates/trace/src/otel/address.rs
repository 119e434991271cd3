//! Collector addresses.

use std::fmt;

/// A collector's address, parsed from a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorAddress {
    /// True if the collector is reached over TLS.
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: String,
}

/// The error for a string that is not an HTTP URL.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MalformedUrl;

impl fmt::Display for MalformedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the URL of the collector is malformed")
    }
}

impl std::error::Error for MalformedUrl {}

impl CollectorAddress {
    /// Parses a URL. The default scheme is HTTP.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is malformed or its scheme is neither `http` nor `https`.
    pub fn parse(url: &str) -> Result<Self, MalformedUrl> {
        let (is_tls, rest) = match url.split_once("://") {
            None => (false, url),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some(_) => return Err(MalformedUrl),
        };
        let default_port = if is_tls { 443 } else { 80 };
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let (authority, path) = match rest.find('/') {
            Some(end) => rest.split_at(end),
            None => (rest, "/"),
        };
        let (host, port) = match authority.rsplit_once(':') {
            // The colons are part of a bracketed address.
            Some((_, behind)) if behind.ends_with(']') => (authority, default_port),
            Some((host, port)) => (host, port.parse().map_err(|_| MalformedUrl)?),
            None => (authority, default_port),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains('@') || !is_visible(host) || !is_visible(path) {
            return Err(MalformedUrl);
        }
        let address = Self { is_tls, host: host.to_owned(), port, path: path.to_owned() };
        address.to_string().parse::<http::Uri>().map_err(|_| MalformedUrl)?;
        Ok(address)
    }

    /// The host and port, in the format of a `Host` header.
    pub(super) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for CollectorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (url, expected) in [
            ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
            ("localhost:1/x", "http://localhost:1/x"),
            ("HTTP://a", "http://a:80/"),
            ("https://a/x", "https://a:443/x"),
            ("http://[::1]:5/x", "http://[::1]:5/x"),
            ("http://[::1]/x", "http://[::1]:80/x"),
        ] {
            let parsed = CollectorAddress::parse(url).map(|address| address.to_string());
            assert_eq!(parsed.as_deref(), Ok(expected), "{url}");
        }
        for url in
            ["", "http://", "ftp://a", "a:x/", "a:99999/", "http://u@a/", "a/ b", "a/<", "a\r\nb"]
        {
            assert_eq!(CollectorAddress::parse(url), Err(MalformedUrl), "{url}");
        }
    }
}
