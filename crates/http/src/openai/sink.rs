//! Converts a model's replies to a document or a stream of events.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use galatea_control::{DoorTracePoint, DoorTraceSink};
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::{CancelToken, Finality, InferenceResponse, Reply, ResponseSink, Status};
use galatea_openai::{CompletionReply, Embedding, Failure, Rerank};

use super::adapters::AdapterRegistration;
use super::meters::TextMeter;
use crate::event_queue::{EVENT_BYTES, Event, EventQueue};

/// The maximum length of events that are copied, so that their buffer can be used again.
const COPIED_BYTES_MAX: usize = 4096;

/// The form in which a text is delivered to a client.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum TextDelivery {
    Stream,
    Document,
}

/// The replies to a request.
pub(super) enum ReplyKind {
    Text { completion: Box<CompletionReply>, delivery: TextDelivery },
    Numbers { reply: NumbersReply, document: Option<Vec<u8>>, responses: u64 },
}

/// A reply that consists of numbers.
pub(super) enum NumbersReply {
    Embedding(Box<Embedding>),
    Rerank(Box<Rerank>),
}

impl NumbersReply {
    fn document(&self, response: &InferenceResponse) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Embedding(embedding) => embedding.document(response),
            Self::Rerank(rerank) => rerank.document(response),
        }
    }
}

impl ReplyKind {
    /// Returns the number of prompt tokens, if the response states it.
    fn prompt_tokens(&self, response: &InferenceResponse) -> Option<u64> {
        match self {
            Self::Text { completion, .. } => completion.prompt_tokens(response),
            Self::Numbers { reply: NumbersReply::Embedding(reply), .. } => {
                reply.prompt_tokens(response)
            }
            Self::Numbers { reply: NumbersReply::Rerank(reply), .. } => {
                reply.prompt_tokens(response)
            }
        }
    }
}

/// Receives the replies to a request and turns them into events, on the thread that responds. A
/// document is a single event.
pub(super) struct CompletionSink {
    queue: Arc<EventQueue>,
    kind: ReplyKind,
    meter: TextMeter,
    /// The events that a reply yields, or the document. The buffer is used again for each reply.
    events: Vec<u8>,
    /// The text collected so far, or the part of a stream that its parser keeps.
    collected: MemoryCharge,
    has_begun: bool,
    /// Cancels the model when its text becomes too long.
    cancel: CancelToken,
    trace: Option<Arc<dyn DoorTraceSink>>,
    /// The adapter that the model has after a successful response.
    registration: Option<AdapterRegistration>,
    /// The part of the request that the response repeats.
    _kept: Option<MemoryCharge>,
}

impl CompletionSink {
    pub(super) fn new(
        queue: Arc<EventQueue>,
        kind: ReplyKind,
        meter: TextMeter,
        account: &Arc<MemoryAccount>,
        cancel: CancelToken,
        trace: Option<Arc<dyn DoorTraceSink>>,
    ) -> Self {
        let collected = MemoryCharge::nothing(account.clone());
        Self {
            queue,
            kind,
            meter,
            events: Vec::new(),
            collected,
            has_begun: false,
            cancel,
            trace,
            registration: None,
            _kept: None,
        }
    }

    /// Charges a part of the request until the response is complete.
    pub(super) fn with_kept(mut self, kept: Option<MemoryCharge>) -> Self {
        self._kept = kept;
        self
    }

    /// Notes at the first successful response that the model has the adapter.
    pub(super) fn with_registration(mut self, registration: Option<AdapterRegistration>) -> Self {
        self.registration = registration;
        self
    }

    /// Processes a response, or an end without a response, and appends its events.
    fn take(&mut self, response: Option<&InferenceResponse>, is_last: bool) -> Result<(), Status> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        self.meter.prompt(response.and_then(|response| self.kind.prompt_tokens(response)));
        let meter = &mut self.meter;
        match &mut self.kind {
            ReplyKind::Text { completion, delivery: TextDelivery::Stream } => {
                let events = &mut self.events;
                if is_first {
                    completion.begin(events);
                }
                let tokens = completion.continue_stream(response, is_last, events);
                meter.stream(tokens.map_err(status)?, Instant::now());
                self.collected.set(completion.held_bytes())?;
                if is_last || completion.is_cut_off() {
                    completion.end_stream(events);
                }
            }
            ReplyKind::Text { completion, delivery: TextDelivery::Document } => {
                let added = completion.collect(response).map_err(status)?;
                self.collected.set(self.collected.bytes().saturating_add(added))?;
                if !is_last {
                    return Ok(());
                }
                let usage = completion.collected_usage();
                let stated = usage.and_then(|usage| u64::try_from(usage.completion_tokens).ok());
                self.events = completion.document().map_err(status)?;
                meter.count(stated.unwrap_or(1));
            }
            ReplyKind::Numbers { reply, document, responses } => {
                *responses = responses.saturating_add(1);
                if let Some(response) = response.filter(|_| *responses == 1) {
                    *document = Some(reply.document(response).map_err(status)?);
                }
                if !is_last {
                    return Ok(());
                }
                self.events = document.take().filter(|_| *responses <= 2).ok_or_else(|| {
                    Status::internal(format!(
                        "Unexpected number of responses: {responses}, expected 1 or 2."
                    ))
                })?;
            }
        }
        Ok(())
    }

    /// True if the stream ended before the model did.
    fn is_cut_off(&self) -> bool {
        match &self.kind {
            ReplyKind::Text { completion, .. } => completion.is_cut_off(),
            ReplyKind::Numbers { .. } => false,
        }
    }

    /// Adds the events of a reply.
    fn add(&mut self, is_last: bool) {
        if self.events.is_empty() {
            return;
        }
        let bytes = if self.events.len() > COPIED_BYTES_MAX {
            Bytes::from(std::mem::take(&mut self.events))
        } else {
            let bytes = Bytes::copy_from_slice(&self.events);
            self.events.clear();
            bytes
        };
        let size = bytes.len().saturating_add(EVENT_BYTES);
        match MemoryCharge::new(self.collected.account(), size) {
            Ok(charge) => {
                let event = Event { bytes, _charge: Some(charge) };
                self.queue.add(Some((Some(event), false)), is_last);
            }
            Err(exhausted) => self.fail(&exhausted.into()),
        }
    }

    /// Ends the request with an error, which is sent as the response if nothing was sent, otherwise
    /// as an event.
    fn fail(&mut self, status: &Status) {
        let has_sent = self.queue.has_responses();
        if !has_sent {
            self.queue.refuse(status.clone());
            return;
        }
        // Only texts are sent in several events.
        let mut event = Vec::new();
        if let ReplyKind::Text { completion, .. } = &mut self.kind {
            completion.fail_stream(status.message(), &mut event);
        }
        let event = Event { bytes: event.into(), _charge: None };
        self.queue.add(Some((Some(event), true)), true);
    }
}

fn status(failure: Failure) -> Status {
    Status::internal(failure.to_string())
}

impl ResponseSink for CompletionSink {
    fn deliver(&mut self, reply: Reply) {
        if !self.queue.is_open() {
            return;
        }
        if let Some(trace) = &self.trace {
            trace.record(DoorTracePoint::ResponseComplete, Instant::now());
        }
        let taken = match reply {
            Reply::Finished => self.take(None, true).map(|()| true),
            Reply::Response { result, finality } => result.and_then(|response| match finality {
                Finality::More => self.take(Some(&response), false).map(|()| false),
                Finality::Final => self.take(Some(&response), true).map(|()| true),
                // Triton's frontend receives this end separately.
                Finality::EndApart => {
                    self.take(Some(&response), false)?;
                    if !self.is_cut_off() {
                        self.take(None, true)?;
                    }
                    Ok(true)
                }
            }),
        };
        if let Some(registration) = self.registration.take_if(|_| taken.is_ok()) {
            registration.confirm();
        }
        match taken {
            Ok(_) if self.is_cut_off() => {
                self.add(true);
                self.cancel.cancel();
            }
            Ok(is_last) => self.add(is_last),
            Err(status) => self.fail(&status),
        }
    }

    fn refuse(&mut self, status: Status) {
        self.queue.refuse(status);
    }
}
