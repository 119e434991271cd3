//! Requests over HTTP/1.1, with connections that are used again.
//!
//! `object_store` would bring a client of its own, with a second HTTP stack and another library
//! for TLS. This one is made of what the doors use already, and it tells what failed: the name,
//! the connection or TLS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use galatea_stdx::Lock;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::tls::Tls;

/// The time limit of the look-up of a name, and of a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// The time limit of the head of a response.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(30);
/// The maximum number of connections that wait for another request.
const IDLE_MAX: usize = 64;

/// A reason why a request does not reach its server, or is not answered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum Trouble {
    #[error("DNS: the name '{host}' can't be looked up: {reason}")]
    Name { host: String, reason: String },
    #[error("endpoint: can't connect to {server}: {reason}")]
    Connection { server: String, reason: String },
    #[error("TLS: {server}: {reason}")]
    Tls { server: String, reason: String },
    #[error("endpoint: {server} does not answer: {reason}")]
    Silence { server: String, reason: String },
    #[error("region: the bucket is in region '{region}': set AWS_DEFAULT_REGION")]
    Region { region: String },
}

impl Trouble {
    fn into_error(self, kind: HttpErrorKind) -> HttpError {
        HttpError::new(kind, self)
    }
}

/// A client; its copies share connections.
#[derive(Clone)]
pub(crate) struct Client(Arc<Shared>);

struct Shared {
    tls: Tls,
    /// Connections by scheme and authority.
    idle: Lock<Vec<(String, Connection)>>,
}

type Connection = SendRequest<HttpRequestBody>;

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl HttpConnector for Client {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl Client {
    pub(crate) fn new(tls: Tls) -> Self {
        Self(Arc::new(Shared { tls, idle: Lock::default() }))
    }

    fn take(&self, server: &str) -> Option<Connection> {
        let mut idle = self.0.idle.lock("take a connection");
        idle.retain(|(_, connection)| !connection.is_closed());
        let usable =
            |(known, connection): &(String, Connection)| known == server && connection.is_ready();
        let position = idle.iter().position(usable)?;
        Some(idle.swap_remove(position).1)
    }

    /// Keeps a connection. It is ready again when the response's body has been read.
    fn keep(&self, server: String, connection: Connection) {
        let mut idle = self.0.idle.lock("keep a connection");
        if idle.len() < IDLE_MAX {
            idle.push((server, connection));
        }
    }

    async fn connect(&self, target: &Target) -> Result<Connection, HttpError> {
        let server = || format!("{}:{}", target.host, target.port);
        let name = timeout(CONNECT_TIME_MAX, tokio::net::lookup_host((&*target.host, target.port)));
        let found =
            name.await.map_err(|_| String::from("no answer within 5 s")).and_then(|found| {
                found.map(Iterator::collect::<Vec<_>>).map_err(|error| error.to_string())
            });
        let addresses = found.map_err(|reason| {
            let host = target.host.clone();
            Trouble::Name { host, reason }.into_error(HttpErrorKind::Connect)
        })?;
        let unreachable = |reason: String| {
            Trouble::Connection { server: server(), reason }.into_error(HttpErrorKind::Connect)
        };
        let connected = timeout(CONNECT_TIME_MAX, TcpStream::connect(&*addresses)).await;
        let stream = connected
            .map_err(|_| unreachable(String::from("no answer within 5 s")))?
            .map_err(|error| unreachable(error.to_string()))?;
        // It costs latency alone if it stays off.
        let _ = stream.set_nodelay(true);
        if !target.is_https {
            return open(stream).await.map_err(|error| unreachable(error.to_string()));
        }
        let refused = |reason: String| {
            Trouble::Tls { server: server(), reason }.into_error(HttpErrorKind::Connect)
        };
        let handshake = self.0.tls.connect(&target.host, stream);
        let stream = timeout(CONNECT_TIME_MAX, handshake)
            .await
            .map_err(|_| refused(String::from("no answer within 5 s")))?
            .map_err(refused)?;
        open(stream).await.map_err(|error| unreachable(error.to_string()))
    }
}

/// Begins HTTP on a connection.
async fn open<S>(stream: S) -> hyper::Result<Connection>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Its errors are those of its requests.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// The server that a request goes to.
struct Target {
    is_https: bool,
    host: String,
    port: u16,
}

impl Target {
    fn of(uri: &Uri) -> Option<Self> {
        let is_https = uri.scheme_str() == Some("https");
        // Brackets belong to the address in a URI, not to the address.
        let host = uri.host()?.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Some(Self { is_https, host, port })
    }

    fn key(&self) -> String {
        format!("{} {} {}", self.is_https, self.host, self.port)
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let no_host = || {
            let reason = String::from("the address has no host");
            Trouble::Connection { server: String::new(), reason }
        };
        let target = Target::of(request.uri())
            .ok_or_else(|| no_host().into_error(HttpErrorKind::Unknown))?;
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        if let Some(host) = authority.and_then(|text| HeaderValue::from_str(&text).ok()) {
            request.headers_mut().entry(HOST).or_insert(host);
        }
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.unwrap_or_else(|| PathAndQuery::from_static("/")).into();
        let mut connection = match self.take(&target.key()) {
            Some(connection) => connection,
            None => self.connect(&target).await?,
        };
        let silent = |reason: String, kind| {
            let server = format!("{}:{}", target.host, target.port);
            Trouble::Silence { server, reason }.into_error(kind)
        };
        let response = timeout(RESPONSE_TIME_MAX, connection.send_request(request))
            .await
            .map_err(|_| silent(String::from("nothing within 30 s"), HttpErrorKind::Timeout))?
            .map_err(|error| silent(error.to_string(), HttpErrorKind::Interrupted))?;
        self.keep(target.key(), connection);
        if let Some(region) = other_region(response.status(), response.headers()) {
            return Err(Trouble::Region { region }.into_error(HttpErrorKind::Unknown));
        }
        let cut = |error: hyper::Error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(response.map(|body| HttpResponseBody::new(body.map_err(cut))))
    }
}

/// The region that a server of Amazon's protocol sends a request to.
fn other_region(status: StatusCode, headers: &http::HeaderMap) -> Option<String> {
    let region = headers.get("x-amz-bucket-region")?.to_str().ok()?;
    let is_elsewhere = status.is_redirection() || status == StatusCode::BAD_REQUEST;
    is_elsewhere.then(|| region.chars().take(64).collect())
}
