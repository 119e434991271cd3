//! The calls of a connection that are not finished.

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::compression::Coding;
use galatea_explain::Explanation;
use galatea_gate::access::Admission;
use galatea_gate::ledger::Charge;
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

/// A call that is not finished.
pub(crate) struct Call {
    pub(crate) responder: CallResponder,
    pub(crate) head: CallHead,
    pub(crate) state: CallState,
    serial: u64,
}

/// The facts about a call in its head.
pub(crate) struct CallHead {
    /// When the call is ended with a failure.
    pub(crate) deadline: Option<Instant>,
    /// When the client needs the answers, for models that are batched by deadlines.
    pub(crate) answer_by: Deadline,
    /// For all of its requests.
    pub(crate) admission: Admission,
    /// The coding of compressed requests.
    pub(crate) request_coding: Option<Coding>,
    /// The coding that responses to inferences have.
    pub(crate) response_coding: Option<Coding>,
    /// Since when it waits for its message, or the next one.
    pub(crate) waiting: MessageWait,
    /// The metadata of the call that decides about traces.
    pub(crate) trace_context: TraceContext,
    /// The explanation of its request, or how those of its stream's are made.
    pub(crate) explanation: Option<Arc<Explanation>>,
    /// Parameters that the metadata of the call adds to its requests.
    pub(crate) forwarded: ForwardedParameters,
}

/// The state of a call. A unary call goes from `Receiving` to `Executing`; a stream is
/// `Streaming` from its beginning to its end.
pub(crate) enum CallState {
    /// The message is arriving.
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
    /// The complete message, while it is being inflated.
    pub(crate) inflation: Option<Box<Inflation>>,
    /// The bytes that `h2` holds of it while its connection reads no calls.
    pub(crate) waiting: Option<Charge>,
    pub(crate) charge: ArrivalCharge,
}

/// The result of reading an incoming message.
pub(crate) enum ReceiveResult {
    /// More is to arrive.
    Part,
    /// More is to be inflated.
    Inflating,
    /// The complete message of a call of this method.
    Message(Method, Bytes),
}

/// All calls of a connection.
#[derive(Default)]
pub(crate) struct Calls {
    calls: Slab<Call>,
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
        entry.insert(Call { responder, head, state: state(key), serial });
        key
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        self.calls.get_mut(key.index).filter(|call| call.serial == key.serial)
    }

    /// The stream of a call.
    pub(crate) fn stream(&mut self, key: CallKey) -> Option<&mut Stream> {
        match &mut self.get_mut(key)?.state {
            CallState::Streaming(stream) => Some(stream),
            CallState::Receiving(_) | CallState::Executing(_) => None,
        }
    }

    /// Removes a call; `None` if it is over already.
    pub(crate) fn remove(&mut self, key: CallKey) -> Option<Call> {
        self.get_mut(key)?;
        self.calls.try_remove(key.index)
    }

    /// Returns true if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The calls for which `predicate` holds.
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

/// The client is gone, so its calls are cancelled.
impl Drop for Calls {
    fn drop(&mut self) {
        for (_, call) in &self.calls {
            call.cancel();
        }
    }
}
