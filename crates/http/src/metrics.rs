//! The metrics endpoint.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use galatea_door::CoalescingRenderer;
use hyper::{Method, StatusCode};

use crate::body_drain::BodyDrain;
use crate::endpoint::{Disconnected, Endpoint};
use crate::guard::failed;
use crate::http_response::{self, HttpResponse};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;

const TEXT: &str = "text/plain; charset=utf-8";

/// The maximum number of bytes read from a request body. Metrics requests need no body.
const DRAIN_BYTES_MAX: u64 = 64 << 20;
/// The time that a client may be silent while its body is drained.
const DRAIN_SILENCE_MAX: Duration = Duration::from_secs(5);

/// The metrics endpoint, which responds with the text that a function renders.
pub(crate) struct Metrics {
    renderer: CoalescingRenderer<(), Bytes>,
    body_drain: BodyDrain,
}

impl Metrics {
    pub(crate) fn new(render: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        let renderer = CoalescingRenderer::new(move |()| Bytes::from(render()));
        Self { renderer, body_drain: BodyDrain::new(DRAIN_BYTES_MAX, DRAIN_SILENCE_MAX) }
    }

    async fn response(&self, head: &RequestHead<'_>) -> HttpResponse {
        if head.method != Method::GET {
            let code = StatusCode::METHOD_NOT_ALLOWED;
            return http_response::plain(http_response::error(code, "Method Not Allowed"));
        }
        let is_wanted = matches!(head.path, "/metrics" | "/metrics/");
        let body = if is_wanted { self.renderer.render(()).await } else { Some(Bytes::new()) };
        match body {
            Some(body) => http_response::text(TEXT, body),
            None => http_response::failure(&failed()),
        }
    }
}

impl Endpoint for Metrics {
    async fn respond<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let response = self.response(head).await;
        if BodyDrain::is_needed(head, &response, body) {
            self.body_drain.drain(body).await;
        }
        Ok(response)
    }

    async fn drain<B: RequestBody>(&self, body: &mut B) {
        self.body_drain.drain(body).await;
    }
}
