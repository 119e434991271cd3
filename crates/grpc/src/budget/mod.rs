//! The memory that a client can make the server use, counted and bounded per connection.
//!
//! A client decides how much it sends before it has a response, and how fast it reads
//! responses. Both stay in the server meanwhile. So bytes are counted by values that live
//! as long as the memory does, and that subtract them when they are dropped: no way out of
//! the server can be forgotten.
//!
//! | counted | by | limit reached |
//! |---|---|---|
//! | messages that are not complete | [`ArrivalCharge`] | the message that brings too much is refused |
//! | requests in progress, per kind of call | [`RequestCharge`] | no further request of the kind is read |
//! | responses that are not written, of unary calls | [`Outgoing`] | no further unary call is read |
//! | responses that are not written, of one stream | [`Outgoing`] | no further request of the stream is begun, and its decoupled models pause |
//! | all responses that are not written | [`Outgoing`] | nothing more is read; from a second limit on, responses are dropped |
//! | memory that unwritten responses keep alive beside their own | [`Outgoing`] | further responses are copied |
//!
//! A connection that doesn't read lets its client run out of the windows of HTTP/2. It reads
//! again when there is room: the task of the connection is woken by the charge whose drop
//! makes room.
//!
//! Refusing to read doesn't help where a message arrives: the rest of it may wait behind
//! messages that are not read. That is why the message that brings too much is refused.

mod charges;
mod memory_budget;
mod outgoing;
mod stream_budget;

pub(crate) use charges::{ArrivalCharge, RequestCharge, request_bytes};
pub(crate) use memory_budget::{BudgetLimits, CallKind, MemoryBudget};
pub(crate) use outgoing::{Outgoing, ResponseBudget};
pub(crate) use stream_budget::{StreamBudget, StreamLimits};

#[cfg(test)]
mod tests;
