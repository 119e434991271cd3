//! The endpoints of the generate extension.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::parse_version;
use galatea_codec_http::{DecodeContext, GenerateBodyFormat, TargetModel, decode_generate};
use galatea_control::{RequestShmRegions, ServedModel};
use galatea_explain::{LatencyExplanation, Milestone};
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{
    AccessPass, Backpressure, CancelToken, Deadline, ResponseSender, Status, Trace, api,
};
use hyper::StatusCode;
use hyper::header::HeaderValue;

use super::Api;
use super::explain::{explain, mark};
use super::trace::{Arrival, Received};
use crate::compression::BodyCoding;
use crate::endpoint::Disconnected;
use crate::event_stream::{Beginning, Collected, EventStream};
use crate::events::Events;
use crate::guard::guarded;
use crate::http_response::{self, HttpResponse};
use crate::long_text::{TextBounds, is_long_request};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;
use crate::route::ModelAction;

/// The model named in a path.
#[derive(Copy, Clone)]
pub(crate) struct NamedModel<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
}

/// A body, and the time at which it was received if requests are traced.
struct ReceivedBody<'a> {
    bytes: Bytes,
    received: Option<Received>,
    deadline: Deadline,
    explanation: Option<&'a Arc<LatencyExplanation>>,
}

impl Api {
    /// Responds to a generate request. If the client disconnects before the response begins, the
    /// future is dropped, which cancels the request. After that, dropping the response cancels it.
    pub(crate) async fn generate<B: RequestBody>(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        body: &mut B,
        model: NamedModel<'_>,
        action: ModelAction<'_>,
    ) -> Result<HttpResponse, Disconnected> {
        let form = match action {
            ModelAction::GenerateStream => GenerateBodyFormat::Event,
            _ => GenerateBodyFormat::Document,
        };
        let arrival = self.arrival();
        let explanation = self.explanation(head);
        let deadline = head.timeouts.deadline();
        let bytes = match self.read_body(head, body, self.limits.input_bytes_max).await? {
            Ok(bytes) => bytes,
            Err(refusal) => return Ok(refusal),
        };
        let received = arrival.map(Arrival::received);
        mark(explanation.as_ref(), Milestone::Received);
        let account = body.account();
        let explanation = explanation.as_ref();
        let body = ReceivedBody { bytes, received, deadline, explanation };
        let begun = Box::pin(self.begin_generation(pass, head, body, account, model, form)).await;
        let mut events = match begun {
            Ok(events) => events,
            Err(status) => return Ok(http_response::failure(&status)),
        };
        let trace = events.trace();
        let response = match form {
            GenerateBodyFormat::Event => {
                let beginning = poll_fn(|context| events.poll_begin(context)).await;
                code(beginning).map(|code| http_response::events(code, Events::Responses(events)))
            }
            GenerateBodyFormat::Document => {
                single(poll_fn(|context| events.poll_collect(context)).await)
            }
        };
        let mut response = match response {
            Ok(mut response) => {
                response.load_report = self.load_report(head);
                response
            }
            Err(status) => http_response::failure(&status),
        };
        mark(explanation, Milestone::TakenUp);
        response.trace = trace;
        explain(&mut response, explanation);
        Ok(response)
    }

    /// Returns the header with the server's load, for a client that requests it.
    fn load_report(&self, head: &RequestHead<'_>) -> Option<HeaderValue> {
        self.load_report.as_ref()?.header(head.load_report?)
    }

    async fn begin_generation(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        body: ReceivedBody<'_>,
        account: &Arc<MemoryAccount>,
        model: NamedModel<'_>,
        form: GenerateBodyFormat,
    ) -> Result<EventStream, Status> {
        let ReceivedBody { bytes, received, deadline, explanation } = body;
        let (target, found) = match guarded(|| self.generating_model(pass, model)) {
            Ok(found) => found,
            Err(missing) => {
                let version = parse_version(model.version)?;
                let found = self.wait_for_model(pass, model.name, version, deadline, missing);
                let target =
                    TargetModel { model_name: model.name.to_owned(), model_version: version };
                (target, Box::pin(found).await?)
            }
        };
        let config = found.config();
        let trace = received.and_then(|received| received.begin_trace(pass, head, model.name));
        if self.dialect.coding(head) != BodyCoding::Identity {
            return Err(Status::invalid_argument(
                "Unsupported content-encoding, only 'identity' is supported.",
            ));
        }
        let is_long = is_long_request(bytes.len());
        let mut request = if is_long {
            let (limits, regions) = (&self.limits, &self.regions);
            let bounds = TextBounds { limits, account, regions, pass };
            self.text_threads.decode_generate(bytes, target, config, &bounds).await?
        } else {
            let regions = RequestShmRegions::new(&*self.regions, pass);
            let bounds = DecodeContext { limits: &self.limits, account, regions };
            guarded(|| decode_generate(&bytes, target, &config, &bounds))?
        };
        request.found_model = Some(found);
        request.cancel = CancelToken::new();
        request.deadline = deadline;
        let (traced, trace) = trace.map(|trace| (trace.request, trace.door)).unzip();
        request.trace = match explanation {
            None => traced,
            Some(explanation) => Some(Trace::with_attachment(traced, explanation.clone())),
        };
        let (sink, events) = EventStream::new(form, account, request.cancel.clone(), trace);
        if form == GenerateBodyFormat::Event {
            request.backpressure =
                Backpressure::default().with_congestion_point(events.congestion_point());
        }
        let service = self.service.clone();
        let infer = move || {
            service.infer(pass, Box::new(request), ResponseSender::new(Box::new(sink)));
            Ok(events)
        };
        // The thread that executes a model inline also writes the response, which takes about as
        // long.
        if is_long { self.text_threads.elsewhere(infer).await } else { guarded(infer) }
    }

    /// Finds the model named in a path.
    fn generating_model(
        &self,
        pass: AccessPass<api::Inference>,
        model: NamedModel<'_>,
    ) -> Result<(TargetModel, Arc<dyn ServedModel>), Status> {
        let version = parse_version(model.version)?;
        let found = self.control.model_for_inference(pass, model.name, version)?;
        let target = TargetModel { model_name: model.name.to_owned(), model_version: version };
        Ok((target, found))
    }
}

/// Returns the status code for a response with this beginning. As in Triton, model errors are
/// attributed to the client regardless of their code.
fn code(beginning: Beginning) -> Result<StatusCode, Status> {
    match beginning {
        Beginning::Response => Ok(StatusCode::OK),
        Beginning::Error => Ok(StatusCode::BAD_REQUEST),
        Beginning::Refusal(status) => Err(status),
    }
}

/// Creates the response to a request for a single response. As in Triton, it has the status of the
/// first response, even if the model sent more than one.
fn single(collected: Collected) -> Result<HttpResponse, Status> {
    let code = code(collected.beginning)?;
    Ok(match collected.only {
        Some(document) => http_response::document(code, document),
        None => http_response::error(
            code,
            "generate expects model to produce exactly 1 response, use generate stream for model \
             that generates various number of responses",
        ),
    })
}
