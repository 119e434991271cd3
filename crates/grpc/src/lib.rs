//! The gRPC door: inference and management over HTTP/2, directly on `h2`.
//!
//! Each connection is one task on one of the given runtimes (`connection/`). The task reads
//! requests, passes them to the service and writes the responses. Responses return through the
//! connection's inbox, so a batch of them wakes the task once and is sent in one system call. No
//! request has its own task, channel or lock, and no stream has its own task. Tensor bytes are not
//! copied on the way in if the client sends a message in one frame, and large tensors are not
//! copied on the way out (`buffers/`).
//!
//! A client that doesn't read uses a bounded amount of memory. Responses count from their creation
//! until they are written, and a connection with too many of them reads no more requests. The same
//! applies if its in-progress requests are too large in total (`budget/`).
//!
//! Out of scope: the crate doesn't know models, queues or backends, only the traits of
//! `galatea-infer` and `galatea-control`. `galatea-codec-grpc` translates all messages, and
//! [`galatea_door`] accepts connections and stops the door. Client shared memory, tracing and log
//! settings are optional; a client that requests a feature that isn't offered receives an error
//! that says so.
//!
//! Start with `server.rs`, then `ConnectionTask::round` in `connection/mod.rs`.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use galatea_control::ServerControl;
//! # use galatea_infer::InferenceService;
//! # fn serve(service: Arc<dyn InferenceService>, control: Arc<dyn ServerControl>) -> std::io::Result<()> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! let listener = std::net::TcpListener::bind("0.0.0.0:8001")?;
//! let workers = [runtime.handle().clone()];
//! let door = galatea_grpc::start(&workers, listener, service, control, Default::default())?;
//! // Later, when the server stops:
//! door.begin_drain();
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

mod budget;
mod buffers;
mod call_headers;
mod call_key;
mod call_response;
mod call_sink;
mod call_trace;
mod calls;
mod compression;
mod connection;
mod context;
mod control;
mod control_message;
mod deadline;
mod delay;
mod event;
mod failure;
mod message_reader;
mod model_wait;
mod options;
mod regions;
mod reorder;
mod route;
mod server;
mod stream;
mod upkeep;

pub use compression::CompressionLevel;
pub use delay::TestDelays;
pub use options::{GrpcOptions, KeepaliveOptions};
pub use server::{RunningGrpcServer, start};
