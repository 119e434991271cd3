//! The HTTP client below `object_store`.
//!
//! `object_store` would bring its own client, with a second HTTP stack and another TLS library.
//! This client uses the same stack as the rest of the server, and it reports what failed: name
//! resolution, the connection or TLS.

use async_trait::async_trait;
use galatea_outbound::{CertificateFiles, Client, ConnectionReuse, OutboundError};
use http::StatusCode;
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use thiserror::Error;

/// A redirect from a server that speaks Amazon's protocol.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("region: the bucket is in region '{region}': set AWS_DEFAULT_REGION")]
pub(crate) struct OtherRegion {
    pub(crate) region: String,
}

/// A bucket client. Clones share connections.
#[derive(Clone, Debug)]
pub(crate) struct BucketClient(Client<HttpRequestBody>);

impl BucketClient {
    pub(crate) fn new(certificates: CertificateFiles) -> Self {
        Self(Client::new(certificates, ConnectionReuse::Always))
    }
}

impl HttpConnector for BucketClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for BucketClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.send(request).await;
        let response = response.map_err(|error| HttpError::new(kind(&error), error))?;
        if let Some(region) = other_region(response.status(), response.headers()) {
            return Err(HttpError::new(HttpErrorKind::Unknown, OtherRegion { region }));
        }
        let cut = |error: hyper::Error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(response.map(|body| HttpResponseBody::new(body.map_err(cut))))
    }
}

fn kind(error: &OutboundError) -> HttpErrorKind {
    match error {
        OutboundError::Name { .. }
        | OutboundError::Connection { .. }
        | OutboundError::Tls { .. } => HttpErrorKind::Connect,
        OutboundError::Silence { is_late: true, .. } => HttpErrorKind::Timeout,
        OutboundError::Silence { is_late: false, .. } => HttpErrorKind::Interrupted,
    }
}

/// The region to which a server that speaks Amazon's protocol redirects a request.
fn other_region(status: StatusCode, headers: &http::HeaderMap) -> Option<String> {
    let region = headers.get("x-amz-bucket-region")?.to_str().ok()?;
    let is_elsewhere = status.is_redirection() || status == StatusCode::BAD_REQUEST;
    is_elsewhere.then(|| region.chars().take(64).collect())
}
