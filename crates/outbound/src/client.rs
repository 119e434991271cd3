//! An HTTP/1.1 client.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use galatea_stdx::Lock;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::tls::{CertificateFileError, CertificateFiles, Tls};

/// The time limit for name resolution, for connecting, and for a TLS handshake.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// The time limit for a response head.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(30);
/// The maximum number of idle connections.
const IDLE_MAX: usize = 64;

/// The reason why a request did not reach its server or got no response.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OutboundError {
    /// The name has no address.
    #[error("DNS: the name '{host}' can't be looked up: {reason}")]
    Name {
        /// The name.
        host: String,
        /// The resolver's reason.
        reason: String,
    },
    /// No connection could be established.
    #[error("endpoint: can't connect to {server}: {reason}")]
    Connection {
        /// The host and port.
        server: String,
        /// The system's reason.
        reason: String,
    },
    /// The connection can't be encrypted.
    #[error("TLS: {server}: {reason}")]
    Tls {
        /// The host and port.
        server: String,
        /// The reason reported by either side.
        reason: String,
    },
    /// No response head arrived in time.
    #[error("endpoint: {server} does not answer: {reason}")]
    Silence {
        /// The host and port.
        server: String,
        /// The reason.
        reason: String,
        /// True if the time limit passed; false if the connection ended or the server uses another
        /// protocol.
        is_late: bool,
    },
}

/// The use of connections after their first request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ConnectionReuse {
    /// Connections are kept for further requests. The runtime must keep running to notice when a
    /// server closes a connection.
    Always,
    /// Each request has its own connection.
    Never,
}

/// A client for requests with one body type. Clones share connections.
pub struct Client<B>(Arc<ClientShared<B>>);

struct ClientShared<B> {
    tls: Tls,
    reuse: ConnectionReuse,
    /// Idle connections by server.
    idle: Lock<Vec<(RequestTarget, SendRequest<B>)>>,
}

impl<B> Clone for Client<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B> fmt::Debug for Client<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl<B> Client<B>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Makes a client. It reads its certificates when a connection first needs them.
    #[must_use]
    pub fn new(certificates: CertificateFiles, reuse: ConnectionReuse) -> Self {
        Self(Arc::new(ClientShared { tls: Tls::new(certificates), reuse, idle: Lock::default() }))
    }

    /// Reads the certificates now.
    ///
    /// # Errors
    ///
    /// Returns an error if a file can't be read, or contains no certificates.
    pub fn read_certificates(&self) -> Result<(), CertificateFileError> {
        self.0.tls.config().map(drop)
    }

    /// Sends a request with an absolute URI and waits for the response head.
    pub async fn send(&self, mut request: Request<B>) -> Result<Response<Incoming>, OutboundError> {
        let target = RequestTarget::of(request.uri())?;
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        if let Some(host) = authority.and_then(|text| HeaderValue::from_str(&text).ok()) {
            request.headers_mut().entry(HOST).or_insert(host);
        }
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.unwrap_or_else(|| PathAndQuery::from_static("/")).into();
        let mut connection = match self.take(&target) {
            Some(connection) => connection,
            None => self.connect(&target).await?,
        };
        let silent = |reason: String, is_late| {
            let server = target.to_string();
            OutboundError::Silence { server, reason, is_late }
        };
        let response = timeout(RESPONSE_TIME_MAX, connection.send_request(request))
            .await
            .map_err(|_| silent(String::from("nothing within 30 s"), true))?
            .map_err(|error| silent(error.to_string(), false))?;
        self.keep(target, connection);
        Ok(response)
    }

    fn take(&self, server: &RequestTarget) -> Option<SendRequest<B>> {
        let mut idle = self.0.idle.lock("take a connection");
        idle.retain(|(_, connection)| !connection.is_closed());
        let usable = |(known, connection): &(RequestTarget, SendRequest<B>)| {
            known == server && connection.is_ready()
        };
        let position = idle.iter().position(usable)?;
        Some(idle.swap_remove(position).1)
    }

    /// Keeps a connection for reuse. The connection is ready again when the response body has been
    /// read.
    fn keep(&self, server: RequestTarget, connection: SendRequest<B>) {
        if self.0.reuse == ConnectionReuse::Never {
            return;
        }
        let mut idle = self.0.idle.lock("keep a connection");
        if idle.len() < IDLE_MAX {
            idle.push((server, connection));
        }
    }

    async fn connect(&self, target: &RequestTarget) -> Result<SendRequest<B>, OutboundError> {
        let name = tokio::net::lookup_host((&*target.host, target.port));
        let addresses = in_time(name).await.map_err(|reason| {
            let host = target.host.clone();
            OutboundError::Name { host, reason }
        })?;
        let addresses: Vec<_> = addresses.collect();
        let unreachable =
            |reason: String| OutboundError::Connection { server: target.to_string(), reason };
        let stream = in_time(TcpStream::connect(&*addresses)).await.map_err(unreachable)?;
        // A failure only costs latency.
        let _ = stream.set_nodelay(true);
        if !target.is_https {
            return open(stream).await.map_err(|error| unreachable(error.to_string()));
        }
        let encrypted = in_time(self.0.tls.connect(&target.host, stream)).await;
        let stream = encrypted
            .map_err(|reason| OutboundError::Tls { server: target.to_string(), reason })?;
        open(stream).await.map_err(|error| unreachable(error.to_string()))
    }
}

/// Awaits one connection step within its time limit. The error describes the failure.
async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, String> {
    match timeout(CONNECT_TIME_MAX, step).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(String::from("no answer within 5 s")),
    }
}

/// Starts HTTP on a connection.
async fn open<S, B>(stream: S) -> hyper::Result<SendRequest<B>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // The connection's requests report its errors.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// The server to which a request is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RequestTarget {
    is_https: bool,
    host: String,
    port: u16,
}

impl RequestTarget {
    fn of(uri: &Uri) -> Result<Self, OutboundError> {
        let no_host = || {
            let reason = String::from("the address has no host");
            OutboundError::Connection { server: String::new(), reason }
        };
        let is_https = uri.scheme_str() == Some("https");
        // Brackets are part of the URI syntax, not of the address.
        let host = uri.host().ok_or_else(no_host)?.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(Self { is_https, host, port })
    }
}

impl fmt::Display for RequestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
