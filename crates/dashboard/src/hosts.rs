//! The host names under which the page is served.
//!
//! A site can make its own name point to this server after a visitor's browser has loaded the site
//! (DNS rebinding). The browser then takes the server for that site and lets the site read the
//! server's responses. The request still names the site, so names that aren't the server's own are
//! refused. An address cannot be redirected in this way.

use std::net::{Ipv4Addr, Ipv6Addr};

use galatea_gate::text::format_bounded;

/// The maximum length, in bytes, of a name that a refusal repeats.
const SHOWN_BYTES_MAX: usize = 256;

/// The names of a server, in addition to `localhost` and addresses.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts {
    names: Vec<String>,
}

impl AllowedHosts {
    /// Creates the allowed hosts of a server with these names.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self { names: names.into_iter().filter(|name| !name.is_empty()).collect() }
    }

    /// Checks the headers of a request. A browser sends both headers, or only `host` to the page's
    /// own server.
    ///
    /// # Errors
    ///
    /// The reason why the request is refused.
    pub fn check(&self, host: Option<&[u8]>, origin: Option<&[u8]>) -> Result<(), String> {
        if let Some(host) = host {
            self.check_authority(host)?;
        }
        let Some(origin) = origin else { return Ok(()) };
        match origin.windows(3).position(|part| part == b"://") {
            Some(end) => {
                self.check_authority(origin.get(end.saturating_add(3)..).unwrap_or_default())
            }
            None => Err(refusal(origin)),
        }
    }

    /// Checks a host that may have a port.
    fn check_authority(&self, authority: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(authority).map_err(|_| refusal(authority))?;
        if self.is_own(host_of(text)) { Ok(()) } else { Err(refusal(authority)) }
    }

    fn is_own(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let is_address = host.parse::<Ipv4Addr>().is_ok() || is_address_in_brackets(host);
        is_address
            || host.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// Returns the host of an authority, without its port.
fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn is_address_in_brackets(host: &str) -> bool {
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
}

fn refusal(host: &[u8]) -> String {
    let host = String::from_utf8_lossy(host);
    format!(
        "the dashboard is not served under the name '{}'; --dashboard-host adds a name",
        format_bounded(&host, SHOWN_BYTES_MAX)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &str, origin: &str, is_let_in: bool) {
        let hosts = AllowedHosts::new(["gpu-7".to_owned(), String::new()]);
        let given = |text: &'static str| (text != "-").then_some(text.as_bytes());
        let (host, origin): (&'static str, &'static str) =
            (host.to_owned().leak(), origin.to_owned().leak());
        let checked = hosts.check(given(host), given(origin));
        assert_eq!(checked.is_ok(), is_let_in, "{host} {origin}: {checked:?}");
    }

    #[test]
    fn own_names_and_addresses_are_let_in() {
        for host in [
            "localhost",
            "localhost:8000",
            "LOCALHOST.:8000",
            "127.0.0.1:8000",
            "10.1.2.3",
            "[::1]:8000",
            "[fe80::1]",
            "gpu-7",
            "GPU-7:80",
            "-",
        ] {
            check(host, "-", true);
            check("localhost", &format!("http://{host}").replace("http://-", "-"), true);
        }
    }

    #[test]
    fn other_names_are_refused_in_either_header() {
        for host in [
            "site.example",
            "site.example:8000",
            "localhost.site.example",
            "127.0.0.1.site.example",
            "gpu-77",
            "",
            ":8000",
            "[::1",
            "::1",
            "localhost:8000:1",
            "a@localhost",
        ] {
            check(host, "-", false);
            check("localhost", &format!("http://{host}"), false);
        }
        check("localhost", "null", false);
        check("localhost", "", false);
    }

    #[test]
    fn long_names_are_not_repeated_as_a_whole() {
        let reason = AllowedHosts::default().check(Some(&[b'x'; 1 << 16]), None).unwrap_err();
        assert!(reason.len() < 512, "{}", reason.len());
        assert!(AllowedHosts::default().check(Some(&[0xff]), None).is_err());
    }
}
