//! The memory that a client can make the server use, counted and limited per connection.
//!
//! A client decides how much it sends before it receives a response, and how fast it reads
//! responses. In the meantime, requests and responses both stay in the server. Bytes are therefore
//! counted by values that live as long as the memory does and subtract the bytes when they are
//! dropped, so no way out of the server can be forgotten.
//!
//! | counted | by | at the limit (default) |
//! |---|---|---|
//! | messages that are not complete | [`ArrivalCharge`] | the message that brings too much is refused (1 GiB) |
//! | requests in progress, per kind of call | [`RequestCharge`] | no further request of the kind is read (512 MiB) |
//! | unwritten responses of unary calls | [`Outgoing`] | no further unary call is read, except health checks (64 MiB) |
//! | unwritten responses and requests in progress of one stream | [`Outgoing`] | no further request of the stream is begun, and its decoupled models pause (32 MiB, 4096 messages) |
//! | unwritten responses of one request of a stream | [`ResponsePool`] | its decoupled model pauses (only with `--grpc-max-response-pool-size`) |
//! | all unwritten responses | [`Outgoing`] | nothing more is read (512 MiB); responses are dropped (2 GiB) |
//! | memory that unwritten responses keep alive beside their own | [`Outgoing`] | further responses are copied (256 MiB) |
//!
//! When a connection stops reading, its client runs out of HTTP/2 flow-control window. Reading
//! resumes when there is room: the charge whose drop makes room wakes the connection's task.
//!
//! - Unary calls and streams count separately, because a client may leave a stream unread while it
//!   waits for the response to a call.
//! - Requests that were read before a limit was reached may still get responses. Beyond the second
//!   limit, these responses are dropped: calls fail, and streams are reset. This also ends a
//!   decoupled model's endless responses, because a sink must not block.
//! - A response may be a slice of something larger, such as a batch output or its request, and
//!   keeps all of it alive. Each slice counts the whole batch, so the count is never too low.
//! - A request counts until its sink is dropped, even if its call was reset. It counts with the
//!   size of its memory rather than of its message, because decoded typed elements may be larger.
//! - Refusing to read doesn't help with a partly received message, because the rest of it may wait
//!   behind unread messages. The message that exceeds the limit is therefore refused, unless it is
//!   the only one.
//!
//! All of these bytes are also charged to the connection's account, its share of the memory that
//! the connections of all doors may use (`--memory-limit`). The account counts memory once: a long
//! message is charged by its owner, before its buffer grows, so its tensors, and the responses that
//! return them, are not charged separately.

mod charges;
mod memory_budget;
mod outgoing;
mod response_pool;
mod stream_budget;

pub(crate) use charges::{ArrivalCharge, RequestCharge, RequestSize};
pub(crate) use memory_budget::{BudgetLimits, CallKind, MemoryBudget};
pub(crate) use outgoing::{DroppedResponse, Outgoing, ResponseBudget};
pub(crate) use response_pool::ResponsePool;
pub(crate) use stream_budget::{StreamBudget, StreamLimits};

#[cfg(test)]
pub(crate) mod tests;
