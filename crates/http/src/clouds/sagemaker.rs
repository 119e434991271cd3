//! The SageMaker door: a single model behind `/invocations`, or archives that SageMaker loads and
//! unloads.

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::limits::MessageLimits;
use galatea_codec_http::{SageMakerLoadRequest, SageMakerModelPath, SageMakerUrlError};
use galatea_gate::access::AccessGrant;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{Code, Status};
use hyper::StatusCode;

use super::archives::{Archives, LoadFailure, UnloadFailure, WantedArchive};
use super::options::{InferenceType, PingCheck, SageMakerOptions};
use super::sagemaker_route::SageMakerRoute;
use crate::api::Api;
use crate::endpoint::{Disconnected, Endpoint};
use crate::guard::guarded;
use crate::http_response::{self, HttpResponse};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;
use crate::route::{ModelAction, Route};

/// The header that names an archive's model.
const TARGET_MODEL: &str = "X-Amzn-SageMaker-Target-Model";

/// The endpoint of the SageMaker door.
pub(crate) struct SageMaker {
    api: Api,
    archives: Arc<Archives>,
    options: SageMakerOptions,
}

impl Endpoint for SageMaker {
    async fn respond<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let response = match SageMakerRoute::of(&head.method, head.path) {
            Some(route) => self.route(route, head, body).await?,
            None => http_response::bare(StatusCode::BAD_REQUEST),
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

impl SageMaker {
    pub(crate) fn new(api: Api, options: SageMakerOptions) -> Self {
        let archives = Archives::new(
            api.control.clone(),
            options.archives.clone(),
            api.repository_permits.clone(),
            options.notices.clone(),
        );
        Self { api, archives: Arc::new(archives), options }
    }

    async fn route<B: RequestBody>(
        &self,
        route: SageMakerRoute<'_>,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        match route {
            SageMakerRoute::Ping => {
                let asked = match self.options.ping {
                    PingCheck::Live => Route::Live,
                    PingCheck::Ready => Route::Ready,
                };
                return self.api.serve(asked, &head.method, head, body).await;
            }
            SageMakerRoute::Invocations => return self.invocations(head, body).await,
            SageMakerRoute::List
            | SageMakerRoute::Load
            | SageMakerRoute::Describe(_)
            | SageMakerRoute::Unload(_)
            | SageMakerRoute::Invoke(_) => {}
        }
        let admission = match self.api.admit(route.category(), head) {
            Ok(admission) => admission,
            Err(refusal) => return Ok(http_response::restricted(refusal)),
        };
        match route {
            SageMakerRoute::Invoke(name) => self.invoke(admission, name, head, body).await,
            SageMakerRoute::Load => self.load(admission, head, body).await,
            SageMakerRoute::List => Ok(self.list(admission).await),
            SageMakerRoute::Unload(name) => Ok(self.unload(admission, name, head).await),
            SageMakerRoute::Describe(name) => Ok(described(self.archives.describe(name))),
            SageMakerRoute::Ping | SageMakerRoute::Invocations => {
                Ok(refusal(&Status::internal("a request was taken for one about archives")))
            }
        }
    }

    /// Serves a request to the default model.
    async fn invocations<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let action = match &self.options.inference {
            InferenceType::Infer => ModelAction::Infer,
            InferenceType::Generate => ModelAction::Generate,
            InferenceType::GenerateStream => ModelAction::GenerateStream,
            InferenceType::Unknown(name) => {
                return Ok(refusal(&Status::internal(format!(
                    "Server has invalid inference type '{name}'. Must be one of: infer, generate, \
                     generate_stream."
                ))));
            }
        };
        let name = &self.options.default_model;
        let route = Route::Model { name, version: "", action };
        self.api.serve(route, &head.method, head, body).await
    }

    /// Serves a request to the model of an archive.
    async fn invoke<B: RequestBody>(
        &self,
        admission: AccessGrant,
        name: &str,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        if !self.archives.contains(name) {
            return Ok(http_response::bare(StatusCode::NOT_FOUND));
        }
        let target = target_model(head).unwrap_or_else(|| name.to_owned());
        match admission.pass() {
            Ok(pass) => Ok(invoked(self.api.infer(pass, head, body, &target, "").await?)),
            Err(mistake) => Ok(refusal(&mistake.into())),
        }
    }

    async fn load<B: RequestBody>(
        &self,
        admission: AccessGrant,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let body = match self.api.read_body(head, body, self.api.limits.input_bytes_max).await? {
            Ok(body) => body,
            Err(refusal) => return Ok(refusal),
        };
        let failure = match guarded(|| Ok(self.wanted(head, &body))) {
            Ok(Ok(wanted)) => self.load_wanted(admission, wanted).await.err(),
            Ok(Err(failure)) => Some(failure),
            Err(status) => Some(LoadFailure::Refused(status)),
        };
        Ok(match failure {
            None => http_response::bare(StatusCode::OK),
            Some(LoadFailure::System) => http_response::bare(StatusCode::BAD_REQUEST),
            Some(LoadFailure::Refused(status)) => refusal(&status),
            Some(LoadFailure::Load(status)) => {
                let is_short = is_out_of_memory(status.message().as_bytes());
                let short = || plain_error(StatusCode::INSUFFICIENT_STORAGE, &status);
                if is_short { short() } else { refusal(&status) }
            }
        })
    }

    /// Returns the archive that a load request specifies.
    fn wanted(&self, head: &RequestHead<'_>, body: &[u8]) -> Result<WantedArchive, LoadFailure> {
        let request = SageMakerLoadRequest::decode(body, &self.api.limits);
        let SageMakerLoadRequest { model_name, url } = request.map_err(LoadFailure::Refused)?;
        let refused = |reason: String| LoadFailure::Refused(Status::invalid_argument(reason));
        if model_name.len() > MessageLimits::NAME_BYTES_MAX {
            let most = MessageLimits::NAME_BYTES_MAX;
            return Err(refused(format!("\"model_name\" has more than {most} bytes")));
        }
        let path = SageMakerModelPath::of(&url).map_err(|error| match error {
            SageMakerUrlError::System => LoadFailure::System,
            SageMakerUrlError::Form(_) => refused(error.to_string()),
        })?;
        let target = target_model(head).unwrap_or_else(|| model_name.clone());
        Ok(WantedArchive { name: model_name, target, path })
    }

    async fn load_wanted(
        &self,
        admission: AccessGrant,
        wanted: WantedArchive,
    ) -> Result<(), LoadFailure> {
        let pass = admission.pass().map_err(|mistake| LoadFailure::Refused(mistake.into()))?;
        let target = &wanted.target;
        (self.options.notices)(&format_args!("Loading SageMaker TargetModel: {target}"));
        self.archives.load(pass, wanted).await
    }

    async fn list(&self, admission: AccessGrant) -> HttpResponse {
        let listed = match admission.pass() {
            Ok(pass) => self.archives.list(pass).await,
            Err(mistake) => Err(mistake.into()),
        };
        listed.map_or_else(|status| refusal(&status), |list| described(Some(list)))
    }

    async fn unload(
        &self,
        admission: AccessGrant,
        name: &str,
        head: &RequestHead<'_>,
    ) -> HttpResponse {
        let pass = match admission.pass() {
            Ok(pass) => pass,
            Err(mistake) => return refusal(&mistake.into()),
        };
        match self.archives.unload(pass, name.to_owned(), target_model(head)).await {
            Ok(()) => http_response::bare(StatusCode::OK),
            Err(UnloadFailure::Unknown) => http_response::bare(StatusCode::NOT_FOUND),
            Err(UnloadFailure::Refused(status)) => refusal(&status),
        }
    }
}

/// Returns the model that the header specifies. Like Triton, it reads no other header that names a
/// model.
fn target_model(head: &RequestHead<'_>) -> Option<String> {
    head.header(TARGET_MODEL).map(|name| String::from_utf8_lossy(name).into_owned())
}

/// Creates a document about archives. Its content type is Triton's.
fn described(document: Option<Vec<u8>>) -> HttpResponse {
    match document {
        Some(document) => http_response::plain(http_response::json(document)),
        None => http_response::bare(StatusCode::NOT_FOUND),
    }
}

/// Refuses a request about archives. As in Triton, the code is 409 for an archive that already
/// exists, and 400 for any other reason.
fn refusal(status: &Status) -> HttpResponse {
    let code = match status.code() {
        Code::AlreadyExists => StatusCode::CONFLICT,
        _ => StatusCode::BAD_REQUEST,
    };
    plain_error(code, status)
}

fn plain_error(code: StatusCode, status: &Status) -> HttpResponse {
    http_response::plain(http_response::error(code, status.message()))
}

/// Converts the response to a request for an archive's model. As in Triton, failures are attributed
/// to the client whatever the reason, unless memory is short; in that case, SageMaker unloads other
/// models.
fn invoked(response: HttpResponse) -> HttpResponse {
    // A client that should retry, or was cut off, is informed as at the other doors.
    if response.code.is_success() || response.closes || response.retry_after_secs.is_some() {
        return response;
    }
    let is_short = response.chunks.iter().any(|text: &Bytes| is_out_of_memory(text));
    let code = if is_short { StatusCode::INSUFFICIENT_STORAGE } else { StatusCode::BAD_REQUEST };
    http_response::document(code, response.chunks.concat().into())
}

/// Returns true if a message reports a lack of memory or disk space. The words are Triton's.
fn is_out_of_memory(text: &[u8]) -> bool {
    const WORDS: [&[u8]; 17] = [
        b"CUDA out of memory",
        b"CUDA_OUT_OF_MEMORY",
        b"Out of memory",
        b"Out Of Memory",
        b"out of memory",
        b"MemoryError",
        b"OutOfMemory",
        b"OOM",
        b"Dst tensor is not initialized",
        b"Src tensor is not initialized",
        b"CNMEM_STATUS_OUT_OF_MEMORY",
        b"CUDNN_STATUS_NOT_INITIALIZED",
        b"CUBLAS_STATUS_ALLOC_FAILED",
        b"CUBLAS_STATUS_NOT_INITIALIZED",
        b"Failed to allocate memory",
        b"failed to allocate memory",
        b"No space left on device",
    ];
    WORDS.iter().any(|words| text.windows(words.len()).any(|part| part == *words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_memory_are_known_by_their_words() {
        for text in ["x: CUDA out of memory.", "MemoryError", "OOM", "a No space left on device"] {
            assert!(is_out_of_memory(text.as_bytes()), "{text}");
        }
        for text in ["", "memory", "out of", "oom"] {
            assert!(!is_out_of_memory(text.as_bytes()), "{text}");
        }
    }
}
