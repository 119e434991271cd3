//! An open stream, as its connection's task sees it.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use galatea_infer::CancelToken;
use h2::{Reason, RecvStream, SendStream};

use super::in_flight::InFlight;
use super::messages::Messages;
use super::{Order, Place, StreamSignal};
use crate::answer::{self, Failure};
use crate::in_progress::Arriving;
use crate::unwritten::Outgoing;

/// How much of a stream may be unfinished before its requests have to wait.
#[derive(Copy, Clone, Debug)]
pub(crate) struct StreamLimits {
    /// Requests without a last reply and responses that are not written.
    pub(crate) messages_max: usize,
    /// What the messages of both take.
    pub(crate) bytes_max: usize,
}

pub(crate) struct Stream {
    send: SendStream<Outgoing>,
    body: RecvStream,
    messages: Messages,
    arriving: Arriving,
    in_flight: InFlight<Result<Outgoing, Failure>>,
    signal: Arc<StreamSignal>,
    /// The signal as a waker.
    waker: Waker,
    /// Whether the client sends no more requests.
    half_closed: bool,
    /// Whether it waits until its connection has less to write.
    paused: bool,
}

/// The client gave the stream up.
pub(crate) struct StreamGone;

/// What there is to do with a stream next.
pub(crate) enum Next {
    /// Nothing until more arrives.
    Wait,
    /// A request.
    Request(Bytes),
    /// The client sends no more.
    End,
    /// What it sends is no stream of messages.
    Broken(Failure),
}

impl Stream {
    pub(crate) fn new(
        send: SendStream<Outgoing>,
        body: RecvStream,
        messages: Messages,
        signal: Arc<StreamSignal>,
        arriving: Arriving,
    ) -> Self {
        Self {
            send,
            body,
            messages,
            arriving,
            in_flight: InFlight::new(),
            waker: Waker::from(signal.clone()),
            signal,
            half_closed: false,
            paused: false,
        }
    }

    /// Notes that the stream waits for its connection; returns whether it
    /// didn't before.
    pub(crate) const fn pause(&mut self) -> bool {
        !std::mem::replace(&mut self.paused, true)
    }

    /// Notes that it waits no longer.
    pub(crate) const fn resume(&mut self) {
        self.paused = false;
    }

    pub(crate) const fn signal(&self) -> &Arc<StreamSignal> {
        &self.signal
    }

    /// Takes over what `h2` has of the stream, and has it tell when there is
    /// more. The client's window stays as it is until messages are taken out.
    pub(crate) fn pull(&mut self) -> Result<(), StreamGone> {
        self.signal.begin();
        let mut cx = Context::from_waker(&self.waker);
        if self.send.poll_reset(&mut cx).is_ready() {
            return Err(StreamGone);
        }
        while !self.half_closed {
            match self.body.poll_data(&mut cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(frame))) => self.messages.push(frame),
                Poll::Ready(Some(Err(_))) => return Err(StreamGone),
                Poll::Ready(None) => self.half_closed = true,
            }
        }
        Ok(())
    }

    /// Whether requests have to wait until less is unfinished. The stream is
    /// looked at again when that may have changed.
    pub(crate) fn is_full(&self) -> bool {
        let (signal, in_flight) = (&self.signal, &self.in_flight);
        let messages = in_flight.unanswered().saturating_add(signal.unwritten_messages());
        let bytes = in_flight.bytes().saturating_add(signal.unwritten_bytes());
        let limits = signal.limits();
        let is_full = messages >= limits.messages_max || bytes >= limits.bytes_max;
        if is_full {
            self.signal.wait();
        }
        is_full
    }

    /// What comes next of what was pulled.
    pub(crate) fn next(&mut self) -> Next {
        let next = self.messages.next();
        if let Err(failure) = self.arriving.set(self.messages.part_bytes()) {
            return Next::Broken(failure);
        }
        match next {
            Ok(Some(message)) => Next::Request(message),
            Ok(None) if !self.half_closed => Next::Wait,
            Ok(None) => match self.messages.finish() {
                Ok(()) => Next::End,
                Err(failure) => Next::Broken(failure),
            },
            Err(failure) => Next::Broken(failure),
        }
    }

    /// Lets the client send as much again as was taken out.
    pub(crate) fn release(&mut self) {
        let taken = self.messages.take_count();
        if taken > 0 {
            let _ = self.body.flow_control().release_capacity(taken);
        }
    }

    /// Makes room for a request.
    pub(crate) fn begin(&mut self, order: Order, bytes: usize) -> (Place, CancelToken) {
        let cancel = CancelToken::new();
        (self.in_flight.begin(order, cancel.clone(), bytes), cancel)
    }

    /// Takes a reply and sends what may leave now.
    ///
    /// # Errors
    ///
    /// The failure whose turn it was, which ends the stream.
    pub(crate) fn reply(
        &mut self,
        place: Place,
        answer: Option<Result<Outgoing, Failure>>,
        is_final: bool,
    ) -> Result<(), Failure> {
        let mut ready = self.in_flight.reply(place, answer, is_final);
        while let Some(answer) = ready {
            // What can't be sent was given up by the client, which `h2` tells
            // as well.
            let _ = self.send.send_data(answer?, false);
            ready = match place {
                Place::Turn(_) => self.in_flight.next(),
                Place::Free(_) => None,
            };
        }
        self.signal.relieve();
        Ok(())
    }

    /// Whether no request is unfinished and no more will come of what was
    /// pulled.
    pub(crate) fn is_done(&self) -> bool {
        self.is_idle() && self.half_closed && self.messages.finish().is_ok()
    }

    /// Whether no request is unfinished.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Ends the stream well.
    pub(crate) fn finish(&mut self) {
        self.signal.end();
        let _ = self.send.send_trailers(answer::success_trailers());
    }

    /// Ends the stream with a failure, behind the responses that were sent.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.cancel();
        let _ = self.send.send_trailers(answer::failure_trailers(failure));
    }

    /// Ends the stream at once; responses that are not written are dropped.
    pub(crate) fn reset(&mut self) {
        self.cancel();
        // What clients report as an exhausted resource.
        self.send.send_reset(Reason::ENHANCE_YOUR_CALM);
    }

    /// Tells whoever works on a request that nobody waits for it any more.
    pub(crate) fn cancel(&self) {
        self.signal.end();
        self.in_flight.cancel();
    }
}
