//! What a connection's task does for its streams.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::classification::Classification;
use galatea_codec::forward::forward;
use galatea_codec::grpc::stream::RequestTag;
use galatea_codec::grpc::{InferMessage, parse_version};
use galatea_infer::{InferenceRequest, ResponseSender, Status, Throttle};
use h2::RecvStream;
use tokio::time::Instant;

use super::{ConnectionTask, PANICKED, refuse_while_stopping};
use crate::answer::{self, Failure, Responder};
use crate::call::{Forwarded, Phase};
use crate::door::Door;
use crate::in_progress::{Arriving, InProgress, taken};
use crate::signal::{CallKey, Use};
use crate::stream::{
    Errors, Messages, Next, Order, Place, Stream, StreamGone, StreamLimits, StreamSignal,
    StreamSink,
};
use crate::unwritten::Outgoing;

/// How many requests of a stream are begun before others have their turn.
const TURN_REQUESTS_MAX: usize = 64;

impl ConnectionTask {
    /// Begins a stream. Its head is sent at once: there are clients that wait
    /// for it before they send anything.
    pub(super) fn open_stream(
        &mut self,
        mut respond: Responder,
        body: RecvStream,
        deadline: Option<Instant>,
        errors: Errors,
        forwarded: Forwarded,
    ) {
        let Some(send) = answer::send_head(&mut respond) else { return };
        let options = &self.door.options;
        let limits = StreamLimits {
            messages_max: options.stream_messages_max,
            bytes_max: options.stream_bytes_max,
        };
        let key = self.calls.insert(respond, deadline, |key| {
            let signal = Arc::new(StreamSignal::new(self.signal.clone(), key, errors, limits));
            let arriving = Arriving::new(self.signal.clone());
            let messages = Messages::new(options.message_bytes_max, self.door.kept.clone());
            let stream = Stream::new(send, body, messages, signal, arriving);
            Phase::Streaming(Box::new(stream))
        });
        self.calls.set_forwarded(key, forwarded);
        self.streams.push(key);
    }

    /// Looks at every stream that can go on.
    pub(super) fn serve_streams(&mut self) {
        let mut streams = std::mem::take(&mut self.streams);
        self.signal.take_streams(&mut streams);
        if !self.signal.is_full(Use::Stream) {
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
        streams.append(&mut self.streams);
        self.streams = streams;
    }

    /// Begins the requests of a stream that have arrived, as far as there is
    /// room for them.
    fn serve_stream(&mut self, key: CallKey) {
        let Some(stream) = self.calls.stream(key) else { return };
        if let Err(StreamGone) = stream.pull() {
            if let Some(call) = self.calls.remove(key) {
                call.cancel();
            }
            return;
        }
        stream.signal().clone().go_on();
        self.begin_requests(key);
        if let Some(stream) = self.calls.stream(key) {
            stream.release();
        }
        self.end_if_done(key);
    }

    fn begin_requests(&mut self, key: CallKey) {
        for _ in 0..TURN_REQUESTS_MAX {
            let Some(stream) = self.calls.stream(key) else { return };
            if self.signal.is_full(Use::Stream) {
                if stream.pause() {
                    self.paused_streams.push(key);
                }
                return;
            }
            if stream.is_full() {
                return;
            }
            match stream.next() {
                Next::Wait | Next::End => return,
                Next::Request(message) => self.begin_request(key, &message),
                Next::Broken(failure) => {
                    self.fail(key, &failure);
                    return;
                }
            }
        }
        if let Some(stream) = self.calls.stream(key) {
            stream.signal().look();
        }
    }

    /// Begins a request. Its failures take the way of its replies, so that
    /// they come in turn.
    fn begin_request(&mut self, key: CallKey, message: &Bytes) {
        let mut prepared = Prepared::new(&self.door, message);
        if let Some(call) = self.calls.get_mut(key) {
            prepared.forward(&call.forwarded);
        }
        let Some(stream) = self.calls.stream(key) else { return };
        let bytes = match &prepared.request {
            Ok(request) => taken(message.len(), request),
            Err(_) => message.len(),
        };
        let (place, cancel) = stream.begin(prepared.order, bytes);
        let signal = stream.signal().clone();
        let throttle = match prepared.order {
            Order::AtOnce => Throttle::default().with(signal.clone()),
            Order::InTurn => Throttle::default(),
        };
        let Prepared { tag, order, sends_empty_end, classification, request } = prepared;
        let in_progress = InProgress::new(self.signal.clone(), bytes, Use::Stream);
        let sink = StreamSink::new(
            signal,
            place,
            order,
            tag,
            sends_empty_end,
            classification,
            in_progress,
        );
        let sender = ResponseSender::new(Box::new(sink));
        match request {
            Err(status) => sender.fail(status),
            Ok(mut request) => {
                request.cancel = cancel;
                request.throttle = throttle;
                // A panic drops the sender, which then answers.
                let _ = catch_unwind(AssertUnwindSafe(|| self.door.service.infer(request, sender)));
            }
        }
    }

    /// Takes the reply to a request of a stream.
    pub(super) fn reply(
        &mut self,
        key: CallKey,
        place: Place,
        answer: Option<Result<Outgoing, Failure>>,
        is_final: bool,
    ) {
        let Some(stream) = self.calls.stream(key) else { return };
        match stream.reply(place, answer, is_final) {
            Ok(()) => self.end_if_done(key),
            Err(failure) => self.fail(key, &failure),
        }
    }

    /// Ends a stream whose client takes so little of it that responses had to
    /// be dropped.
    pub(super) fn reset_stream(&mut self, key: CallKey) {
        if let Some(stream) = self.calls.stream(key) {
            stream.reset();
            self.calls.remove(key);
        }
    }

    /// Ends a stream that has nothing to do any more: its client said so, or
    /// the door stops.
    fn end_if_done(&mut self, key: CallKey) {
        let Some(stream) = self.calls.stream(key) else { return };
        if stream.is_done() {
            stream.finish();
            self.calls.remove(key);
        } else if stream.is_idle()
            && let Err(status) = refuse_while_stopping(&self.door)
        {
            self.fail(key, &status.into());
        }
    }

    /// Ends the streams that nothing is done for; the others end when they are
    /// done.
    pub(super) fn end_idle_streams(&mut self) {
        for key in self.calls.select(|call| matches!(call.phase, Phase::Streaming(_))) {
            self.end_if_done(key);
        }
    }
}

/// A message, made a request or refused.
struct Prepared {
    tag: RequestTag,
    order: Order,
    sends_empty_end: bool,
    classification: Option<Classification>,
    request: Result<InferenceRequest, Status>,
}

impl Prepared {
    fn new(door: &Door, message: &Bytes) -> Self {
        let mut prepared = Self {
            tag: RequestTag::default(),
            order: Order::InTurn,
            sends_empty_end: false,
            classification: None,
            request: Err(Status::internal(PANICKED)),
        };
        // A panic leaves behind what was known by then.
        let request = catch_unwind(AssertUnwindSafe(|| prepared.read(door, message)));
        if let Ok(request) = request {
            prepared.request = request;
        }
        prepared
    }

    /// Adds what the stream's metadata says to each of its requests.
    fn forward(&mut self, forwarded: &Forwarded) {
        match (&mut self.request, forwarded) {
            (Ok(request), Ok(headers)) => forward(&mut request.parameters, headers.clone()),
            (Ok(_), Err(status)) => self.request = Err(status.clone()),
            (Err(_), _) => {}
        }
    }

    fn read(&mut self, door: &Door, message: &Bytes) -> Result<InferenceRequest, Status> {
        let message = InferMessage::parse(message)?;
        self.tag = RequestTag::new(&message);
        refuse_while_stopping(door)?;
        let version = parse_version(message.model_version())?;
        if door.control.is_decoupled(message.model_name(), version)? {
            self.order = Order::AtOnce;
        }
        self.sends_empty_end = message.enables_empty_final_response();
        let (request, classification) = message.into_request(version)?;
        self.classification = classification;
        Ok(request)
    }
}
