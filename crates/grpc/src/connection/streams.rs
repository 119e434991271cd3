//! The streams of a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use galatea_codec::forward::add_header_parameters;
use galatea_codec::parse_version;
use galatea_codec::regions::{OutputPostprocessing, SharedMemoryAccess};
use galatea_codec_grpc::InferRequestMessage;
use galatea_codec_grpc::stream::RequestNames;
use galatea_control::{ModelWait, RequestShmRegions};
use galatea_door::catch_panic;
use galatea_explain::LatencyExplanation;
use galatea_gate::access::TenantRefusal;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{
    AccessPass, Backpressure, Code, InferenceRequest, ResponseSender, Status, Trace, api,
};
use h2::RecvStream;

use super::{ConnectionTask, panicked_status};
use crate::budget::{
    ArrivalCharge, CallKind, Outgoing, RequestCharge, RequestSize, ResponsePool, StreamLimits,
};
use crate::call_key::CallKey;
use crate::call_response::{self, CallResponder};
use crate::call_trace::begin_trace;
use crate::calls::{CallHead, CallState};
use crate::context::{DoorContext, ForwardedParameters};
use crate::delay::Delay;
use crate::event::ConnectionEvent;
use crate::failure::Failure;
use crate::model_wait::ModelResult;
use crate::reorder::{ReplyMode, ReplySlot};
use crate::stream::{
    MessageSplitter, Stream, StreamErrors, StreamForm, StreamHandle, StreamInput, StreamReset,
    StreamSink,
};

/// The maximum number of requests that one stream may begin before other streams are served.
const REQUESTS_IN_A_ROW_MAX: usize = 64;

impl ConnectionTask {
    /// Opens a stream.
    pub(super) fn open_stream(
        &mut self,
        mut responder: CallResponder,
        body: RecvStream,
        head: CallHead,
        errors: StreamErrors,
    ) {
        let coding = head.response_coding;
        let delay = Delay(self.context.options.test_delays.stream_response);
        let Some(send) = call_response::send_head(&mut responder, coding) else { return };
        let (form, request_coding) = (StreamForm { errors, coding, delay }, head.request_coding);
        let options = &self.context.options;
        let limits = StreamLimits {
            messages_max: options.stream_messages_max,
            bytes_max: options.stream_bytes_max,
        };
        let memory = self.message_memory();
        let key = self.calls.insert(responder, head, |key| {
            let (budget, inbox) = (self.budget.clone(), self.inbox.clone());
            let handle = Arc::new(StreamHandle::new(key, form, limits, budget, inbox));
            let charge = ArrivalCharge::new(self.budget.clone());
            let messages = MessageSplitter::new(options.message_bytes_max, memory);
            let stream = Stream::new(send, body, messages, handle, charge, request_coding);
            CallState::Streaming(Box::new(stream))
        });
        self.ready_streams.push(key);
    }

    /// Serves every stream that can make progress.
    pub(super) fn serve_streams(&mut self) {
        let mut streams = std::mem::take(&mut self.ready_streams);
        if !self.budget.is_full(CallKind::Stream) {
            for key in self.paused_streams.drain(..) {
                if let Some(stream) = self.calls.stream(key) {
                    stream.resume();
                    streams.push(key);
                }
            }
        }
        for key in streams.drain(..) {
            self.serve_stream(key);
        }
        streams.append(&mut self.ready_streams);
        self.ready_streams = streams;
    }

    /// Begins the stream requests that have arrived, while there is room for them.
    fn serve_stream(&mut self, key: CallKey) {
        let Some(stream) = self.calls.stream(key) else { return };
        if let Err(StreamReset) = stream.pull() {
            if let Some(call) = self.calls.remove(key) {
                call.cancel();
            }
            return;
        }
        stream.handle().clone().budget.resume_models();
        self.begin_requests(key);
        if let Some(stream) = self.calls.stream(key) {
            stream.release_capacity();
            if let Err(failure) = stream.charge_waiting() {
                return self.fail(key, &failure);
            }
        }
        self.end_if_done(key);
    }

    fn begin_requests(&mut self, key: CallKey) {
        for _ in 0..REQUESTS_IN_A_ROW_MAX {
            let Some(stream) = self.calls.stream(key) else { return };
            if self.budget.is_full(CallKind::Stream) {
                if stream.pause() {
                    self.paused_streams.push(key);
                }
                return;
            }
            if stream.is_full() {
                return;
            }
            match stream.next_input(&self.account, &mut self.inflates) {
                StreamInput::Pending | StreamInput::End => return,
                StreamInput::Request(message) => self.begin_request(key, &message),
                StreamInput::Malformed(failure) => {
                    self.fail(key, &failure);
                    return;
                }
            }
        }
        if let Some(stream) = self.calls.stream(key) {
            stream.handle().wake();
        }
    }

    /// Begins a request. Failures are sent like replies, so they keep their place in the order.
    fn begin_request(&mut self, key: CallKey, message: &Bytes) {
        Delay(self.context.options.test_delays.stream_request).wait();
        let Some(call) = self.calls.get_mut(key) else { return };
        let counted = self.context.options.gate.count_request(call.head.admission);
        let refusal = counted.err().map(|refusal| ModelResult(Err(refused(refusal))));
        self.begin_request_with(key, message, refusal);
    }

    /// Begins the request that waited for its model. The requests behind it follow.
    pub(super) fn resume_stream(&mut self, key: CallKey, message: &Bytes, result: ModelResult) {
        let Some(stream) = self.calls.stream(key) else { return };
        stream.end_model_wait();
        self.begin_request_with(key, message, Some(result));
        self.ready_streams.push(key);
    }

    /// Lets a request wait for its model, if the model is loaded on demand, and refuses it
    /// otherwise. The stream's later requests wait behind it, so the requests of a sequence keep
    /// their order.
    fn wait_in_stream(
        &mut self,
        key: CallKey,
        pass: AccessPass<api::Inference>,
        message: &Bytes,
        missing: MissingModel,
    ) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let deadline = call.head.answer_by;
        let Some(stream) = self.calls.stream(key) else { return };
        let MissingModel { name, version, status } = missing;
        let size = RequestSize::of_message(message.len());
        let charge = match RequestCharge::new(self.budget.clone(), size, CallKind::Stream) {
            Ok(charge) => charge,
            Err(exhausted) => {
                let refusal = Some(ModelResult(Err(exhausted.into())));
                return self.begin_request_with(key, message, refusal);
            }
        };
        let cancel = stream.begin_model_wait(charge);
        let (inbox, bytes) = (self.inbox.clone(), message.clone());
        let found = move |result| {
            let result = ModelResult(result);
            let event = ConnectionEvent::StreamModelFound { call: key, message: bytes, result };
            // A closed inbox drops the event, because the connection has ended.
            let _ = inbox.push(event);
        };
        let wait = ModelWait { name, version, deadline, cancel, found: Box::new(found) };
        if self.context.control.wait_for_model(pass, wait).is_err() {
            stream.end_model_wait();
            self.begin_request_with(key, message, Some(ModelResult(Err(status))));
        }
    }

    fn begin_request_with(&mut self, key: CallKey, message: &Bytes, found: Option<ModelResult>) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let pass = match call.head.admission.pass() {
            Ok(pass) => pass,
            Err(mistake) => return self.fail(key, &Status::from(mistake).into()),
        };
        let tracing = self.context.options.tracing.as_ref();
        let received = call.head.waiting.received(tracing);
        let account = self.budget.account();
        let mut parsed = ParsedMessage::new(pass, &self.context, account, message, found);
        parsed.forward(&call.head.forwarded);
        if let Some(missing) = parsed.missing.take() {
            return self.wait_in_stream(key, pass, message, missing);
        }
        let arrived = |one: &Arc<LatencyExplanation>| one.begin_next(Instant::now());
        let explanation = call.head.explanation.as_ref().map(arrived);
        let trace = parsed.request.as_mut().ok().and_then(|request| {
            let context = &call.head.trace_context;
            let (traced, trace) =
                begin_trace(tracing, pass, &request.model_name, context, received)?;
            request.trace = Some(traced);
            Some(trace)
        });
        let answer_by = call.head.answer_by;
        let Some(stream) = self.calls.stream(key) else { return };
        let size = match &parsed.request {
            Ok(request) => RequestSize::new(message.len(), request),
            Err(_) => RequestSize::of_message(message.len()),
        };
        let (slot, cancel) = stream.begin(parsed.mode, size.bytes);
        let handle = stream.handle().clone();
        let pool = match parsed.mode {
            ReplyMode::Immediate => self.context.options.response_pool_size,
            ReplyMode::Ordered => None,
        };
        let pool = pool.map(|size| Arc::new(ResponsePool::new(handle.budget.clone(), size)));
        let backpressure = backpressure(parsed.mode, pool.as_ref(), &handle);
        let ParsedMessage { tag, mode, sends_empty_final, replaced, request, .. } = parsed;
        let budget = &self.budget;
        let (request, charge) = match RequestCharge::new(budget.clone(), size, CallKind::Stream) {
            Ok(charge) => (request, charge),
            Err(exhausted) => {
                let charge = RequestCharge::of_refused(budget.clone(), size, CallKind::Stream);
                (Err(exhausted.into()), charge)
            }
        };
        let sink = StreamSink::new(handle, slot, mode, tag, sends_empty_final, replaced, charge)
            .traced(trace)
            .explained(explanation.clone());
        let sink = match pool {
            Some(pool) => sink.within(pool),
            None => sink,
        };
        let sender = ResponseSender::new(Box::new(sink));
        match request {
            Err(status) => sender.refuse(status),
            Ok(mut request) => {
                request.cancel = self.context.options.test_delays.told(cancel);
                request.backpressure = backpressure;
                request.deadline = answer_by;
                if let Some(explanation) = explanation {
                    request.trace = Some(Trace::with_attachment(request.trace.take(), explanation));
                }
                // A panic drops the sender, which then sends an error.
                let _ = catch_panic(|| self.context.service.infer(pass, request, sender));
            }
        }
    }

    /// Handles a reply to a stream request.
    pub(super) fn stream_reply(
        &mut self,
        key: CallKey,
        slot: ReplySlot,
        message: Option<Result<Outgoing, Failure>>,
        is_final: bool,
    ) {
        let Some(stream) = self.calls.stream(key) else { return };
        match stream.reply(slot, message, is_final) {
            Ok(()) => self.end_if_done(key),
            Err(failure) => self.fail(key, &failure),
        }
    }

    /// Resets a stream whose client reads so slowly that responses had to be dropped.
    pub(super) fn reset_stream(&mut self, key: CallKey) {
        if let Some(stream) = self.calls.stream(key) {
            stream.reset();
            self.calls.remove(key);
        }
    }

    /// Ends a stream that has nothing left to do because its client has ended it or the door is
    /// stopping.
    fn end_if_done(&mut self, key: CallKey) {
        let Some(stream) = self.calls.stream(key) else { return };
        if stream.is_done() {
            stream.finish();
            self.calls.remove(key);
        } else if stream.is_idle()
            && let Err(status) = self.context.refuse_while_stopping()
        {
            self.fail(key, &status.into());
        }
    }

    /// Ends the streams that have no request in progress. The other streams end later.
    pub(super) fn end_idle_streams(&mut self) {
        for key in self.calls.select(|call| matches!(call.state, CallState::Streaming(_))) {
            self.end_if_done(key);
        }
    }
}

/// The status of a request that exceeds a limit of its tenant, or whose tenant no longer exists.
fn refused(refusal: TenantRefusal) -> Status {
    let text = refusal.to_string();
    match refusal {
        TenantRefusal::TooManyRequests { retry_after_ms } => {
            let time = Duration::from_millis(retry_after_ms.into());
            Status::new(Code::Exhausted, text).with_retry_after(time)
        }
        TenantRefusal::MissingKey | TenantRefusal::UnknownKey | TenantRefusal::ForbiddenApi(_) => {
            Status::unavailable(text)
        }
    }
}

/// The point at which a model must pause because its client reads slowly.
fn backpressure(
    mode: ReplyMode,
    pool: Option<&Arc<ResponsePool>>,
    handle: &Arc<StreamHandle>,
) -> Backpressure {
    match (mode, pool) {
        (ReplyMode::Immediate, Some(pool)) => {
            Backpressure::default().with_congestion_point(pool.clone())
        }
        (ReplyMode::Immediate, None) => {
            Backpressure::default().with_congestion_point(handle.budget.clone())
        }
        (ReplyMode::Ordered, _) => Backpressure::default(),
    }
}

/// A stream message with its request, or the reason why the message is refused.
struct ParsedMessage {
    tag: RequestNames,
    mode: ReplyMode,
    sends_empty_final: bool,
    replaced: OutputPostprocessing,
    /// The model that was not found, unless the request has waited for it.
    missing: Option<MissingModel>,
    request: Result<Box<InferenceRequest>, Status>,
}

/// A model that was not found. It may be one that is loaded on demand.
struct MissingModel {
    name: String,
    version: Option<i64>,
    /// The error of the lookup.
    status: Status,
}

impl ParsedMessage {
    fn new(
        pass: AccessPass<api::Inference>,
        context: &DoorContext,
        account: &Arc<MemoryAccount>,
        message: &Bytes,
        found: Option<ModelResult>,
    ) -> Self {
        let mut parsed = Self {
            tag: RequestNames::default(),
            mode: ReplyMode::Ordered,
            sends_empty_final: false,
            replaced: OutputPostprocessing::default(),
            missing: None,
            request: Err(panicked_status()),
        };
        // After a panic, the fields contain the parts that were parsed before it.
        let parse = || parsed.parse(pass, context, account, message, found);
        if let Ok(request) = catch_panic(parse) {
            parsed.request = request;
        }
        parsed
    }

    /// Adds the parameters from the stream's metadata.
    fn forward(&mut self, forwarded: &ForwardedParameters) {
        match (&mut self.request, forwarded) {
            (Ok(request), Ok(headers)) => {
                add_header_parameters(&mut request.parameters, headers.clone())
            }
            (Ok(_), Err(status)) => self.request = Err(status.clone()),
            (Err(_), _) => {}
        }
    }

    fn parse(
        &mut self,
        pass: AccessPass<api::Inference>,
        context: &DoorContext,
        account: &Arc<MemoryAccount>,
        message: &Bytes,
        found: Option<ModelResult>,
    ) -> Result<Box<InferenceRequest>, Status> {
        let message = InferRequestMessage::parse_charged(message, Some(account))?;
        self.tag = RequestNames::new(&message);
        if found.is_none() {
            context.refuse_while_stopping()?;
        }
        let version = parse_version(message.model_version())?;
        let model = match found {
            Some(ModelResult(result)) => result?,
            None => {
                let found =
                    context.control.model_for_inference(pass, message.model_name(), version);
                found.inspect_err(|status| {
                    let (name, status) = (message.model_name().to_owned(), status.clone());
                    self.missing = Some(MissingModel { name, version, status });
                })?
            }
        };
        if model.is_decoupled() {
            self.mode = ReplyMode::Immediate;
        }
        self.sends_empty_final = message.enables_empty_final_response();
        let regions = RequestShmRegions::new(&*context.options.regions, pass);
        let (mut request, replaced) =
            message.into_request(version, &SharedMemoryAccess { regions, account })?;
        request.found_model = Some(model);
        self.replaced = replaced;
        Ok(request)
    }
}
