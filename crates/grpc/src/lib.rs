//! The gRPC door: inference and management over HTTP/2, directly on `h2`.
//!
//! Each connection is one task on one of the given runtimes. That task reads
//! requests, hands them to the service, and writes the answers; answers come
//! back through a queue of the connection's own, so that a batch of them wakes
//! the task once and leaves in one system call. There is no task, channel or
//! lock per request, and the bytes of tensors are not copied on the way in,
//! if the client sends a message in one frame, or, if they are many, on the way out. Nor is there a task per stream.
//!
//! A client that doesn't read costs a bounded amount of memory: answers are
//! counted from when they are made until they are written, and a connection
//! with too many of them reads no further requests. Nor does one whose requests
//! in progress are too large together.
//!
//! What this is not: it knows no model, queue or backend, only the two
//! traits of `galatea-infer`; and it translates nothing itself, that is the
//! work of `galatea-codec`. Client shared memory, trace and log settings,
//! compression and TLS are not offered; a client that asks for them is told
//! so.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use galatea_infer::{InferenceService, ServerControl};
//! # fn serve(service: Arc<dyn InferenceService>, control: Arc<dyn ServerControl>) -> std::io::Result<()> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! let listener = std::net::TcpListener::bind("0.0.0.0:8001")?;
//! let workers = [runtime.handle().clone()];
//! let door = galatea_grpc::start(&workers, listener, service, control, Default::default())?;
//! // Later, on the way down:
//! door.stop_accepting();
//! runtime.block_on(door.drained());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]

mod answer;
mod body;
mod call;
mod connection;
mod deadline;
mod dispatch;
mod door;
mod in_progress;
mod input;
mod memory;
mod output;
mod route;
mod signal;
mod sink;
mod staged;
mod stream;
mod unwritten;

pub use door::{GrpcOptions, RunningDoor, start};
