//! Sends messages to a collector, over HTTP.
//!
//! A batch of spans every few seconds is all that is sent, so each has a connection of its
//! own, on the thread of traces, with a time limit.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::address::CollectorAddress;
use super::tls::{CertificateError, CertificateFiles, Tls};

/// The longest head of a response that is read.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A collector, and how it is reached.
#[derive(Clone, Debug)]
pub struct Collector {
    address: CollectorAddress,
    connection: CollectorConnection,
    /// For `https`.
    tls: Option<Tls>,
}

/// The settings of connections to a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorConnection {
    /// Headers of each batch. Those that would end their line are left out.
    pub headers: Vec<(String, String)>,
    /// The time that a batch may take, from connecting to the response.
    pub time_max: Duration,
    /// For `https`.
    pub certificates: CertificateFiles,
}

impl Default for CollectorConnection {
    /// Triton's.
    fn default() -> Self {
        let (headers, certificates) = (Vec::new(), CertificateFiles::default());
        Self { headers, time_max: Duration::from_secs(10), certificates }
    }
}

impl Collector {
    /// A collector at this address; its certificates are read now.
    ///
    /// # Errors
    ///
    /// If a file of certificates can't be used.
    pub fn new(
        address: CollectorAddress,
        mut connection: CollectorConnection,
    ) -> Result<Self, CertificateError> {
        let is_line = |text: &str| !text.contains(['\r', '\n', '\0']);
        connection.headers.retain(|(name, value)| is_line(name) && is_line(value));
        let tls = if address.is_tls { Some(Tls::new(&connection.certificates)?) } else { None };
        Ok(Self { address, connection, tls })
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> &CollectorAddress {
        &self.address
    }

    /// Sends a message.
    pub(super) fn post(&self, message: &[u8]) -> io::Result<()> {
        let mut stream = self.connect()?;
        let code = match &self.tls {
            None => self.exchange(&mut stream, message),
            Some(tls) => self.exchange(&mut tls.client(&self.address.host, stream)?, message),
        }?;
        if (200..300).contains(&code) {
            return Ok(());
        }
        Err(io::Error::other(format!("the collector responded with {code}")))
    }

    fn connect(&self) -> io::Result<TimedStream> {
        let due = Instant::now().checked_add(self.connection.time_max);
        let mut last = io::Error::other("the collector's name has no address");
        for address in (self.address.host.as_str(), self.address.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, time_left(due)?) {
                Ok(stream) => return Ok(TimedStream { stream, due }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a message; returns the status of the response.
    fn exchange(&self, stream: &mut (impl Read + Write), message: &[u8]) -> io::Result<u16> {
        let mut request = self.head(message.len()).into_bytes();
        request.extend_from_slice(message);
        stream.write_all(&request)?;
        stream.flush()?;
        read_code(stream)
    }

    fn head(&self, length: usize) -> String {
        let (path, host) = (&self.address.path, self.address.authority());
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-protobuf\r\n\
             Content-Length: {length}\r\nUser-Agent: galatea\r\nConnection: close\r\n"
        );
        for (name, value) in &self.connection.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head + "\r\n"
    }
}

/// A connection that fails when its time is over, however slowly bytes come and go.
struct TimedStream {
    stream: TcpStream,
    /// `None` is never.
    due: Option<Instant>,
}

impl Read for TimedStream {
    fn read(&mut self, part: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(time_left(self.due)?))?;
        self.stream.read(part).map_err(too_late)
    }
}

impl Write for TimedStream {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(time_left(self.due)?))?;
        self.stream.write(part).map_err(too_late)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The time until then, which is never nothing: that would be a socket without a limit.
fn time_left(due: Option<Instant>) -> io::Result<Duration> {
    let Some(due) = due else { return Ok(Duration::MAX) };
    let left = due.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A time limit of a socket ends as if it could not wait.
fn too_late(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
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

    /// Sends a message to a collector that responds so; returns what it received and the result.
    fn exchange(response: &'static str) -> (String, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let headers = [("key", "value"), ("bad", "a\r\nX: y")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let connection =
            CollectorConnection { headers: headers.to_vec(), ..CollectorConnection::default() };
        let address = CollectorAddress::parse(&url).unwrap();
        let sender = Collector::new(address, connection).unwrap();
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
        let result = sender.post(b"spans");
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
    fn a_collector_has_one_limit_of_time_for_all_its_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let time_max = Duration::from_millis(50);
        let connection = CollectorConnection { time_max, ..CollectorConnection::default() };
        let sender = Collector::new(CollectorAddress::parse(&url).unwrap(), connection).unwrap();
        let collector = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // A byte now and then, until the other side is gone.
            while stream.write_all(b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let error = sender.post(b"spans").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        collector.join().unwrap();
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
