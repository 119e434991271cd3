//! The Vertex AI door, with one path for health checks and one for everything else. A header
//! redirects requests to endpoints of the inference door.

use std::sync::Arc;

use bytes::Bytes;
use galatea_door::CoalescingRenderer;
use galatea_gate::ledger::MemoryAccount;
use hyper::{Method, StatusCode};

use super::options::{PathPattern, VertexAiOptions};
use crate::api::Api;
use crate::endpoint::{Disconnected, Endpoint};
use crate::guard::failed;
use crate::http_response::{self, HttpResponse};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;
use crate::route::{ModelAction, RegionAction, Route};

/// The header that contains the path of another endpoint, without its leading slash.
const REDIRECT: &str = "X-Vertex-Ai-Triton-Redirect";

/// The content type of the metrics, which differs from the one that the metrics door uses.
const TEXT: &str = "text/plain";

/// The endpoint of the Vertex AI door.
pub(crate) struct VertexAi {
    api: Api,
    health: PathPattern,
    predict: PathPattern,
    default_model: String,
    metrics: Option<CoalescingRenderer<(), Bytes>>,
}

/// The target to which a request is redirected.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Redirect<'a> {
    Endpoint(Route<'a>),
    Metrics,
    /// An endpoint that changes the server, which only the inference door may serve.
    Forbidden,
}

impl<'a> Redirect<'a> {
    /// Returns the target for a path that begins with a slash.
    fn of(path: &'a str) -> Option<Self> {
        if path == "/metrics" {
            return Some(Self::Metrics);
        }
        let route = Route::of(path)?;
        match route {
            Route::Live
            | Route::Ready
            | Route::ServerMetadata
            | Route::AllStatistics
            | Route::RepositoryIndex { .. }
            | Route::SharedMemory { action: RegionAction::Status, .. } => {
                Some(Self::Endpoint(route))
            }
            Route::Model { action, .. } => match action {
                ModelAction::Metadata
                | ModelAction::Infer
                | ModelAction::Ready
                | ModelAction::Config
                | ModelAction::Statistics => Some(Self::Endpoint(route)),
                ModelAction::Generate
                | ModelAction::GenerateStream
                | ModelAction::Traffic
                | ModelAction::Report(_) => None,
            },
            Route::Load { .. } | Route::Unload { .. } | Route::SharedMemory { .. } => {
                Some(Self::Forbidden)
            }
            Route::Logging | Route::TraceSetting { .. } => None,
        }
    }
}

impl Endpoint for VertexAi {
    async fn respond<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let response = if self.health.matches(head.path) {
            self.api.serve(Route::Ready, &head.method, head, body).await?
        } else if self.predict.matches(head.path) {
            self.predict(head, body).await?
        } else {
            http_response::bare(StatusCode::BAD_REQUEST)
        };
        self.api.finish(head, &response, body).await;
        Ok(response)
    }

    fn open_account(&self) -> MemoryAccount {
        self.api.open_account()
    }

    async fn drain<B: RequestBody>(&self, body: &mut B) {
        self.api.drain(body).await;
    }

    fn wants_headers(&self) -> bool {
        true
    }
}

impl VertexAi {
    pub(crate) fn new(api: Api, options: VertexAiOptions) -> Self {
        let VertexAiOptions { health, predict, default_model, metrics, .. } = options;
        let renderer = |render: Arc<dyn Fn() -> String + Send + Sync>| {
            CoalescingRenderer::new(move |()| Bytes::from(render()))
        };
        Self { api, health, predict, default_model, metrics: metrics.map(renderer) }
    }

    async fn predict<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let Some(redirect) = head.header(REDIRECT) else {
            let (name, action) = (&self.default_model, ModelAction::Infer);
            let route = Route::Model { name, version: "", action };
            return self.api.serve(route, &head.method, head, body).await;
        };
        if head.method != Method::POST {
            return Ok(http_response::bare(StatusCode::METHOD_NOT_ALLOWED));
        }
        let path = std::str::from_utf8(redirect).map(|path| format!("/{path}"));
        match path.as_deref().ok().and_then(Redirect::of) {
            Some(Redirect::Endpoint(route)) => {
                let get = Method::GET;
                let method = if route.allows(&get) { &get } else { &head.method };
                self.api.serve(route, method, head, body).await
            }
            Some(Redirect::Metrics) => Ok(self.metrics().await),
            Some(Redirect::Forbidden) => Ok(http_response::bare(StatusCode::FORBIDDEN)),
            None => Ok(http_response::bare(StatusCode::BAD_REQUEST)),
        }
    }

    /// Returns the metrics. As in Triton, they belong to no API category that can be restricted.
    async fn metrics(&self) -> HttpResponse {
        let Some(metrics) = &self.metrics else {
            return http_response::bare(StatusCode::BAD_REQUEST);
        };
        match metrics.render(()).await {
            Some(text) => http_response::text(TEXT, text),
            None => http_response::failure(&failed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every path of the inference door, grouped by the result of a redirect to it.
    const ENDPOINTS: &str = "/v2 /v2/health/live /v2/health/ready /v2/models/stats /v2/models/m \
        /v2/models/m/versions/1 /v2/models/m/infer /v2/models/m/versions/1/infer \
        /v2/models/m/ready /v2/models/m/config /v2/models/m/stats /v2/repository/index \
        /v2/repository/r/index /v2/systemsharedmemory/status \
        /v2/cudasharedmemory/region/r/status";
    const FORBIDDEN: &str = "/v2/repository/models/m/load /v2/repository/models/m/unload \
        /v2/repository/r/models/m/load /v2/systemsharedmemory/region/r/register \
        /v2/systemsharedmemory/unregister /v2/cudasharedmemory/region/r/unregister";
    const UNKNOWN: &str = "/ //v2 /v2/ /metrics/ /v2/models /v2/models/m/generate \
        /v2/models/m/generate_stream /v2/models/m/scheduler /v2/models/m/trace/setting \
        /v2/trace/setting /v2/logging /v2/models/m/infer/x /health /predict";

    #[test]
    fn redirects_read_and_infer_but_change_nothing() {
        for path in ENDPOINTS.split_whitespace() {
            let route = Route::of(path).unwrap();
            assert_eq!(Redirect::of(path), Some(Redirect::Endpoint(route)), "{path}");
            assert!(route.allows(&Method::GET) != route.allows(&Method::POST), "{path}");
        }
        for path in FORBIDDEN.split_whitespace() {
            assert_eq!(Redirect::of(path), Some(Redirect::Forbidden), "{path}");
        }
        for path in UNKNOWN.split_whitespace() {
            assert_eq!(Redirect::of(path), None, "{path}");
        }
        assert_eq!(Redirect::of("/metrics"), Some(Redirect::Metrics));
    }
}
