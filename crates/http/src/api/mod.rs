//! The endpoints of the inference door.

mod body;
mod dashboard;
mod description;
mod document;
mod explain;
mod generate;
mod health;
mod inference;
mod logging;
mod model_wait;
mod regions;
mod repository;
mod trace;
mod traffic;

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::forward::HeaderForwardPattern;
use galatea_codec::limits::MessageLimits;
use galatea_control::{LogControl, ServerControl, ShmControl, TraceControl};
use galatea_dashboard::Dashboard;
use galatea_door::{BlockingPermits, CoalescingRenderer, CompletionQueues, RepositoryPermits};
use galatea_explain::LatencyExplanationWriter;
use galatea_gate::access::{AccessGate, AccessGrant, AccessRefusal, ApiCategory};
use galatea_gate::ledger::{MemoryAccount, MemoryLedger};
use galatea_infer::{InferenceService, Status};
use hyper::{Method, StatusCode};

use self::document::Document;
pub(crate) use self::explain::{explain, mark};
pub(crate) use self::generate::NamedModel;
use self::regions::RegionRequest;
pub(crate) use self::trace::{Arrival, Received};
use crate::body_drain::BodyDrain;
use crate::compression::Compression;
use crate::dialect::Dialect;
use crate::endpoint::{Disconnected, Endpoint};
use crate::guard::{exiting, guarded};
use crate::http_response::{self, HttpResponse};
use crate::long_text::TextThreads;
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;
use crate::route::{ModelAction, Route};
use crate::single_response::InferenceResult;
use crate::traffic::TrafficRecorder;
use crate::{HttpOptions, OrcaReportSource, RequestLog};

/// The endpoint of the inference door. Doors with other paths also use some of its parts.
pub(crate) struct Api {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) control: Arc<dyn ServerControl>,
    pub(crate) limits: MessageLimits,
    ledger: Arc<MemoryLedger>,
    pub(crate) header_forward: Option<HeaderForwardPattern>,
    gate: AccessGate,
    pub(crate) completions: CompletionQueues<InferenceResult>,
    chunks_max: u32,
    documents: CoalescingRenderer<Document, Result<Bytes, Status>>,
    /// Permits for readiness checks that call a backend.
    blocking_permits: BlockingPermits,
    pub(crate) repository_permits: RepositoryPermits,
    body_drain: BodyDrain,
    compression: Compression,
    pub(crate) text_threads: TextThreads,
    log: Option<Arc<dyn LogControl>>,
    request_log: Option<RequestLog>,
    pub(crate) load_report: Option<OrcaReportSource>,
    pub(crate) regions: Arc<dyn ShmControl>,
    pub(crate) tracing: Option<Arc<dyn TraceControl>>,
    pub(crate) dialect: Dialect,
    dashboard: Option<Dashboard>,
    recorder: Option<TrafficRecorder>,
    explanations: Option<LatencyExplanationWriter>,
}

impl Endpoint for Api {
    async fn respond<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let response = self.route(head, body).await?;
        self.finish(head, &response, body).await;
        Ok(response)
    }

    fn open_account(&self) -> MemoryAccount {
        MemoryAccount::of_connection(self.ledger.clone())
    }

    async fn drain<B: RequestBody>(&self, body: &mut B) {
        self.body_drain.drain(body).await;
    }

    fn wants_headers(&self) -> bool {
        self.header_forward.is_some() || !self.gate.is_unrestricted()
    }

    fn wants_headers_of(&self, path: &str) -> bool {
        self.wants_headers()
            || self.dashboard.is_some() && dashboard::has(path)
            || self.recorder.is_some() && traffic::has(path)
    }
}

impl Api {
    pub(crate) fn new(
        service: Arc<dyn InferenceService>,
        control: Arc<dyn ServerControl>,
        completions: CompletionQueues<InferenceResult>,
        options: &HttpOptions,
        dialect: Dialect,
    ) -> Self {
        let limits = options.limits();
        let drain_bytes_max = limits.input_bytes_max.saturating_mul(4);
        let shown = control.clone();
        let documents = CoalescingRenderer::new(move |document: &Document| {
            guarded(|| document.render(&*shown))
        });
        Self {
            service,
            control,
            limits,
            ledger: options.ledger.clone(),
            header_forward: options.header_forward.clone(),
            gate: options.gate.clone(),
            completions,
            chunks_max: options.chunks_max,
            documents,
            blocking_permits: BlockingPermits::default(),
            repository_permits: RepositoryPermits::default(),
            body_drain: BodyDrain::new(drain_bytes_max, options.drain_silence_max),
            compression: Compression::new(),
            text_threads: TextThreads::new(),
            log: options.log.clone(),
            request_log: options.request_log.clone(),
            load_report: options.load_report.clone(),
            regions: options.regions.clone(),
            tracing: options.tracing.clone(),
            dialect,
            dashboard: options.dashboard.clone(),
            recorder: options.recorder.clone(),
            explanations: options.explanations,
        }
    }

    /// Finishes a request before its response is sent.
    pub(crate) async fn finish<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        response: &HttpResponse,
        body: &mut B,
    ) {
        if let Some(log) = &self.request_log {
            log.record(head, response);
        }
        if BodyDrain::is_needed(head, response, body) {
            Box::pin(self.body_drain.drain(body)).await;
        }
    }

    /// Asks the gate to admit a request to a category of APIs. An inference request counts against
    /// the limits of its tenant.
    pub(crate) fn admit(
        &self,
        category: ApiCategory,
        head: &RequestHead<'_>,
    ) -> Result<AccessGrant, AccessRefusal<'_>> {
        let grant = self.gate.admit(category, |name| head.header(name))?;
        if category == ApiCategory::Inference {
            self.gate.count_request(grant).map_err(AccessRefusal::Tenant)?;
        }
        Ok(grant)
    }

    /// Finds the endpoint of the request and lets it respond.
    async fn route<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let Some(route) = Route::of(head.path).filter(|route| self.has(route)) else {
            if let Some(dashboard) = &self.dashboard
                && let Some(response) = self.dashboard(dashboard, head, body.account())
            {
                return Ok(response);
            }
            return Ok(http_response::plain(http_response::error(
                StatusCode::NOT_FOUND,
                "Not Found",
            )));
        };
        self.serve(route, &head.method, head, body).await
    }

    /// Returns true if the endpoint exists. As in Triton, the traffic endpoint is unknown without
    /// its flag, and so is a report that the server doesn't have.
    fn has(&self, route: &Route<'_>) -> bool {
        match route {
            Route::Model { action: ModelAction::Traffic, .. } => self.recorder.is_some(),
            Route::Model { action: ModelAction::Report(name), .. } => self.control.has_report(name),
            _ => true,
        }
    }

    /// Responds at an endpoint if the gate admits the caller and the endpoint supports the method.
    /// `method` may differ from the method in the head.
    pub(crate) async fn serve<B: RequestBody>(
        &self,
        route: Route<'_>,
        method: &Method,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let admission = match self.admit(route.category(), head) {
            Ok(admission) => admission,
            Err(refusal) => return Ok(http_response::restricted(refusal)),
        };
        if !route.allows(method) {
            return Ok(wrong_method(&route));
        }
        match route {
            Route::Model { name, version, action: ModelAction::Infer } => match admission.pass() {
                Ok(pass) => self.infer(pass, head, body, name, version).await,
                Err(mistake) => Ok(http_response::failure(&mistake.into())),
            },
            Route::Model {
                name,
                version,
                action: action @ (ModelAction::Generate | ModelAction::GenerateStream),
            } => match admission.pass() {
                Ok(pass) => {
                    let model = NamedModel { name, version };
                    Box::pin(self.generate(pass, head, body, model, action)).await
                }
                Err(mistake) => Ok(http_response::failure(&mistake.into())),
            },
            other => Box::pin(self.serve_other(other, admission, head, body)).await,
        }
    }

    /// Responds at all endpoints other than inference. It is a separate function because a future
    /// is moved when it begins: the far more common inference futures should not reserve space for
    /// those of other endpoints.
    async fn serve_other<B: RequestBody>(
        &self,
        route: Route<'_>,
        admission: AccessGrant,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        match route {
            Route::RepositoryIndex { .. } | Route::Load { .. } | Route::Unload { .. } => {
                match self.read_body(head, body, self.limits.input_bytes_max).await? {
                    Ok(body) => Ok(or_error(self.repository(admission, route, body).await)),
                    Err(refusal) => Ok(refusal),
                }
            }
            Route::Logging => self.logging(admission, head, body).await,
            Route::Ready => Ok(or_plain_error(self.ready(admission).await)),
            Route::Model { name, version, action: ModelAction::Ready } => {
                Ok(or_plain_error(self.model_ready(admission, name, version).await))
            }
            Route::AllStatistics => Ok(or_error(self.all_statistics(admission).await)),
            Route::Model { name, version, action: ModelAction::Report(report) } => {
                Ok(or_error(self.report(admission, name, version, report).await))
            }
            Route::Model { name, version, action: ModelAction::Traffic } => {
                Ok(self.traffic(admission, head, name, version))
            }
            Route::Live => Ok(or_plain_error(guarded(|| self.render(admission, &route)))),
            Route::SharedMemory { kind, region, action } => {
                self.shared_memory(admission, head, body, RegionRequest { kind, region, action })
                    .await
            }
            Route::ServerMetadata | Route::Model { .. } => {
                Ok(or_error(guarded(|| self.render(admission, &route))))
            }
            Route::TraceSetting { model } => {
                match self.read_body(head, body, MessageLimits::SETTINGS_BYTES_MAX).await? {
                    Ok(body) => {
                        let body = (head.method == Method::POST).then_some(body);
                        Ok(or_error(self.trace_setting(admission, model, body).await))
                    }
                    Err(refusal) => Ok(refusal),
                }
            }
        }
    }

    /// Runs `work` on a thread that may block.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn ServerControl) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let control = self.control.clone();
        let done = tokio::task::spawn_blocking(move || guarded(|| work(&*control)));
        done.await.unwrap_or_else(|_| Err(exiting()))
    }
}

/// Returns the response, or an error object for the status.
fn or_error(result: Result<HttpResponse, Status>) -> HttpResponse {
    result.unwrap_or_else(|status| http_response::failure(&status))
}

/// Returns the response, or the error in plain text.
fn or_plain_error(result: Result<HttpResponse, Status>) -> HttpResponse {
    result.unwrap_or_else(|status| http_response::plain(http_response::failure(&status)))
}

/// Refuses a method that an endpoint doesn't support.
fn wrong_method(route: &Route<'_>) -> HttpResponse {
    let refusal = http_response::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    match route {
        Route::Live
        | Route::Ready
        | Route::Model { action: ModelAction::Ready | ModelAction::Infer, .. } => {
            http_response::plain(refusal)
        }
        Route::ServerMetadata
        | Route::Model { .. }
        | Route::AllStatistics
        | Route::RepositoryIndex { .. }
        | Route::Load { .. }
        | Route::Unload { .. }
        | Route::SharedMemory { .. }
        | Route::Logging
        | Route::TraceSetting { .. } => refusal,
    }
}
