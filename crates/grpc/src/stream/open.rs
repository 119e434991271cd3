//! The view of an open stream from its connection's task.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use galatea_codec::compression::ContentCoding;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::CancelToken;
use h2::{Reason, RecvStream, SendStream};

use super::handle::StreamHandle;
use super::message_splitter::MessageSplitter;
use crate::budget::{ArrivalCharge, Outgoing, RequestCharge};
use crate::call_response;
use crate::compression::Inflation;
use crate::failure::Failure;
use crate::reorder::{ReorderBuffer, ReplyMode, ReplySlot};

/// An open stream.
pub(crate) struct Stream {
    send: SendStream<Outgoing>,
    body: RecvStream,
    messages: MessageSplitter,
    arrival: ArrivalCharge,
    /// The coding of compressed requests.
    coding: Option<ContentCoding>,
    /// The charge for frames that had not been taken out when the stream was last served.
    waiting: Option<MemoryCharge>,
    /// The request that is being inflated.
    inflation: Option<Inflation>,
    replies: ReorderBuffer<Outgoing>,
    handle: Arc<StreamHandle>,
    /// Wakes the task to serve the stream.
    waker: Waker,
    /// True if the client has finished sending requests.
    half_closed: bool,
    /// True if the stream waits for room in its connection's budget.
    is_paused: bool,
    /// The request that waits for its model, if there is one. The requests behind it wait too.
    model_wait: Option<ModelWaitHold>,
}

/// A request that waits for its model.
struct ModelWaitHold {
    cancel: CancelToken,
    _charge: RequestCharge,
}

/// The error for a stream that the client has reset.
pub(crate) struct StreamReset;

/// The next input of a stream.
pub(crate) enum StreamInput {
    /// No input until more data arrives.
    Pending,
    /// A request.
    Request(Bytes),
    /// The end of the client's requests.
    End,
    /// A failure: the body is not a sequence of messages, or a message is too long.
    Malformed(Failure),
}

impl Stream {
    pub(crate) fn new(
        send: SendStream<Outgoing>,
        body: RecvStream,
        messages: MessageSplitter,
        handle: Arc<StreamHandle>,
        arrival: ArrivalCharge,
        coding: Option<ContentCoding>,
    ) -> Self {
        Self {
            send,
            body,
            messages,
            arrival,
            coding,
            waiting: None,
            inflation: None,
            replies: ReorderBuffer::new(),
            waker: handle.waker(),
            handle,
            half_closed: false,
            is_paused: false,
            model_wait: None,
        }
    }

    /// Begins a request's wait for its model. The token is cancelled when the stream ends.
    pub(crate) fn begin_model_wait(&mut self, charge: RequestCharge) -> CancelToken {
        let cancel = CancelToken::new();
        self.model_wait = Some(ModelWaitHold { cancel: cancel.clone(), _charge: charge });
        cancel
    }

    /// Ends a request's wait for its model.
    pub(crate) fn end_model_wait(&mut self) {
        self.model_wait = None;
    }

    /// Makes the stream wait for room in its connection. Returns true if it was not waiting before.
    pub(crate) const fn pause(&mut self) -> bool {
        !std::mem::replace(&mut self.is_paused, true)
    }

    /// Ends the stream's wait.
    pub(crate) const fn resume(&mut self) {
        self.is_paused = false;
    }

    pub(crate) const fn handle(&self) -> &Arc<StreamHandle> {
        &self.handle
    }

    /// Takes the stream's frames from `h2` and registers for more. The client's window stays
    /// unchanged until messages are taken out.
    pub(crate) fn pull(&mut self) -> Result<(), StreamReset> {
        self.handle.begin();
        let mut cx = Context::from_waker(&self.waker);
        if self.send.poll_reset(&mut cx).is_ready() {
            return Err(StreamReset);
        }
        while !self.half_closed {
            match self.body.poll_data(&mut cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(frame))) => self.messages.push(frame),
                Poll::Ready(Some(Err(_))) => return Err(StreamReset),
                Poll::Ready(None) => self.half_closed = true,
            }
        }
        Ok(())
    }

    /// Returns true if the next requests must wait. The stream is served again once there may be
    /// room.
    pub(crate) fn is_full(&self) -> bool {
        self.model_wait.is_some()
            || self.handle.budget.is_full(self.replies.in_progress(), self.replies.bytes())
    }

    /// Returns the next input from the received frames. `inflates` is the number of bytes that may
    /// still be inflated in this round.
    pub(crate) fn next_input(
        &mut self,
        account: &Arc<MemoryAccount>,
        inflates: &mut usize,
    ) -> StreamInput {
        self.take_input(account, inflates).unwrap_or_else(StreamInput::Malformed)
    }

    fn take_input(
        &mut self,
        account: &Arc<MemoryAccount>,
        inflates: &mut usize,
    ) -> Result<StreamInput, Failure> {
        if let Some(inflation) = self.inflation.take() {
            return self.inflate(inflation, inflates);
        }
        let next = self.messages.next();
        self.arrival.set(self.messages.partial_bytes())?;
        match next? {
            Some(message) => {
                let bytes_max = self.messages.message_bytes_max();
                match Inflation::begin(message, self.coding, bytes_max, account) {
                    Ok(inflation) => self.inflate(inflation, inflates),
                    Err(message) => Ok(StreamInput::Request(message)),
                }
            }
            None if !self.half_closed => Ok(StreamInput::Pending),
            None => self.messages.finish().map(|()| StreamInput::End),
        }
    }

    /// Continues to inflate a request. A request that is too long for this round is continued in
    /// the next round.
    fn inflate(
        &mut self,
        mut inflation: Inflation,
        inflates: &mut usize,
    ) -> Result<StreamInput, Failure> {
        let is_complete = inflation.advance(inflates)?;
        if is_complete {
            self.arrival.set(self.messages.partial_bytes())?;
            return Ok(StreamInput::Request(inflation.into_message()));
        }
        self.arrival.set(self.messages.partial_bytes().saturating_add(inflation.bytes()))?;
        self.inflation = Some(inflation);
        self.handle.wake();
        Ok(StreamInput::Pending)
    }

    /// Charges the waiting frames because the stream or its connection is full.
    pub(crate) fn charge_waiting(&mut self) -> Result<(), Failure> {
        let bytes = self.messages.waiting_bytes();
        if self.waiting.is_none() && bytes == 0 {
            return Ok(());
        }
        let account = self.messages.account();
        let waiting = self.waiting.get_or_insert_with(|| MemoryCharge::nothing(account.clone()));
        Ok(waiting.set(bytes)?)
    }

    /// Lets the client send as many bytes again as were taken out.
    pub(crate) fn release_capacity(&mut self) {
        let consumed = self.messages.take_consumed();
        if consumed > 0 {
            let _ = self.body.flow_control().release_capacity(consumed);
        }
    }

    /// Begins a request.
    pub(crate) fn begin(&mut self, mode: ReplyMode, bytes: usize) -> (ReplySlot, CancelToken) {
        let cancel = CancelToken::new();
        (self.replies.begin(mode, cancel.clone(), bytes), cancel)
    }

    /// Processes a reply and sends the responses that may now be sent.
    ///
    /// # Errors
    ///
    /// A failure that ends the stream. As in Triton, it does not wait for responses to earlier
    /// requests.
    pub(crate) fn reply(
        &mut self,
        slot: ReplySlot,
        message: Option<Result<Outgoing, Failure>>,
        is_final: bool,
    ) -> Result<(), Failure> {
        let mut ready = self.replies.reply(slot, message.transpose()?, is_final);
        while let Some(message) = ready {
            // Sending fails if the client has reset the stream, which `h2` also reports.
            let _ = self.send.send_data(message, false);
            ready = match slot {
                ReplySlot::Ordered(_) => self.replies.next(),
                ReplySlot::Immediate(_) => None,
            };
        }
        self.handle.budget.wake_if_waiting();
        Ok(())
    }

    /// Returns true if no request is in progress and none will follow.
    pub(crate) fn is_done(&self) -> bool {
        self.is_idle()
            && self.half_closed
            && self.inflation.is_none()
            && self.messages.finish().is_ok()
    }

    /// Returns true if no request is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.replies.is_empty() && self.model_wait.is_none()
    }

    /// Ends the stream successfully.
    pub(crate) fn finish(&mut self) {
        self.handle.budget.end();
        let _ = self.send.send_trailers(call_response::success_trailers());
    }

    /// Ends the stream with a failure, after the responses sent so far.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.cancel();
        let _ = self.send.send_trailers(call_response::failure_trailers(failure));
    }

    /// Resets the stream. Unwritten responses are dropped.
    pub(crate) fn reset(&mut self) {
        self.cancel();
        // Clients report this reason as resource exhaustion.
        self.send.send_reset(Reason::ENHANCE_YOUR_CALM);
    }

    /// Cancels the requests in progress.
    pub(crate) fn cancel(&self) {
        self.handle.budget.end();
        self.replies.cancel();
        if let Some(wait) = &self.model_wait {
            wait.cancel.cancel();
        }
    }
}
