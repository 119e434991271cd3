//! A call with a stream of requests and a stream of responses.
//!
//! A stream has no task, channel or lock of its own. The task of its connection splits the body
//! into messages and begins requests as they arrive; sinks bring the replies to the inbox of the
//! connection. Requests are executed independently. Responses of models that are not decoupled are
//! sent in the order of their requests, and so are failures, even those of requests that no model
//! has seen. Responses of decoupled models are sent as soon as they are made.
//!
//! The head of the response is sent when the stream is opened, because some clients wait
//! for it before they send anything.
//!
//! A stream takes no more of the received requests while too much of it is in progress or
//! unwritten; its client then runs out of window. When the door stops, newly arriving requests are
//! refused one by one, and the stream ends when none is in progress.

mod handle;
mod message_splitter;
mod open;
mod sink;

pub(crate) use handle::{StreamErrors, StreamForm, StreamHandle};
pub(crate) use message_splitter::MessageSplitter;
pub(crate) use open::{Stream, StreamInput, StreamReset};
pub(crate) use sink::StreamSink;
