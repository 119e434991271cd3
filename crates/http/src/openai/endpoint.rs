//! The endpoint, which selects the handler for each request and checks that the caller may use it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use galatea_door::CoalescingRenderer;
use galatea_gate::access::AccessGrant;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{AccessPass, api};
use galatea_openai::{CallIds, ToolCallParser};
use hyper::StatusCode;

use super::OpenAiOptions;
use super::identifiers::IdentifierSource;
use super::known_models::KnownModels;
use super::model_times::ModelTimes;
use super::prepare::Beginner;
use super::responses::{detail, refused, restricted, too_large, wrong_method};
use super::route::OpenAiRoute;
use crate::api::Api;
use crate::endpoint::{Disconnected, Endpoint};
use crate::guard;
use crate::http_response::{self, HttpResponse};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;

/// The content type of the metrics.
const TEXT: &str = "text/plain; charset=utf-8";

/// The endpoint for OpenAI clients.
pub(crate) struct OpenAi {
    pub(super) api: Api,
    pub(super) options: OpenAiOptions,
    pub(super) times: ModelTimes,
    pub(super) identifiers: Arc<IdentifierSource>,
    pub(super) beginner: Arc<Beginner>,
    metrics: CoalescingRenderer<(), Bytes>,
}

impl Endpoint for OpenAi {
    async fn respond<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let response = self.route(head, body).await?;
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

impl OpenAi {
    pub(crate) fn new(api: Api, options: OpenAiOptions) -> Self {
        let render = options.metrics.clone();
        let identifiers = Arc::new(IdentifierSource::new());
        let tool_parser = options.tool_format.map(|format| {
            let identifiers = identifiers.clone();
            let unique = move || identifiers.next(since_1970());
            let ids = CallIds::new(Arc::new(unique));
            ToolCallParser { format, chars_max: options.tool_chars_max, ids }
        });
        let beginner = Arc::new(Beginner {
            control: api.control.clone(),
            models: KnownModels::new(options.format, options.template.clone()),
            tokens_default: options.tokens_default,
            tool_parser,
            adapters: options.adapters.clone(),
        });
        Self {
            api,
            options,
            times: ModelTimes::default(),
            identifiers,
            beginner,
            metrics: CoalescingRenderer::new(move |()| Bytes::from(render())),
        }
    }

    /// The time since 1970.
    pub(super) fn now(&self) -> Duration {
        since_1970()
    }

    async fn route<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        // As in Triton's frontend, the size is checked first.
        let bytes_max = self.api.limits.input_bytes_max;
        if body.length_min() > bytes_max {
            return Ok(too_large(body.length_min(), bytes_max));
        }
        let Some(route) = OpenAiRoute::of(head.path) else {
            return Ok(detail(StatusCode::NOT_FOUND, "Not Found"));
        };
        if head.method != route.method() {
            return Ok(wrong_method(&route));
        }
        match self.api.admit(route.category(), head) {
            Ok(admission) => Box::pin(self.serve(route, admission, head, body)).await,
            Err(refusal) => Ok(restricted(refusal)),
        }
    }

    async fn serve<B: RequestBody>(
        &self,
        route: OpenAiRoute<'_>,
        admission: AccessGrant,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        Ok(match route {
            OpenAiRoute::Chat
            | OpenAiRoute::Completion
            | OpenAiRoute::Embedding
            | OpenAiRoute::Rerank
            | OpenAiRoute::Responses => match admission.pass() {
                Ok(pass) => return self.generate(pass, route, head, body).await,
                Err(mistake) => refused(&mistake.into()),
            },
            OpenAiRoute::Models => match admission.pass() {
                Ok(pass) => self.list(pass).await,
                Err(mistake) => refused(&mistake.into()),
            },
            OpenAiRoute::Model(name) => match admission.pass() {
                Ok(pass) => self.describe(pass, &name).await,
                Err(mistake) => refused(&mistake.into()),
            },
            OpenAiRoute::Load(name) => match admission.pass() {
                Ok(pass) => self.load(pass, &name).await,
                Err(mistake) => refused(&mistake.into()),
            },
            OpenAiRoute::Unload(name) => match admission.pass() {
                Ok(pass) => self.unload(pass, &name).await,
                Err(mistake) => refused(&mistake.into()),
            },
            OpenAiRoute::Metrics => match self.metrics.render(()).await {
                Some(text) => http_response::text(TEXT, text),
                None => refused(&guard::failed()),
            },
            OpenAiRoute::Ready => match admission.pass() {
                Ok(pass) => self.ready(pass).await,
                Err(mistake) => refused(&mistake.into()),
            },
        })
    }

    async fn ready(&self, pass: AccessPass<api::Health>) -> HttpResponse {
        let is_ready = self.api.is_ready(pass).await;
        if is_ready == Ok(true) {
            let mut response = http_response::bare(StatusCode::OK);
            response.content_type = None;
            return response;
        }
        let text = "Attached inference engine is not ready for inference requests.";
        detail(StatusCode::BAD_REQUEST, text)
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
