//! The unfinished calls of a connection.

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::compression::ContentCoding;
use galatea_explain::LatencyExplanation;
use galatea_gate::access::AccessGrant;
use galatea_gate::ledger::MemoryCharge;
use galatea_infer::{CancelToken, Deadline};
use h2::RecvStream;
use slab::Slab;
use tokio::time::Instant;

use crate::budget::ArrivalCharge;
use crate::call_key::CallKey;
use crate::call_response::CallResponder;
use crate::call_trace::{MessageWait, TraceContext};
use crate::compression::Inflation;
use crate::context::ForwardedParameters;
use crate::message_reader::MessageReader;
use crate::route::Method;
use crate::stream::Stream;

/// An unfinished call.
pub(crate) struct Call {
    pub(crate) responder: CallResponder,
    pub(crate) head: CallHead,
    pub(crate) state: CallState,
    serial: u64,
}

/// The facts from the head of a call.
pub(crate) struct CallHead {
    /// The time at which the call is ended with a failure.
    pub(crate) deadline: Option<Instant>,
    /// The client's deadline, used by models that batch by deadline.
    pub(crate) answer_by: Deadline,
    /// The admission for all of the call's requests.
    pub(crate) admission: AccessGrant,
    /// The coding of compressed requests.
    pub(crate) request_coding: Option<ContentCoding>,
    /// The coding of responses to inferences.
    pub(crate) response_coding: Option<ContentCoding>,
    /// The call's wait for its next message.
    pub(crate) waiting: MessageWait,
    /// The call metadata that affects traces.
    pub(crate) trace_context: TraceContext,
    /// The explanation of the call's request; for a stream, the template for the explanations of
    /// its requests.
    pub(crate) explanation: Option<Arc<LatencyExplanation>>,
    /// The parameters that the call's metadata adds to its requests.
    pub(crate) forwarded: ForwardedParameters,
}

/// The state of a call. A unary call goes from `Receiving` to `Executing`; a stream is
/// `Streaming` from its beginning to its end.
pub(crate) enum CallState {
    /// The call's message is arriving.
    Receiving(IncomingMessage),
    /// The request is in progress.
    Executing(CancelToken),
    /// Requests arrive and responses leave.
    Streaming(Box<Stream>),
}

/// The message of a unary call while it arrives.
pub(crate) struct IncomingMessage {
    pub(crate) method: Method,
    pub(crate) body: RecvStream,
    pub(crate) reader: MessageReader,
    /// The complete message while it is inflated.
    pub(crate) inflation: Option<Box<Inflation>>,
    /// The charge for the message bytes that `h2` holds while the connection reads no calls.
    pub(crate) waiting: Option<MemoryCharge>,
    pub(crate) charge: ArrivalCharge,
}

/// The result of reading an incoming message.
pub(crate) enum ReceiveResult {
    /// The message is incomplete; more data must arrive.
    Part,
    /// The message is complete but not fully inflated.
    Inflating,
    /// A complete message for this method.
    Message(Method, Bytes),
}

/// All calls of a connection.
#[derive(Default)]
pub(crate) struct Calls {
    /// The calls. They are boxed because a `Call` is large and is moved when it is inserted or
    /// removed.
    calls: Slab<Box<Call>>,
    next_serial: u64,
}

impl Calls {
    pub(crate) fn insert(
        &mut self,
        responder: CallResponder,
        head: CallHead,
        state: impl FnOnce(CallKey) -> CallState,
    ) -> CallKey {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        let entry = self.calls.vacant_entry();
        let key = CallKey { index: entry.key(), serial };
        entry.insert(Box::new(Call { responder, head, state: state(key), serial }));
        key
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        let call = self.calls.get_mut(key.index)?;
        (call.serial == key.serial).then_some(call)
    }

    /// The stream of a call.
    pub(crate) fn stream(&mut self, key: CallKey) -> Option<&mut Stream> {
        match &mut self.get_mut(key)?.state {
            CallState::Streaming(stream) => Some(stream),
            CallState::Receiving(_) | CallState::Executing(_) => None,
        }
    }

    /// Removes a call; returns `None` if it has already ended.
    pub(crate) fn remove(&mut self, key: CallKey) -> Option<Box<Call>> {
        self.get_mut(key)?;
        self.calls.try_remove(key.index)
    }

    /// Returns true if there are no calls.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the calls for which `predicate` is true.
    pub(crate) fn select(&mut self, mut predicate: impl FnMut(&mut Call) -> bool) -> Vec<CallKey> {
        let mut selected = Vec::new();
        for (index, call) in &mut self.calls {
            if predicate(call) {
                selected.push(CallKey { index, serial: call.serial });
            }
        }
        selected
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.calls.iter().filter_map(|(_, call)| call.head.deadline).min()
    }
}

impl Call {
    /// Cancels the requests of the call.
    pub(crate) fn cancel(&self) {
        match &self.state {
            CallState::Receiving(_) => {}
            CallState::Executing(cancel) => cancel.cancel(),
            CallState::Streaming(stream) => stream.cancel(),
        }
    }
}

/// Cancels the calls, because the client has disconnected.
impl Drop for Calls {
    fn drop(&mut self) {
        for (_, call) in &self.calls {
            call.cancel();
        }
    }
}
