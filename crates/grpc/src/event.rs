//! Events that reach the task of a connection.

use bytes::Bytes;
use galatea_infer::CancelToken;

use crate::budget::Outgoing;
use crate::call_key::CallKey;
use crate::failure::Failure;
use crate::reorder::ReplySlot;

/// An event outside the task of a connection. Events wait in the connection's
/// [`Inbox`](galatea_stdx::Inbox).
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// A unary inference that was delayed for a test must begin.
    CallStarted { call: CallKey, message: Bytes, cancel: CancelToken },
    /// A unary call has its response.
    CallFinished {
        call: CallKey,
        /// The message, or the failure of the call.
        result: Result<Outgoing, Failure>,
    },
    /// A request of a stream has a reply.
    StreamReply {
        call: CallKey,
        /// The request.
        slot: ReplySlot,
        /// The message, or the failure that ends the stream. `None` if the request ended without a
        /// further response.
        message: Option<Result<Outgoing, Failure>>,
        is_final: bool,
    },
    /// A stream has no room for a response.
    StreamOverrun { call: CallKey },
    /// A stream can proceed: `h2` has something for it, or its client has read.
    StreamReady { call: CallKey },
    /// The door accepts no new inferences.
    Drain,
    /// The door has been closed.
    Close,
}
