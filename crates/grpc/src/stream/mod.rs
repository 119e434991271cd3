//! A call with a stream of requests and a stream of responses.
//!
//! Requests are begun as they arrive and answered independently. Responses of
//! models that are not decoupled leave in the order of their requests, those
//! of decoupled models as soon as they are made. A stream stops taking
//! requests out of what has arrived while too much of it is unfinished or not
//! yet written; its client then runs out of window.

mod in_flight;
mod messages;
mod open;
mod signal;
mod sink;

pub(crate) use in_flight::{Order, Place};
pub(crate) use messages::Messages;
pub(crate) use open::{Next, Stream, StreamGone, StreamLimits};
pub(crate) use signal::{Errors, StreamSignal};
pub(crate) use sink::StreamSink;
