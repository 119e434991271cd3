//! A call with a stream of requests and a stream of responses.
//!
//! A stream has no task, channel or lock of its own. The connection's task splits the body into
//! messages and begins requests as they arrive; sinks deliver the replies to the connection's
//! inbox. Requests are executed independently. Responses from models that are not decoupled are
//! sent in request order. Failures keep their place in that order, even for requests that reached
//! no model. Responses from decoupled models are sent as soon as they are created.
//!
//! The response headers are sent when the stream is opened, because some clients wait for them
//! before they send anything.
//!
//! A stream accepts no more of the received requests while too much of it is in progress or
//! unwritten; its client then runs out of flow-control window. When the door stops, newly arriving
//! requests are refused one by one, and the stream ends once none is in progress.

mod handle;
mod message_splitter;
mod open;
mod sink;

pub(crate) use handle::{StreamErrors, StreamForm, StreamHandle};
pub(crate) use message_splitter::MessageSplitter;
pub(crate) use open::{Stream, StreamInput, StreamReset};
pub(crate) use sink::StreamSink;
