//! The endpoints of the inference door.

mod body;
mod document;
mod generate;
mod inference;
mod regions;
mod trace;

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::forward::HeaderForward;
use galatea_codec::http::{
    IndexRequest, UnloadRequest, decode_load_request, decode_log_request, encode_log_settings,
    encode_model_metadata, encode_repository_index, encode_server_metadata, encode_statistics,
    parse_version,
};
use galatea_door::{BlockingPermits, CompletionQueues, Renderer, RepositoryPermits};
use galatea_gate::access::{Admission, Gate};
use galatea_gate::ledger::{Account, Ledger};
use galatea_gate::limits::Limits;
use galatea_infer::{
    InferenceService, LogControl, LogUpdate, Pass, RegionControl, ServerControl, Status,
    TraceControl, api,
};
use hyper::{Method, StatusCode};

use self::document::Document;
use self::generate::NamedModel;
use self::regions::RegionRequest;
use crate::body_drain::BodyDrain;
use crate::compression::Compression;
use crate::endpoint::{Disconnected, Endpoint};
use crate::guard::{exiting, failed, guarded};
use crate::http_response::{self, HttpResponse};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;
use crate::route::{ModelAction, Route};
use crate::single_response::InferenceResult;
use crate::{HttpOptions, LoadReportSource, RequestLog};

/// The endpoint of the inference door.
pub(crate) struct Api {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) control: Arc<dyn ServerControl>,
    pub(crate) limits: Limits,
    ledger: Arc<Ledger>,
    pub(crate) header_forward: Option<HeaderForward>,
    gate: Gate,
    pub(crate) completions: CompletionQueues<InferenceResult>,
    chunks_max: u32,
    documents: Renderer<Document, Result<Bytes, Status>>,
    /// For readiness checks that call a backend.
    blocking_permits: BlockingPermits,
    repository_permits: RepositoryPermits,
    body_drain: BodyDrain,
    compression: Compression,
    log: Option<Arc<dyn LogControl>>,
    request_log: Option<RequestLog>,
    pub(crate) load_report: Option<LoadReportSource>,
    pub(crate) regions: Arc<dyn RegionControl>,
    pub(crate) tracing: Option<Arc<dyn TraceControl>>,
}

impl Endpoint for Api {
    async fn respond<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let response = self.route(head, body).await?;
        if let Some(log) = &self.request_log {
            log.record(head, &response);
        }
        self.body_drain.drain_rest(head, &response, body).await;
        Ok(response)
    }

    fn open_account(&self) -> Account {
        Account::of_connection(self.ledger.clone())
    }

    async fn drain<B: RequestBody>(&self, body: &mut B) {
        self.body_drain.drain(body).await;
    }

    fn wants_headers(&self) -> bool {
        self.header_forward.is_some()
            || !self.gate.is_open()
            || self.tracing.as_ref().is_some_and(|tracing| tracing.reads_headers())
    }
}

impl Api {
    pub(crate) fn new(
        service: Arc<dyn InferenceService>,
        control: Arc<dyn ServerControl>,
        completions: CompletionQueues<InferenceResult>,
        options: &HttpOptions,
    ) -> Self {
        let limits = options.limits();
        let drain_bytes_max = limits.input_bytes_max.saturating_mul(4);
        let shown = control.clone();
        let documents =
            Renderer::new(move |document: &Document| guarded(|| document.render(&*shown)));
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
            log: options.log.clone(),
            request_log: options.request_log.clone(),
            load_report: options.load_report.clone(),
            regions: options.regions.clone(),
            tracing: options.tracing.clone(),
        }
    }

    /// Finds the endpoint of the request and has it respond.
    async fn route<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let Some(route) = Route::of(head.path) else {
            return Ok(http_response::plain(http_response::error(
                StatusCode::NOT_FOUND,
                "Not Found",
            )));
        };
        let admission = match self.gate.admit(route.category(), |name| head.header(name)) {
            Ok(admission) => admission,
            Err(refusal) => return Ok(http_response::restricted(refusal)),
        };
        if !route.allows(&head.method) {
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
                    self.generate(pass, head, body, NamedModel { name, version }, action).await
                }
                Err(mistake) => Ok(http_response::failure(&mistake.into())),
            },
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
            Route::Model { name, version, action: ModelAction::Scheduler } => {
                Ok(or_error(self.scheduler(admission, name, version).await))
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
                match self.read_body(head, body, Limits::SETTINGS_BYTES_MAX).await? {
                    Ok(body) => {
                        let body = (head.method == Method::POST).then_some(body);
                        Ok(or_error(self.trace_setting(admission, model, body).await))
                    }
                    Err(refusal) => Ok(refusal),
                }
            }
        }
    }

    /// Responds to a request that needs no body and does not wait.
    fn render(&self, admission: Admission, route: &Route<'_>) -> Result<HttpResponse, Status> {
        match *route {
            Route::Live => Ok(health(self.control.live(admission.pass()?))),
            Route::ServerMetadata => {
                let metadata = self.control.server_metadata(admission.pass()?);
                Ok(http_response::json(encode_server_metadata(&metadata)))
            }
            Route::Model { name, version, action } => {
                self.render_model(admission, name, parse_version(version)?, action)
            }
            Route::Ready | Route::AllStatistics | Route::Logging | Route::TraceSetting { .. } => {
                Err(Status::internal("a question was taken for another"))
            }
            Route::RepositoryIndex { .. }
            | Route::Load { .. }
            | Route::Unload { .. }
            | Route::SharedMemory { .. } => {
                Err(Status::internal("a request with a body was taken for another"))
            }
        }
    }

    /// Changes the log, if the method is POST, and says what it is set to.
    async fn logging<B: RequestBody>(
        &self,
        admission: Admission,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let changes = if head.method == Method::POST {
            match self.read_body(head, body, self.limits.input_bytes_max).await? {
                Ok(body) => Some(body),
                Err(refusal) => return Ok(refusal),
            }
        } else {
            None
        };
        Ok(or_error(guarded(|| {
            let update = match changes {
                Some(body) => decode_log_request(&body, &self.limits)?,
                None => LogUpdate::default(),
            };
            let settings = update.apply(self.log.as_deref(), admission.pass()?)?;
            Ok(http_response::json(encode_log_settings(&settings)))
        })))
    }

    async fn scheduler(
        &self,
        admission: Admission,
        name: &str,
        version: &str,
    ) -> Result<HttpResponse, Status> {
        let (pass, version) = (admission.pass()?, parse_version(version)?);
        self.render_document(Document::Scheduler { pass, model: name.to_owned(), version }).await
    }

    async fn all_statistics(&self, admission: Admission) -> Result<HttpResponse, Status> {
        self.render_document(Document::Statistics { pass: admission.pass()? }).await
    }

    async fn render_document(&self, document: Document) -> Result<HttpResponse, Status> {
        let rendered = self.documents.render(document).await;
        rendered.unwrap_or_else(|| Err(failed())).map(http_response::json)
    }

    async fn ready(&self, admission: Admission) -> Result<HttpResponse, Status> {
        let pass = admission.pass()?;
        self.check_readiness(pass, None, move |control| control.ready(pass)).await.map(health)
    }

    async fn model_ready(
        &self,
        admission: Admission,
        name: &str,
        version: &str,
    ) -> Result<HttpResponse, Status> {
        let (pass, version) = (admission.pass()?, parse_version(version)?);
        let owned = name.to_owned();
        let is_ready =
            move |control: &dyn ServerControl| control.model_ready(pass, &owned, version);
        if self.check_readiness(pass, Some((name, version)), is_ready).await? {
            return Ok(http_response::health(StatusCode::OK));
        }
        Err(Status::invalid_argument("Model version not ready"))
    }

    /// Checks whether the server or a model is ready: on this thread, unless that calls a
    /// backend, which may block.
    async fn check_readiness(
        &self,
        pass: Pass<api::Health>,
        model: Option<(&str, Option<i64>)>,
        is_ready: impl FnOnce(&dyn ServerControl) -> Result<bool, Status> + Send + 'static,
    ) -> Result<bool, Status> {
        if !guarded(|| Ok(self.control.readiness_may_block(pass, model)))? {
            return guarded(|| is_ready(&*self.control));
        }
        let permit = self.blocking_permits.acquire().await;
        self.run_blocking(move |control| {
            let _permit = permit;
            is_ready(control)
        })
        .await
    }

    fn render_model(
        &self,
        admission: Admission,
        name: &str,
        version: Option<i64>,
        action: ModelAction,
    ) -> Result<HttpResponse, Status> {
        match action {
            ModelAction::Metadata => {
                let metadata = self.control.model_metadata(admission.pass()?, name, version)?;
                Ok(http_response::json(encode_model_metadata(&metadata)))
            }
            ModelAction::Config => {
                let config = self.control.model_config(admission.pass()?, name, version)?;
                Ok(http_response::json(config.json.clone()))
            }
            ModelAction::Statistics => {
                let statistics = self.control.statistics(admission.pass()?, Some(name), version)?;
                Ok(http_response::json(encode_statistics(&statistics)))
            }
            ModelAction::Ready
            | ModelAction::Scheduler
            | ModelAction::Infer
            | ModelAction::Generate
            | ModelAction::GenerateStream => {
                Err(Status::internal("a model's request was taken for another"))
            }
        }
    }

    async fn repository(
        &self,
        admission: Admission,
        route: Route<'_>,
        body: Bytes,
    ) -> Result<HttpResponse, Status> {
        let pass = admission.pass()?;
        match route {
            // As in Triton, the index of any repository is that of all.
            Route::RepositoryIndex { .. } => {
                let request = guarded(|| IndexRequest::decode(&body, &self.limits))?;
                self.index(pass, request.only_ready).await
            }
            Route::Load { repository, model } => {
                let parameters = guarded(|| {
                    refuse_repository_name(repository)?;
                    decode_load_request(&body, &self.limits)
                })?;
                self.change_model(&self.repository_permits.loads, model, move |control, model| {
                    control.load_model(pass, model, parameters)
                })
                .await
            }
            Route::Unload { repository, model } => {
                let request = guarded(|| {
                    refuse_repository_name(repository)?;
                    UnloadRequest::decode(&body, &self.limits)
                })?;
                let dependents = request.unload_dependents;
                self.change_model(&self.repository_permits.unloads, model, move |control, model| {
                    control.unload_model(pass, model, dependents)
                })
                .await
            }
            Route::Live
            | Route::Ready
            | Route::ServerMetadata
            | Route::Model { .. }
            | Route::AllStatistics
            | Route::SharedMemory { .. }
            | Route::Logging
            | Route::TraceSetting { .. } => {
                Err(Status::internal("a request was taken for one to the repository"))
            }
        }
    }

    /// Loads or unloads a model, on a thread that may block.
    async fn change_model(
        &self,
        permits: &BlockingPermits,
        model: &str,
        change: impl FnOnce(&dyn ServerControl, &str) -> Result<(), Status> + Send + 'static,
    ) -> Result<HttpResponse, Status> {
        let model = model.to_owned();
        let permit = permits.acquire().await;
        self.run_blocking(move |control| {
            let _permit = permit;
            change(control, &model)
        })
        .await?;
        Ok(http_response::done())
    }

    /// The repository index. Reading the repositories may block.
    async fn index(
        &self,
        pass: Pass<api::ModelRepository>,
        only_ready: bool,
    ) -> Result<HttpResponse, Status> {
        let permit = self.repository_permits.indexes.acquire().await;
        let index = self
            .run_blocking(move |control| {
                let _permit = permit;
                control.repository_index(pass, only_ready)
            })
            .await?;
        Ok(http_response::json(encode_repository_index(&index)))
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

/// The response, or the error object of its status.
fn or_error(result: Result<HttpResponse, Status>) -> HttpResponse {
    result.unwrap_or_else(|status| http_response::failure(&status))
}

/// The same as plain text.
fn or_plain_error(result: Result<HttpResponse, Status>) -> HttpResponse {
    result.unwrap_or_else(|status| http_response::plain(http_response::failure(&status)))
}

/// The refusal of a method that an endpoint doesn't have.
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

fn health(good: bool) -> HttpResponse {
    http_response::health(if good { StatusCode::OK } else { StatusCode::BAD_REQUEST })
}

fn refuse_repository_name(repository: Option<&str>) -> Result<(), Status> {
    match repository {
        None => Ok(()),
        Some(_) => Err(Status::unsupported("'repository_name' specification is not supported")),
    }
}
