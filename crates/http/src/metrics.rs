//! The metrics endpoint.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use crate::door::{Closed, Endpoint};
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

    fn answer(&self, request: &Request<Incoming>) -> Reply {
        if request.method() != Method::GET {
            return respond::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        }
        let body = match request.uri().path() {
            "/metrics" | "/metrics/" => (self.render)(),
            _ => String::new(),
        };
        respond::text(TEXT, body)
    }
}

impl Endpoint for Metrics {
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Result<Reply, Closed> {
        Ok(self.answer(&request))
    }

    fn stop(&self) {}
}
