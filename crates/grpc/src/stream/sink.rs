//! Where the replies to one request of a stream go.

use std::sync::Arc;

use galatea_codec::classification::Classification;
use galatea_codec::grpc::MessageChunks;
use galatea_codec::grpc::stream::{
    RequestTag, encode_stream_end, encode_stream_failure, encode_stream_response,
};
use galatea_infer::{InferenceResponse, Reply, ResponseSink, Status};

use super::{Errors, Order, Place, StreamSignal};
use crate::answer::Failure;
use crate::in_progress::InProgress;
use crate::signal::News;
use crate::sink::{OneResponse, classified};
use crate::unwritten::{Holder, Outgoing};

/// Receives the replies to one request, encodes them on the thread that
/// answers, and brings them to the connection.
pub(crate) struct StreamSink {
    signal: Arc<StreamSignal>,
    place: Place,
    tag: RequestTag,
    classification: Option<Classification>,
    replies: Replies,
    _in_progress: InProgress,
}

enum Replies {
    /// One, to be sent in turn.
    One(OneResponse),
    /// Any number, to be sent at once.
    Many(EmptyEnd),
}

/// What becomes of an end that brings no response.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum EmptyEnd {
    Sent,
    Dropped,
}

impl StreamSink {
    pub(crate) const fn new(
        signal: Arc<StreamSignal>,
        place: Place,
        order: Order,
        tag: RequestTag,
        sends_empty_end: bool,
        classification: Option<Classification>,
        in_progress: InProgress,
    ) -> Self {
        let replies = match order {
            Order::InTurn => Replies::One(OneResponse::None),
            Order::AtOnce if sends_empty_end => Replies::Many(EmptyEnd::Sent),
            Order::AtOnce => Replies::Many(EmptyEnd::Dropped),
        };
        Self { signal, place, tag, classification, replies, _in_progress: in_progress }
    }

    fn encode(
        &self,
        outcome: Result<InferenceResponse, Status>,
        is_final: bool,
    ) -> Result<MessageChunks, Failure> {
        let encoded = classified(outcome, self.classification.as_ref())
            .and_then(|response| encode_stream_response(&response, is_final));
        match (encoded, self.signal.errors()) {
            (Ok(message), _) => Ok(message),
            (Err(status), Errors::AsStatus) => Err(status.into()),
            (Err(status), Errors::AsMessages) => {
                encode_stream_failure(&self.tag, status.message(), is_final).map_err(Failure::from)
            }
        }
    }

    fn post(&self, message: Option<Result<MessageChunks, Failure>>, is_final: bool) {
        let (call, place) = (self.signal.call(), self.place);
        let answer = match message {
            None => None,
            Some(Err(failure)) => Some(Err(failure)),
            Some(Ok(message)) => {
                let holder = Holder::Stream(self.signal.clone());
                let Some(outgoing) = Outgoing::new(message, holder) else {
                    // Nothing more is taken from here on, so that a model
                    // without end can't fill the connection's news.
                    self.signal.end();
                    self.signal.push(News::Overrun { call });
                    return;
                };
                Some(Ok(outgoing))
            }
        };
        self.signal.push(News::Reply { call, place, answer, is_final });
    }
}

impl ResponseSink for StreamSink {
    fn deliver(&mut self, reply: Reply) {
        if self.signal.is_over() {
            return;
        }
        let is_final = reply.is_final();
        match (&mut self.replies, reply) {
            (Replies::One(response), reply) => {
                if let Some(outcome) = response.take(reply) {
                    self.post(Some(self.encode(outcome, true)), true);
                }
            }
            (Replies::Many(_), Reply::Response { result, .. }) => {
                self.post(Some(self.encode(result, is_final)), is_final);
            }
            (Replies::Many(EmptyEnd::Sent), Reply::Finished) => {
                self.post(Some(encode_stream_end(&self.tag).map_err(Failure::from)), true);
            }
            (Replies::Many(EmptyEnd::Dropped), Reply::Finished) => self.post(None, true),
        }
    }
}
