//! The metrics endpoint.

use std::sync::Arc;

use hyper::{Method, StatusCode};

use crate::body::RequestBody;
use crate::door::{Closed, Endpoint};
use crate::head::Head;
use crate::respond::{self, Reply};

const TEXT: &str = "text/plain; charset=utf-8";

/// Answers with what a function renders.
pub(crate) struct Metrics {
    render: Arc<dyn Fn() -> String + Send + Sync>,
}

impl Metrics {
    pub(crate) fn new(render: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        Self { render }
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
    async fn respond<B: RequestBody>(&self, head: &Head<'_>, _: &mut B) -> Result<Reply, Closed> {
        Ok(self.answer(head))
    }

    fn stop(&self) {}
}
