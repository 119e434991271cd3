//! The HTTP door: KServe v2 over HTTP/1.1, and the metrics endpoint.
//!
//! It reads requests from connections, has `galatea-codec` decode them, gives
//! them to an [`InferenceService`](galatea_infer::InferenceService) and sends
//! what comes back. Management calls go to a
//! [`ServerControl`](galatea_infer::ServerControl).
//!
//! What this is not: it knows no model, scheduler or backend, and it owns no
//! thread. Its connections live on the runtimes that it is given, one
//! connection on one runtime for as long as it is open.
//!
//! Nearly all requests are of one plain kind, which it serves without much around it;
//! whatever else HTTP/1.1 allows is hyper's. Clients can't tell which it was.
//!
//! A request that is refused on its way in costs no more memory than the
//! bytes that were received: bodies have a limit in bytes and in pieces, and
//! buffers grow as bytes arrive, not as headers announce them.
//!
//! # Stopping
//!
//! A door stops in two steps. After [`RunningDoor::stop_accepting`] idle
//! connections are closed, requests on the way are answered and their
//! connections closed after that; the port stays open, so that a readiness
//! probe is told 503 and not refused, but inferences are answered with 503.
//! [`RunningDoor::drained`] waits for the connections, and
//! [`RunningDoor::close`] ends whatever is left.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]

mod api;
mod body;
mod connection;
mod door;
mod head;
mod inference;
mod mailroom;
mod metrics;
mod options;
mod plain;
mod reply;
mod respond;
mod route;
mod unwanted;

pub use door::{RunningDoor, start, start_metrics};
pub use options::{HttpOptions, RequestLog};
