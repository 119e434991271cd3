//! The endpoints of the protocol.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::forward::HeaderForward;
use galatea_codec::http::{
    IndexRequest, UnloadRequest, body_too_large, decode_load_request, encode_model_metadata,
    encode_repository_index, encode_server_metadata, encode_statistics, parse_version,
};
use galatea_codec::limits::Limits;
use galatea_infer::{InferenceService, ServerControl, Status};
use hyper::StatusCode;
use tokio::sync::Semaphore;

use crate::body::{BodyError, BodyLimits, RequestBody};
use crate::door::{Closed, Endpoint};
use crate::head::Head;
use crate::mailroom::Mailrooms;
use crate::respond::{self, Reply};
use crate::route::{ModelAction, Route, SharedMemoryAction, SharedMemoryKind};
use crate::unwanted::Unwanted;
use crate::{HttpOptions, RequestLog};

/// What the endpoints need.
pub(crate) struct Api {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) control: Arc<dyn ServerControl>,
    pub(crate) limits: Limits,
    pub(crate) header_forward: Option<HeaderForward>,
    pub(crate) mailrooms: Mailrooms,
    chunks_max: u32,
    /// As many backends may be asked at once whether they are ready.
    questions: Arc<Semaphore>,
    unwanted: Unwanted,
    request_log: Option<RequestLog>,
}

/// How many threads may wait for backends that are asked whether they are ready. Who
/// asks beyond that waits for its turn, one question per connection.
const QUESTIONS_MAX: usize = 16;

/// The status of a server that is on its way out.
pub(crate) fn exiting() -> Status {
    Status::unavailable("Server exiting")
}

/// Runs `work` and makes an error of a panic: one request's misfortune is
/// nobody else's.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Status::internal("the server failed while it handled the request")))
}

impl Endpoint for Api {
    async fn respond<B: RequestBody>(
        &self,
        head: &Head<'_>,
        body: &mut B,
    ) -> Result<Reply, Closed> {
        let reply = self.answer(head, body).await?;
        if let Some(log) = &self.request_log {
            log.tell(head, &reply);
        }
        self.unwanted.discard_rest(head, &reply, body).await;
        Ok(reply)
    }

    fn wants_headers(&self) -> bool {
        self.header_forward.is_some()
    }

    fn stop(&self) {
        self.unwanted.stop();
    }
}

impl Api {
    async fn answer<B: RequestBody>(&self, head: &Head<'_>, body: &mut B) -> Result<Reply, Closed> {
        let Some(route) = Route::of(head.path) else {
            return Ok(respond::error(StatusCode::NOT_FOUND, "Not Found"));
        };
        if !route.allows(&head.method) {
            return Ok(respond::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"));
        }
        match route {
            Route::Model { name, version, action: ModelAction::Infer } => {
                self.infer(head, body, name, version).await
            }
            Route::RepositoryIndex { .. } | Route::Load { .. } | Route::Unload { .. } => {
                match self.read_body(head, body).await? {
                    Ok(body) => Ok(reply(self.repository(route, body).await)),
                    Err(refusal) => Ok(refusal),
                }
            }
            Route::Ready => Ok(reply(self.ready().await)),
            Route::Model { name, version, action: ModelAction::Ready } => {
                Ok(reply(self.model_ready(name, version).await))
            }
            Route::Live
            | Route::ServerMetadata
            | Route::Model { .. }
            | Route::AllStatistics
            | Route::SharedMemory { .. }
            | Route::Logging
            | Route::TraceSetting => {
                let answer = guarded(|| self.show(&route));
                Ok(reply(answer))
            }
        }
    }

    pub(crate) fn new(
        service: Arc<dyn InferenceService>,
        control: Arc<dyn ServerControl>,
        mailrooms: Mailrooms,
        options: &HttpOptions,
    ) -> Self {
        let limits = options.limits();
        let unwanted_bytes_max = limits.input_bytes_max.saturating_mul(4);
        Self {
            service,
            control,
            limits,
            header_forward: options.header_forward.clone(),
            mailrooms,
            chunks_max: options.max_chunks,
            questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            unwanted: Unwanted::new(unwanted_bytes_max, options.discard_silence_max),
            request_log: options.request_log.clone(),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.unwanted.is_stopping()
    }

    /// Answers what needs no body.
    fn show(&self, route: &Route<'_>) -> Result<Reply, Status> {
        match *route {
            Route::Live if self.is_stopping() => Err(exiting()),
            Route::Live => Ok(health(self.control.live())),
            Route::ServerMetadata => {
                Ok(respond::json(encode_server_metadata(&self.control.server_metadata())))
            }
            Route::Model { name, version, action } => {
                self.show_model(name, parse_version(version)?, action)
            }
            Route::AllStatistics => {
                Ok(respond::json(encode_statistics(&self.control.statistics(None, None)?)))
            }
            Route::SharedMemory { kind, region, action } => shared_memory(kind, region, action),
            Route::Logging => Err(Status::unsupported(
                "the logging extension is not available in this server: logging is set when the \
                 server is started",
            )),
            Route::TraceSetting => {
                Err(Status::unsupported("the trace extension is not available in this server"))
            }
            Route::Ready => Err(Status::internal("a question was taken for another")),
            Route::RepositoryIndex { .. } | Route::Load { .. } | Route::Unload { .. } => {
                Err(Status::internal("a repository request was taken for another"))
            }
        }
    }

    async fn ready(&self) -> Result<Reply, Status> {
        if self.is_stopping() {
            return Err(exiting());
        }
        self.ask(None, |control| control.ready()).await.map(health)
    }

    async fn model_ready(&self, name: &str, version: &str) -> Result<Reply, Status> {
        let version = parse_version(version)?;
        let owned = name.to_owned();
        let ask = move |control: &dyn ServerControl| control.model_ready(&owned, version);
        if self.ask(Some((name, version)), ask).await? {
            return Ok(respond::empty(StatusCode::OK));
        }
        Ok(respond::error(StatusCode::BAD_REQUEST, "Model version not ready"))
    }

    /// Asks whether something is ready: here, unless a backend is asked, which may
    /// take time that other connections don't have.
    async fn ask(
        &self,
        model: Option<(&str, Option<i64>)>,
        question: impl FnOnce(&dyn ServerControl) -> Result<bool, Status> + Send + 'static,
    ) -> Result<bool, Status> {
        if !guarded(|| Ok(self.control.readiness_may_block(model)))? {
            return guarded(|| question(&*self.control));
        }
        // The thread has the turn, which outlasts a client that leaves.
        let turn = self.questions.clone().acquire_owned().await;
        let turn = turn.map_err(|_closed| exiting())?;
        self.waiting(move |control| {
            let _turn = turn;
            question(control)
        })
        .await
    }

    fn show_model(
        &self,
        name: &str,
        version: Option<i64>,
        action: ModelAction,
    ) -> Result<Reply, Status> {
        match action {
            ModelAction::Metadata => {
                let metadata = self.control.model_metadata(name, version)?;
                Ok(respond::json(encode_model_metadata(&metadata)))
            }
            ModelAction::Config => {
                let config = self.control.model_config(name, version)?;
                Ok(respond::json(config.json.clone()))
            }
            ModelAction::Statistics => {
                let statistics = self.control.statistics(Some(name), version)?;
                Ok(respond::json(encode_statistics(&statistics)))
            }
            ModelAction::Scheduler => {
                Ok(respond::json(self.control.scheduler_status(name, version)?))
            }
            ModelAction::Generate => {
                Err(Status::unsupported("the generate extension is not available in this server"))
            }
            ModelAction::Ready | ModelAction::Infer => {
                Err(Status::internal("a model's request was taken for another"))
            }
        }
    }

    async fn repository(&self, route: Route<'_>, body: Bytes) -> Result<Reply, Status> {
        match route {
            Route::RepositoryIndex { repository } => {
                let request = guarded(|| {
                    refuse_repository_name(repository)?;
                    IndexRequest::decode(&body, &self.limits)
                })?;
                self.index(request.only_ready).await
            }
            Route::Load { repository, model } => {
                let parameters = guarded(|| {
                    refuse_repository_name(repository)?;
                    decode_load_request(&body, &self.limits)
                })?;
                self.change(model, |control, model| control.load_model(model, parameters)).await
            }
            Route::Unload { repository, model } => {
                let request = guarded(|| {
                    refuse_repository_name(repository)?;
                    UnloadRequest::decode(&body, &self.limits)
                })?;
                let dependents = request.unload_dependents;
                self.change(model, move |control, model| control.unload_model(model, dependents))
                    .await
            }
            Route::Live
            | Route::Ready
            | Route::ServerMetadata
            | Route::Model { .. }
            | Route::AllStatistics
            | Route::SharedMemory { .. }
            | Route::Logging
            | Route::TraceSetting => {
                Err(Status::internal("a request was taken for one to the repository"))
            }
        }
    }

    /// Loads or unloads on a thread that may wait: it takes as long as the
    /// model takes, and connections must go on meanwhile.
    async fn change(
        &self,
        model: &str,
        change: impl FnOnce(&dyn ServerControl, &str) -> Result<(), Status> + Send + 'static,
    ) -> Result<Reply, Status> {
        let model = model.to_owned();
        self.waiting(move |control| change(control, &model)).await?;
        Ok(respond::empty(StatusCode::OK))
    }

    /// The index looks at the repositories, which may be slow.
    async fn index(&self, only_ready: bool) -> Result<Reply, Status> {
        let index = self.waiting(move |control| Ok(control.repository_index(only_ready))).await?;
        Ok(respond::json(encode_repository_index(&index)))
    }

    async fn waiting<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn ServerControl) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let control = self.control.clone();
        let done = tokio::task::spawn_blocking(move || guarded(|| work(&*control)));
        done.await.unwrap_or_else(|_| Err(exiting()))
    }

    /// Reads the body, or says what is to be answered instead of it.
    pub(crate) async fn read_body<B: RequestBody>(
        &self,
        head: &Head<'_>,
        body: &mut B,
    ) -> Result<Result<Bytes, Reply>, Closed> {
        let limits =
            BodyLimits { bytes_max: self.limits.input_bytes_max, chunks_max: self.chunks_max };
        // It has not sent anything then, and sees the answer.
        let waits_to_be_told = head.expects && body.length_min() > limits.bytes_max;
        let collected = tokio::select! {
            biased;
            collected = body.collect(limits) => collected,
            // What has not arrived by now would keep the server from ending.
            () = self.unwanted.stopped() => Err(BodyError::Stopping),
        };
        let error = match collected {
            Ok(bytes) => return Ok(Ok(bytes)),
            Err(error) => error,
        };
        let refusal = self.refusal(head, error)?;
        if !waits_to_be_told {
            self.unwanted.discard(body).await;
        }
        Ok(Err(respond::closing(refusal)))
    }

    fn refusal(&self, head: &Head<'_>, error: BodyError) -> Result<Reply, Closed> {
        match error {
            BodyError::Truncated => Err(Closed),
            BodyError::Stopping => Ok(respond::failure(&exiting())),
            BodyError::TooLarge { length } => {
                let header_length = head.header_length.map(|value| {
                    let text = std::str::from_utf8(value).ok();
                    text.and_then(|text| text.parse().ok()).unwrap_or(1)
                });
                Ok(respond::failure(&body_too_large(length, header_length, &self.limits)))
            }
            BodyError::TooManyChunks => Ok(respond::error(
                StatusCode::BAD_REQUEST,
                &format!(
                    "Chunked request body exceeds maximum of {} non-empty chunks. Send fewer or \
                     larger HTTP chunks.",
                    self.chunks_max
                ),
            )),
        }
    }
}

fn reply(answer: Result<Reply, Status>) -> Reply {
    answer.unwrap_or_else(|status| respond::failure(&status))
}

fn health(good: bool) -> Reply {
    respond::empty(if good { StatusCode::OK } else { StatusCode::BAD_REQUEST })
}

fn refuse_repository_name(repository: Option<&str>) -> Result<(), Status> {
    match repository {
        None => Ok(()),
        Some(_) => Err(Status::unsupported("'repository_name' specification is not supported")),
    }
}

/// No region can be registered here, so the list of regions is empty.
fn shared_memory(
    kind: SharedMemoryKind,
    region: Option<&str>,
    action: SharedMemoryAction,
) -> Result<Reply, Status> {
    match (action, region) {
        (SharedMemoryAction::Status, None) => Ok(respond::json("[]")),
        (SharedMemoryAction::Status, Some(region)) => Err(Status::not_found(format!(
            "Unable to find {kind} shared memory region: '{region}'"
        ))),
        (SharedMemoryAction::Register | SharedMemoryAction::Unregister, _) => {
            Err(Status::unsupported("client shared memory is not available in this server"))
        }
    }
}
