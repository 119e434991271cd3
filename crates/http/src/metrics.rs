//! The metrics endpoint.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};

use crate::body::RequestBody;
use crate::door::{Closed, Endpoint};
use crate::head::Head;
use crate::respond::{self, Reply};
use crate::unwanted::Unwanted;

const TEXT: &str = "text/plain; charset=utf-8";

/// How much is read of a body, because nobody wants any here, and how long a client that
/// stops sending one is waited for.
const UNWANTED_BYTES_MAX: u64 = 64 << 20;
const UNWANTED_SILENCE_MAX: Duration = Duration::from_secs(5);

/// Answers with what a function renders.
pub(crate) struct Metrics {
    render: Arc<dyn Fn() -> String + Send + Sync>,
    unwanted: Unwanted,
}

impl Metrics {
    pub(crate) fn new(render: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        Self { render, unwanted: Unwanted::new(UNWANTED_BYTES_MAX, UNWANTED_SILENCE_MAX) }
    }

    fn answer(&self, head: &Head<'_>) -> Reply {
        if head.method != Method::GET {
            return respond::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        }
        let body = match head.path {
            "/metrics" | "/metrics/" => (self.render)(),
            _ => String::new(),
        };
        respond::text(TEXT, body)
    }
}

impl Endpoint for Metrics {
    async fn respond<B: RequestBody>(
        &self,
        head: &Head<'_>,
        body: &mut B,
    ) -> Result<Reply, Closed> {
        let reply = self.answer(head);
        self.unwanted.discard_rest(head, &reply, body).await;
        Ok(reply)
    }

    fn stop(&self) {
        self.unwanted.stop();
    }
}
