//! Sends messages to a collector over HTTP.
//!
//! Only one batch of spans is sent every few seconds, so each batch gets its own connection and
//! runtime on the writer thread, with a single time limit for the whole exchange.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use galatea_outbound::{CertificateFileError, CertificateFiles, Client, ConnectionReuse};
use http::header::{CONNECTION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::address::CollectorAddress;

/// A collector, with everything needed to reach it.
#[derive(Clone, Debug)]
pub struct CollectorClient {
    address: CollectorAddress,
    headers: HeaderMap,
    time_max: Duration,
    client: Client<Full<Bytes>>,
}

/// The connection settings of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorSettings {
    /// Headers sent with each batch. Invalid headers are dropped.
    pub headers: Vec<(String, String)>,
    /// The time limit for sending a batch, from opening the connection to receiving the response.
    pub time_max: Duration,
    /// The certificates for `https`.
    pub certificates: CertificateFiles,
}

impl Default for CollectorSettings {
    /// Returns Triton's default settings.
    fn default() -> Self {
        let (headers, certificates) = (Vec::new(), CertificateFiles::default());
        Self { headers, time_max: Duration::from_secs(10), certificates }
    }
}

impl CollectorClient {
    /// Creates a client for the collector at this address. Reads its certificates immediately.
    ///
    /// # Errors
    ///
    /// Returns an error if a certificate file can't be used.
    pub fn new(
        address: CollectorAddress,
        connection: CollectorSettings,
    ) -> Result<Self, CertificateFileError> {
        let CollectorSettings { headers, time_max, certificates } = connection;
        let client = Client::new(certificates, ConnectionReuse::Never);
        if address.is_tls {
            client.read_certificates()?;
        }
        Ok(Self { address, headers: allowed(&headers), time_max, client })
    }

    /// The collector's address.
    #[must_use]
    pub const fn address(&self) -> &CollectorAddress {
        &self.address
    }

    /// Sends a message.
    pub(super) fn post(&self, message: Vec<u8>) -> io::Result<()> {
        let request = self.request(message).map_err(io::Error::other)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let response =
            runtime.block_on(async { timeout(self.time_max, self.client.send(request)).await });
        // Name resolution may continue beyond its time limit.
        runtime.shutdown_background();
        let response = response.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
        let status: StatusCode = response.map_err(io::Error::other)?.status();
        if status.is_success() {
            return Ok(());
        }
        Err(io::Error::other(format!("the collector responded with {}", status.as_u16())))
    }

    fn request(&self, message: Vec<u8>) -> http::Result<Request<Full<Bytes>>> {
        let mut request = Request::post(self.address.to_string()).body(Full::from(message))?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, HeaderValue::from_static("galatea"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        for (name, value) in &self.headers {
            headers.append(name, value.clone());
        }
        Ok(request)
    }
}

fn allowed(headers: &[(String, String)]) -> HeaderMap {
    let allowed = headers.iter().filter_map(|(name, value)| {
        let name = HeaderName::try_from(name).ok()?;
        Some((name, HeaderValue::try_from(value).ok()?))
    });
    let mut map = HeaderMap::new();
    for (name, value) in allowed {
        map.append(name, value);
    }
    map
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Sends a message to a collector that returns this response; yields the text the collector
    /// received, and the result.
    fn exchange(response: &'static str) -> (String, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let headers = [("key", "value"), ("bad", "a\r\nX: y")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let connection =
            CollectorSettings { headers: headers.to_vec(), ..CollectorSettings::default() };
        let address = CollectorAddress::parse(&url).unwrap();
        let sender = CollectorClient::new(address, connection).unwrap();
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
        let result = sender.post(b"spans".to_vec());
        (collector.join().unwrap(), result)
    }

    #[test]
    fn a_message_is_posted() {
        let (received, result) = exchange("HTTP/1.1 200 OK\r\n\r\n");
        result.unwrap();
        assert!(received.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{received}");
        assert!(received.contains("\r\nhost: 127.0.0.1:"), "{received}");
        assert!(received.contains("\r\ncontent-type: application/x-protobuf\r\n"), "{received}");
        assert!(received.contains("\r\nkey: value\r\n"), "{received}");
        assert!(!received.contains("X: y"), "{received}");
        assert!(received.ends_with("\r\n\r\nspans"), "{received}");
    }

    #[test]
    fn a_collector_has_one_limit_of_time_for_all_its_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let time_max = Duration::from_millis(50);
        let connection = CollectorSettings { time_max, ..CollectorSettings::default() };
        let sender =
            CollectorClient::new(CollectorAddress::parse(&url).unwrap(), connection).unwrap();
        let collector = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Sends a head without an end, until the peer disconnects.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nx: ");
            while stream.write_all(b"y").is_ok() {
                // sleep: fewer bytes arrive within the time limit than a head may have
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let error = sender.post(b"spans".to_vec()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        collector.join().unwrap();
    }

    #[test]
    fn refusals_and_other_protocols_are_errors() {
        let text = |response| exchange(response).1.unwrap_err().to_string();
        let refused = "the collector responded with 503";
        assert_eq!(text("HTTP/1.1 503 Service Unavailable\r\n\r\n"), refused);
        for other in ["SSH-2.0\r\n", ""] {
            let text = text(other);
            assert!(text.starts_with("endpoint: ") && text.contains("does not answer"), "{text}");
        }
    }
}
