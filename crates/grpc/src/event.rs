//! Events for a connection's task.

use bytes::Bytes;
use galatea_infer::CancelToken;

use crate::budget::Outgoing;
use crate::call_key::CallKey;
use crate::failure::Failure;
use crate::model_wait::{ModelResult, WaitingCall};
use crate::reorder::ReplySlot;

/// An event from outside a connection's task. Events wait in the connection's
/// [`Inbox`](galatea_stdx::Inbox).
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// A unary inference that was delayed for a test must begin.
    CallStarted { call: CallKey, message: Bytes, cancel: CancelToken },
    /// The model for which a unary inference has waited is loaded, or can't be.
    CallModelFound { call: CallKey, waiting: Box<WaitingCall>, result: ModelResult },
    /// The model for which a stream's request has waited is loaded, or can't be.
    StreamModelFound { call: CallKey, message: Bytes, result: ModelResult },
    /// The response to a unary call is ready.
    CallFinished {
        call: CallKey,
        /// The message, or the failure of the call.
        result: Result<Outgoing, Failure>,
    },
    /// A stream request has a reply.
    StreamReply {
        call: CallKey,
        /// The request's slot.
        slot: ReplySlot,
        /// The message, or the failure that ends the stream. `None` means that the request ended
        /// without another response.
        message: Option<Result<Outgoing, Failure>>,
        is_final: bool,
    },
    /// A stream has no room for another response.
    StreamOverrun { call: CallKey },
    /// A stream can make progress: `h2` has data for it, or its client has read more.
    StreamReady { call: CallKey },
    /// The door accepts no new inferences.
    Drain,
    /// The door has been closed.
    Close,
}
