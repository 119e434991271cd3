//! Sends messages to a collector, over HTTP.
//!
//! A batch of spans every few seconds is all that is sent, so each has a connection of its
//! own, on the thread of traces, with time limits.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long each step may take: connecting, and the silence within sending and receiving.
const STEP_TIME_MAX: Duration = Duration::from_secs(10);

/// The longest head of a response that is read.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Where a collector is, and what it is sent beside spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorAddress {
    host: String,
    port: u16,
    path: String,
    headers: Vec<(String, String)>,
}

/// Why an address of a collector can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// It is not a URL of HTTP.
    Malformed,
    /// It asks for TLS, which is not available.
    Tls,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the URL of the collector is malformed",
            Self::Tls => "a collector behind https:// is not supported; use http:// to a local one",
        })
    }
}

impl std::error::Error for AddressError {}

impl CollectorAddress {
    /// The port of a URL that names none.
    const PORT: u16 = 80;

    /// The address in a URL; without a scheme it is one of HTTP. Headers are sent with each
    /// batch.
    ///
    /// # Errors
    ///
    /// If the URL is malformed or asks for TLS.
    pub fn parse(url: &str, headers: Vec<(String, String)>) -> Result<Self, AddressError> {
        let rest = match url.split_once("://") {
            None => url,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => {
                return Err(AddressError::Tls);
            }
            Some(_) => return Err(AddressError::Malformed),
        };
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let (authority, path) = match rest.find('/') {
            Some(end) => rest.split_at(end),
            None => (rest, "/"),
        };
        let (host, port) = match authority.rsplit_once(':') {
            // The colons of an address in brackets.
            Some((_, behind)) if behind.ends_with(']') => (authority, Self::PORT),
            Some((host, port)) => (host, port.parse().map_err(|_| AddressError::Malformed)?),
            None => (authority, Self::PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains('@') || !is_visible(host) || !is_visible(path) {
            return Err(AddressError::Malformed);
        }
        let is_line = |text: &str| !text.contains(['\r', '\n', '\0']);
        let sound = |(name, value): &(String, String)| is_line(name) && is_line(value);
        let headers = headers.into_iter().filter(sound).collect();
        Ok(Self { host: host.to_owned(), port, path: path.to_owned(), headers })
    }

    /// Sends a message.
    pub(super) fn post(&self, message: &[u8]) -> io::Result<()> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(STEP_TIME_MAX))?;
        stream.set_write_timeout(Some(STEP_TIME_MAX))?;
        let mut request = self.head(message.len()).into_bytes();
        request.extend_from_slice(message);
        stream.write_all(&request)?;
        let code = read_code(&mut stream)?;
        if (200..300).contains(&code) {
            return Ok(());
        }
        Err(io::Error::other(format!("the collector responded with {code}")))
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the collector's name has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, STEP_TIME_MAX) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn head(&self, length: usize) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let mut head = format!(
            "POST {} HTTP/1.1\r\nHost: {host}:{}\r\nContent-Type: application/x-protobuf\r\n\
             Content-Length: {length}\r\nUser-Agent: galatea\r\nConnection: close\r\n",
            self.path, self.port
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head + "\r\n"
    }
}

impl fmt::Display for CollectorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.host, self.port, self.path)
    }
}

/// The status in the head of a response; what follows is not read.
fn read_code(stream: &mut impl Read) -> io::Result<u16> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.contains(&b'\n') && head.len() < HEAD_BYTES_MAX {
        match stream.read(&mut part)? {
            0 => break,
            length => head.extend_from_slice(part.get(..length).unwrap_or_default()),
        }
    }
    let line = String::from_utf8_lossy(&head);
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    let code = code.and_then(|code| code.trim_end().parse().ok());
    code.ok_or_else(|| io::Error::other("the collector does not speak HTTP/1.1"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn parse(url: &str) -> Result<String, AddressError> {
        CollectorAddress::parse(url, Vec::new()).map(|address| address.to_string())
    }

    #[test]
    fn urls() {
        for (url, expected) in [
            ("http://localhost:4318/v1/traces", "localhost:4318/v1/traces"),
            ("localhost:1/x", "localhost:1/x"),
            ("HTTP://a", "a:80/"),
            ("http://[::1]:5/x", "::1:5/x"),
            ("http://[::1]/x", "::1:80/x"),
        ] {
            assert_eq!(parse(url), Ok(expected.to_owned()), "{url}");
        }
        for url in ["", "http://", "ftp://a", "a:x/", "a:99999/", "http://u@a/", "a/ b", "a\r\nb"] {
            assert_eq!(parse(url), Err(AddressError::Malformed), "{url}");
        }
        assert_eq!(parse("https://a/x"), Err(AddressError::Tls));
    }

    /// Sends a message to a collector that responds so; returns what it received and the result.
    fn exchange(response: &'static str) -> (String, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let headers = [("key", "value"), ("bad", "a\r\nX: y")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let address = CollectorAddress::parse(&url, headers.to_vec()).unwrap();
        let collector = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"spans") {
                let mut part = [0; 512];
                let length = stream.read(&mut part).unwrap();
                received.extend_from_slice(&part[..length]);
            }
            stream.write_all(response.as_bytes()).unwrap();
            String::from_utf8(received).unwrap()
        });
        let result = address.post(b"spans");
        (collector.join().unwrap(), result)
    }

    #[test]
    fn a_message_is_posted() {
        let (received, result) = exchange("HTTP/1.1 200 OK\r\n\r\n");
        result.unwrap();
        assert!(received.starts_with("POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:"), "{received}");
        assert!(received.contains("\r\nContent-Type: application/x-protobuf\r\n"), "{received}");
        assert!(received.contains("\r\nkey: value\r\n"), "{received}");
        assert!(!received.contains("X: y"), "{received}");
        assert!(received.ends_with("\r\n\r\nspans"), "{received}");
    }

    #[test]
    fn refusals_and_other_protocols_are_errors() {
        let text = |response| exchange(response).1.unwrap_err().to_string();
        let refused = "the collector responded with 503";
        assert_eq!(text("HTTP/1.1 503 Service Unavailable\r\n\r\n"), refused);
        assert_eq!(text("SSH-2.0\r\n"), "the collector does not speak HTTP/1.1");
        assert_eq!(text(""), "the collector does not speak HTTP/1.1");
    }
}
