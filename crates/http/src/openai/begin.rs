//! Requests for texts and embeddings, on their way from the connection to the model and back.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Instant;

use galatea_explain::{LatencyExplanation, Milestone};
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::{
    AccessPass, Backpressure, CancelToken, Deadline, InferenceRequest, ResponseSender, Status,
    Trace, api,
};
use galatea_openai::{ContentType, parsed_size};
use hyper::StatusCode;

use super::endpoint::OpenAi;
use super::meters::TextMeter;
use super::prepare::{BodyKind, MissingModel, NotBegun, Prepared, PreparedReply, ReceivedText};
use super::responses::ErrorForm;
use super::route::OpenAiRoute;
use super::sink::{CompletionSink, ReplyKind, TextDelivery};
use crate::api::{Arrival, Received, explain, mark};
use crate::endpoint::Disconnected;
use crate::event_queue::EventQueue;
use crate::event_stream::{Beginning, Collected, EventStream};
use crate::events::Events;
use crate::guard::guarded;
use crate::http_response::{self, HttpResponse};
use crate::long_text::is_long_request;
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;

impl OpenAi {
    /// Responds to a request for a text or an embedding. If the client disconnects before the
    /// response begins, the future is dropped, which cancels the request. After that, dropping the
    /// response cancels it.
    pub(super) async fn generate<B: RequestBody>(
        &self,
        pass: AccessPass<api::Inference>,
        route: OpenAiRoute<'_>,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let kind = match route {
            OpenAiRoute::Chat => BodyKind::Chat,
            OpenAiRoute::Embedding => BodyKind::Embedding,
            OpenAiRoute::Rerank => BodyKind::Rerank,
            OpenAiRoute::Responses => BodyKind::Response,
            _ => BodyKind::Text,
        };
        let (arrival, arrived) = (self.api.arrival(), Instant::now());
        let explanation = self.api.explanation(head);
        let deadline = head.timeouts.deadline();
        let bytes_max = self.api.limits.input_bytes_max;
        let bytes = match self.api.read_body(head, body, bytes_max).await? {
            Ok(bytes) => bytes,
            Err(refusal) => return Ok(refusal),
        };
        let received = arrival.map(Arrival::received);
        let explanation = explanation.as_ref();
        mark(explanation, Milestone::Received);
        let now = self.now();
        let text = ReceivedText {
            bytes,
            content_type: ContentType::of(head.header("content-type")),
            kind,
            id: self.identifiers.next(now),
            created_secs: now.as_secs(),
            account: body.account().clone(),
            found: None,
        };
        let prepared = match self.prepare(pass, text, deadline).await {
            Ok(prepared) => prepared,
            Err(reason) => return Ok(reason.into_response(kind.error_form())),
        };
        let facts = RequestFacts { arrived, deadline, received, explanation };
        let (events, delivery) = self.submit(pass, head, prepared, facts, body.account());
        Ok(respond(events, delivery, kind.error_form(), explanation).await)
    }

    /// Reads a body and finds its model, for which the request may have to wait.
    async fn prepare(
        &self,
        pass: AccessPass<api::Inference>,
        text: ReceivedText,
        deadline: Deadline,
    ) -> Result<Prepared, NotBegun> {
        let (mut text, missing) = match self.prepare_now(pass, text).await? {
            (text, Err(NotBegun::Missing(missing))) => (text, missing),
            (_, prepared) => return prepared,
        };
        let MissingModel { name, status, failure } = *missing;
        let wait = self.api.wait_for_model(pass, &name, None, deadline, status.clone());
        match Box::pin(wait).await {
            Ok(found) => {
                text.found = Some(found);
                self.prepare_now(pass, text).await?.1
            }
            Err(unchanged) if unchanged == status => Err(failure.into()),
            Err(refusal) => Err(NotBegun::NotLoaded(refusal)),
        }
    }

    /// Reads a body. A long body is processed on another thread, and so is a request that may read
    /// files.
    async fn prepare_now(
        &self,
        pass: AccessPass<api::Inference>,
        text: ReceivedText,
    ) -> Result<(ReceivedText, Result<Prepared, NotBegun>), NotBegun> {
        let charge = if text.bytes.len() > MemoryAccount::SMALL_BYTES_MAX {
            let size = parsed_size(&text.bytes).saturating_mul(text.kind.copies());
            Some(MemoryCharge::new(&text.account, size).map_err(Status::from)?)
        } else {
            None
        };
        let beginner = self.beginner.clone();
        let blocks = is_long_request(text.bytes.len()) || beginner.reads_files(text.kind);
        let prepare = move || {
            let _charge = charge;
            let prepared = beginner.prepare(pass, &text);
            Ok((text, prepared))
        };
        Ok(if blocks { self.api.text_threads.elsewhere(prepare).await? } else { guarded(prepare)? })
    }

    /// Hands a request over to its model.
    fn submit(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        prepared: Prepared,
        facts: RequestFacts<'_>,
        account: &Arc<MemoryAccount>,
    ) -> (EventStream, TextDelivery) {
        let Prepared { model, name, inputs, parameters, reply, registration, kept } = prepared;
        let RequestFacts { arrived, deadline, received, explanation } = facts;
        let trace = received.and_then(|received| received.begin_trace(pass, head, &name));
        let (traced, trace) = trace.map(|trace| (trace.request, trace.door)).unzip();
        let mut request = InferenceRequest {
            found_model: Some(model),
            inputs,
            parameters,
            cancel: CancelToken::new(),
            deadline,
            ..InferenceRequest::default()
        };
        request.trace = match explanation {
            None => traced,
            Some(explanation) => Some(Trace::with_attachment(traced, explanation.clone())),
        };
        let queue = Arc::new(EventQueue::new());
        let (kind, delivery) = match reply {
            PreparedReply::Numbers(reply) => {
                let kind = ReplyKind::Numbers { reply, document: None, responses: 0 };
                (kind, TextDelivery::Document)
            }
            PreparedReply::Text(completion, delivery) => {
                (ReplyKind::Text { completion, delivery }, delivery)
            }
        };
        let meter = TextMeter::new(self.options.meters.of(&name), arrived);
        request.model_name = name;
        let sink = CompletionSink::new(
            queue.clone(),
            kind,
            meter,
            account,
            request.cancel.clone(),
            trace.clone(),
        );
        let sink = sink.with_registration(registration).with_kept(kept);
        let events = EventStream::of(queue, request.cancel.clone(), trace);
        if delivery == TextDelivery::Stream {
            request.backpressure =
                Backpressure::default().with_congestion_point(events.congestion_point());
        }
        let sender = ResponseSender::new(Box::new(sink));
        let service = &self.api.service;
        // A panic drops the sender, which replies with an error.
        let _: Result<(), Status> = guarded(|| {
            service.infer(pass, Box::new(request), sender);
            Ok(())
        });
        (events, delivery)
    }
}

/// Facts that accompany a request.
struct RequestFacts<'a> {
    arrived: Instant,
    deadline: Deadline,
    received: Option<Received>,
    explanation: Option<&'a Arc<LatencyExplanation>>,
}

/// Waits for the response, or for its first event.
async fn respond(
    mut events: EventStream,
    delivery: TextDelivery,
    form: ErrorForm,
    explanation: Option<&Arc<LatencyExplanation>>,
) -> HttpResponse {
    let trace = events.trace();
    let mut response = match delivery {
        TextDelivery::Stream => match poll_fn(|context| events.poll_begin(context)).await {
            Beginning::Refusal(status) => form.refused(&status),
            Beginning::Response | Beginning::Error => {
                http_response::events(StatusCode::OK, Events::Responses(events))
            }
        },
        TextDelivery::Document => match poll_fn(|context| events.poll_collect(context)).await {
            Collected { beginning: Beginning::Refusal(status), .. } => form.refused(&status),
            Collected { only: Some(document), .. } => http_response::json(document),
            Collected { only: None, .. } => {
                form.refused(&Status::internal("the request was dropped without a response"))
            }
        },
    };
    mark(explanation, Milestone::TakenUp);
    response.trace = trace;
    explain(&mut response, explanation);
    response
}
