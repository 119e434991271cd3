//! The unary calls of a connection.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use galatea_codec::compression::ContentCoding;
use galatea_codec::forward::add_header_parameters;
use galatea_codec::parse_version;
use galatea_codec::regions::SharedMemoryAccess;
use galatea_codec_grpc::{GrpcCode, InferRequestMessage};
use galatea_control::{ModelWait, RequestShmRegions, ServedModel};
use galatea_door::{BlockingPermits, Panicked, catch_panic};
use galatea_explain::{LatencyExplanation, Milestone};
use galatea_gate::access::AccessGrant;
use galatea_gate::ledger::MemoryCharge;
use galatea_infer::{AccessPass, CancelToken, Deadline, ResponseSender, Status, Trace, api};
use galatea_stdx::Inbox;
use h2::RecvStream;

use super::{ConnectionTask, panicked, panicked_status};
use crate::budget::{
    ArrivalCharge, CallKind, MemoryBudget, Outgoing, RequestCharge, RequestSize, ResponseBudget,
};
use crate::call_key::CallKey;
use crate::call_response::{self, CallResponder};
use crate::call_sink::{CallSink, ResponseForm};
use crate::call_trace::{Received, TraceContext, begin_trace};
use crate::calls::{CallHead, CallState, IncomingMessage, ReceiveResult};
use crate::compression::Inflating;
use crate::context::{DoorContext, ForwardedParameters};
use crate::control;
use crate::delay::Delay;
use crate::event::ConnectionEvent;
use crate::failure::Failure;
use crate::message_reader::MessageReader;
use crate::model_wait::{ModelResult, WaitingCall};
use crate::route::Method;

impl ConnectionTask {
    /// Opens a unary call whose message has yet to arrive.
    pub(super) fn open_call(
        &mut self,
        responder: CallResponder,
        body: RecvStream,
        head: CallHead,
        method: Method,
    ) {
        let context = &self.context;
        let reader = MessageReader::new(context.options.bytes_max(method), self.message_memory());
        let charge = ArrivalCharge::new(self.budget.clone());
        let message =
            IncomingMessage { method, body, reader, inflation: None, waiting: None, charge };
        let key = self.calls.insert(responder, head, |_| CallState::Receiving(message));
        self.receiving.push(key);
    }

    /// Reads the available data of every incomplete message.
    pub(super) fn receive_messages(&mut self) {
        if self.receiving.is_empty() {
            return;
        }
        let mut receiving = std::mem::take(&mut self.receiving);
        receiving.retain(|&key| self.receive_message(key));
        self.receiving = receiving;
    }

    /// Reads the message of a call. Returns true if more of it must arrive.
    fn receive_message(&mut self, key: CallKey) -> bool {
        let Some(call) = self.calls.get_mut(key) else { return false };
        let CallState::Receiving(message) = &mut call.state else { return false };
        let inflating = Inflating {
            coding: call.head.request_coding,
            bytes_max: self.context.options.bytes_max(message.method),
            account: &self.account,
        };
        if self.budget.is_full(CallKind::Unary) && !message.method.has_short_response() {
            self.are_calls_paused = true;
            let mut cx = Context::from_waker(Waker::noop());
            let is_reset = call.responder.poll_reset(&mut cx).is_ready();
            if is_reset {
                self.calls.remove(key);
            } else if let Err(failure) = message.charge_waiting() {
                self.fail(key, &failure);
                return false;
            }
            return !is_reset;
        }
        match message.receive(&inflating, &mut self.inflates) {
            Some(Ok(ReceiveResult::Part)) => true,
            Some(Ok(ReceiveResult::Inflating)) => {
                self.waker.wake_by_ref();
                true
            }
            Some(Ok(ReceiveResult::Message(method, message))) => {
                self.start_call(key, method, message);
                false
            }
            Some(Err(failure)) => {
                self.fail(key, &failure);
                false
            }
            None => {
                self.calls.remove(key);
                false
            }
        }
    }

    fn start_call(&mut self, key: CallKey, method: Method, message: Bytes) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let cancel = CancelToken::new();
        call.state = CallState::Executing(cancel.clone());
        let mut cx = Context::from_waker(&self.resets_waker);
        if call.responder.poll_reset(&mut cx).is_ready() {
            self.calls.remove(key);
            return;
        }
        let admission = call.head.admission;
        if method == Method::ModelInfer {
            let delay = self.context.options.test_delays.call_start;
            if delay.is_zero() {
                self.start_inference(key, &message, cancel);
            } else {
                let inbox = self.inbox.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    // A closed inbox drops the event, because the connection has ended.
                    let started = ConnectionEvent::CallStarted { call: key, message, cancel };
                    let _ = inbox.push(started);
                });
            }
        } else if let Some(permits) = control::permits(&self.context, method) {
            let blocking = self.control_call(key, admission, method, message);
            run_with_permit(permits, cancel, blocking);
        } else if control::calls_backend(&self.context, admission, method, &message) {
            let blocking = self.control_call(key, admission, method, message);
            run_with_permit(self.context.blocking_permits.clone(), cancel, blocking);
        } else {
            let result = control_response(&self.context, &self.budget, admission, method, message);
            if self.context.options.test_delays.control_response.is_zero() {
                self.finish_call(key, result);
            } else {
                let delivery = deliver(self.context.clone(), self.inbox.clone(), key, result);
                tokio::spawn(delivery);
            }
        }
    }

    /// Begins a unary inference, unless its call has ended.
    pub(super) fn start_inference(&mut self, key: CallKey, message: &Bytes, cancel: CancelToken) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let admission = call.head.admission;
        let forwarded = std::mem::replace(&mut call.head.forwarded, Ok(Vec::new()));
        let coding = call.head.response_coding;
        let received = call.head.waiting.received(self.context.options.tracing.as_ref());
        let trace_context = std::mem::take(&mut call.head.trace_context);
        let (answer_by, explanation) = (call.head.answer_by, call.head.explanation.clone());
        if let Some(explanation) = &explanation {
            explanation.set_milestone(Milestone::Received, Instant::now());
        }
        let arrived = ArrivedCall {
            message,
            forwarded,
            coding,
            received,
            trace_context,
            answer_by,
            explanation,
            found: None,
        };
        self.infer_or_fail(key, admission, cancel, arrived);
    }

    /// Begins a unary inference whose model was found, unless its call has ended.
    pub(super) fn resume_inference(
        &mut self,
        key: CallKey,
        waiting: WaitingCall,
        result: ModelResult,
    ) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let (admission, coding) = (call.head.admission, call.head.response_coding);
        let model = match result.0 {
            Ok(model) => model,
            Err(status) => return self.fail(key, &status.into()),
        };
        let WaitingCall { message, forwarded, received, trace_context, answer_by, cancel, charge } =
            waiting;
        drop(charge);
        let explanation = call.head.explanation.clone();
        let arrived = ArrivedCall {
            message: &message,
            forwarded,
            coding,
            received,
            trace_context,
            answer_by,
            explanation,
            found: Some(model),
        };
        self.infer_or_fail(key, admission, cancel, arrived);
    }

    fn infer_or_fail(
        &mut self,
        key: CallKey,
        admission: AccessGrant,
        cancel: CancelToken,
        arrived: ArrivedCall<'_>,
    ) {
        let infer = || self.infer(key, admission.pass()?, cancel, arrived);
        match catch_panic(infer) {
            Ok(Ok(())) => {}
            Ok(Err(status)) => self.fail(key, &status.into()),
            Err(Panicked) => self.fail(key, &panicked()),
        }
    }

    /// Responds to a control call on another thread.
    fn control_call(
        &self,
        key: CallKey,
        admission: AccessGrant,
        method: Method,
        message: Bytes,
    ) -> impl FnOnce() + Send + 'static {
        let (context, inbox, budget) =
            (self.context.clone(), self.inbox.clone(), self.budget.clone());
        let size = RequestSize::of_message(message.len());
        let charge = RequestCharge::new(budget.clone(), size, CallKind::Unary);
        move || {
            let result = match charge {
                Ok(_charge) => control_response(&context, &budget, admission, method, message),
                Err(exhausted) => Err(exhausted.into()),
            };
            let delivery = deliver(context, inbox, key, result);
            tokio::runtime::Handle::current().block_on(delivery);
        }
    }

    fn infer(
        &self,
        key: CallKey,
        pass: AccessPass<api::Inference>,
        cancel: CancelToken,
        arrived: ArrivedCall<'_>,
    ) -> Result<(), Status> {
        if arrived.found.is_none() {
            self.context.refuse_while_stopping()?;
        }
        let parsed =
            InferRequestMessage::parse_charged(arrived.message, Some(self.budget.account()))?;
        let version = parse_version(parsed.model_version())?;
        let found = match &arrived.found {
            Some(model) => Ok(model.clone()),
            None => self.context.control.model_for_inference(pass, parsed.model_name(), version),
        };
        let model = match found {
            Ok(model) => model,
            Err(missing) => {
                let name = parsed.model_name().to_owned();
                return self.wait_for_model(key, pass, (name, version), cancel, arrived, missing);
            }
        };
        let ArrivedCall { forwarded, coding, received, trace_context, answer_by, .. } = arrived;
        let (explanation, message) = (arrived.explanation, parsed);
        let message_bytes = arrived.message.len();
        if model.is_decoupled() {
            return Err(Status::unsupported(
                "ModelInfer RPC doesn't support models with decoupled transaction policy",
            ));
        }
        let (account, regions) = (self.budget.account(), &*self.context.options.regions);
        let access = SharedMemoryAccess { regions: RequestShmRegions::new(regions, pass), account };
        let (mut request, replaced) = message.into_request(version, &access)?;
        request.found_model = Some(model);
        add_header_parameters(&mut request.parameters, forwarded?);
        let delays = &self.context.options.test_delays;
        let cancelled_end = (!delays.cancelled_end.is_zero())
            .then(|| (cancel.clone(), Delay(delays.cancelled_end)));
        request.cancel = delays.told(cancel);
        request.deadline = answer_by;
        let size = RequestSize::new(message_bytes, &request);
        let charge = RequestCharge::new(self.budget.clone(), size, CallKind::Unary)?;
        let tracing = self.context.options.tracing.as_ref();
        let trace = begin_trace(tracing, pass, &request.model_name, &trace_context, received);
        let (traced, trace) = trace.unzip();
        request.trace = match &explanation {
            None => traced,
            Some(explanation) => Some(Trace::with_attachment(traced, explanation.clone())),
        };
        let delay = Delay(delays.call_response);
        let form = ResponseForm { replaced, coding, delay, cancelled_end, trace, explanation };
        let sink = CallSink::new(charge, self.inbox.clone(), key, form);
        self.context.service.infer(pass, request, ResponseSender::new(Box::new(sink)));
        Ok(())
    }

    /// Lets a call wait for its model, if the model is loaded on demand.
    fn wait_for_model(
        &self,
        key: CallKey,
        pass: AccessPass<api::Inference>,
        (name, version): (String, Option<i64>),
        cancel: CancelToken,
        arrived: ArrivedCall<'_>,
        missing: Status,
    ) -> Result<(), Status> {
        let size = RequestSize::of_message(arrived.message.len());
        let waiting = Box::new(WaitingCall {
            message: arrived.message.clone(),
            forwarded: arrived.forwarded,
            received: arrived.received,
            trace_context: arrived.trace_context,
            answer_by: arrived.answer_by,
            cancel: cancel.clone(),
            charge: RequestCharge::new(self.budget.clone(), size, CallKind::Unary)?,
        });
        let inbox = self.inbox.clone();
        let found = move |result| {
            let result = ModelResult(result);
            // A closed inbox drops the event, because the connection has ended.
            let _ = inbox.push(ConnectionEvent::CallModelFound { call: key, waiting, result });
        };
        let deadline = arrived.answer_by;
        let wait = ModelWait { name, version, deadline, cancel, found: Box::new(found) };
        self.context.control.wait_for_model(pass, wait).map_err(|_| missing)
    }

    /// Responds to a call, unless it has ended.
    pub(super) fn finish_call(&mut self, key: CallKey, result: Result<Outgoing, Failure>) {
        match result {
            Ok(message) => {
                if let Some(mut call) = self.calls.remove(key) {
                    let (coding, explanation) = (call.head.response_coding, call.head.explanation);
                    let explanation = explanation.as_ref();
                    call_response::send_message(&mut call.responder, message, coding, explanation);
                }
            }
            Err(failure) => self.fail(key, &failure),
        }
    }
}

/// An inference request, along with the facts from its call's headers.
struct ArrivedCall<'a> {
    message: &'a Bytes,
    forwarded: ForwardedParameters,
    coding: Option<ContentCoding>,
    received: Option<Received>,
    trace_context: TraceContext,
    answer_by: Deadline,
    explanation: Option<Arc<LatencyExplanation>>,
    /// The model, if the call has waited for it.
    found: Option<Arc<dyn ServedModel>>,
}

/// Runs `blocking` on a thread that may block, once a permit is available. A call that is cancelled
/// while it waits for the permit is not executed.
fn run_with_permit(
    permits: BlockingPermits,
    cancel: CancelToken,
    blocking: impl FnOnce() + Send + 'static,
) {
    let run = |permit| {
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            blocking();
        });
    };
    if let Some(permit) = permits.try_acquire() {
        return run(permit);
    }
    tokio::spawn(async move {
        let permit = permits.acquire().await;
        if !cancel.is_cancelled() {
            run(permit);
        }
    });
}

/// Delivers the response to a non-inference call to the connection.
async fn deliver(
    context: Arc<DoorContext>,
    inbox: Arc<Inbox<ConnectionEvent>>,
    call: CallKey,
    result: Result<Outgoing, Failure>,
) {
    let delay = context.options.test_delays.control_response;
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    // A closed inbox drops the event, because the connection has ended.
    let _ = inbox.push(ConnectionEvent::CallFinished { call, result });
}

fn control_response(
    context: &DoorContext,
    budget: &Arc<MemoryBudget>,
    admission: AccessGrant,
    method: Method,
    message: Bytes,
) -> Result<Outgoing, Failure> {
    let response = catch_panic(|| control::respond(context, admission, method, message))
        .unwrap_or_else(|Panicked| Err(panicked_status()))?;
    Ok(Outgoing::new(response, ResponseBudget::Call(budget.clone()))?)
}

impl IncomingMessage {
    /// Charges the part of the message that `h2` keeps while the call waits.
    fn charge_waiting(&mut self) -> Result<(), Failure> {
        let bytes = self.body.flow_control().used_capacity();
        if self.waiting.is_none() && bytes == 0 {
            return Ok(());
        }
        let account = self.reader.account();
        let waiting = self.waiting.get_or_insert_with(|| MemoryCharge::nothing(account.clone()));
        Ok(waiting.set(bytes)?)
    }

    /// Reads the available data. Returns `None` if the client has reset the call.
    ///
    /// No waker is registered for more data: it arrives when the connection's task polls `h2`, and
    /// the task calls this function right afterwards.
    fn receive(
        &mut self,
        inflating: &Inflating<'_>,
        inflates: &mut usize,
    ) -> Option<Result<ReceiveResult, Failure>> {
        if self.inflation.is_some() {
            return Some(self.inflate(inflates));
        }
        self.waiting = None;
        let mut cx = Context::from_waker(Waker::noop());
        while !self.body.is_end_stream() {
            match self.body.poll_data(&mut cx) {
                Poll::Pending => return Some(Ok(ReceiveResult::Part)),
                Poll::Ready(Some(Ok(bytes))) => {
                    // The client may send the same number of bytes again. The reader limits this
                    // message, and the charge limits all messages together.
                    let _ = self.body.flow_control().release_capacity(bytes.len());
                    let charged = self.charge.add(bytes.len());
                    let taken = charged.and_then(|()| {
                        self.reader.push(bytes).map_err(|error| self.refusal(error))
                    });
                    if let Err(failure) = taken {
                        return Some(Err(failure));
                    }
                }
                Poll::Ready(Some(Err(_))) => return None,
                Poll::Ready(None) => break,
            }
        }
        let message = match self.reader.finish() {
            Ok(message) => message,
            Err(failure) => return Some(Err(failure)),
        };
        match inflating.begin(message) {
            Ok(inflation) => {
                self.inflation = Some(Box::new(inflation));
                Some(self.inflate(inflates))
            }
            Err(message) => Some(Ok(ReceiveResult::Message(self.method, message))),
        }
    }

    /// Continues to inflate the message, which has been received completely.
    fn inflate(&mut self, inflates: &mut usize) -> Result<ReceiveResult, Failure> {
        let Some(mut inflation) = self.inflation.take() else { return Ok(ReceiveResult::Part) };
        if inflation.advance(inflates).map_err(|error| self.refusal(error))? {
            return Ok(ReceiveResult::Message(self.method, inflation.into_message()));
        }
        self.charge.set(inflation.bytes())?;
        self.inflation = Some(inflation);
        Ok(ReceiveResult::Inflating)
    }

    /// Returns the failure for a message that can't be accepted. As over HTTP, files that are too
    /// long are the client's mistake.
    fn refusal(&self, error: Failure) -> Failure {
        let is_long_load = error.retry_after_secs.is_none()
            && error.code == GrpcCode::ResourceExhausted
            && self.method == Method::RepositoryModelLoad;
        if !is_long_load {
            return error;
        }
        let hint = "Use --http-max-input-size to increase the limit.";
        Failure::new(GrpcCode::InvalidArgument, format!("{}. {hint}", error.message))
    }
}
