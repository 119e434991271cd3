//! Code shared by programs that send requests to servers: requests built from a model's interface,
//! connections that send them, and counts of their results.
//!
//! This crate's program mixes good requests with hostile ones; the server's program builds its
//! `serve` and `bench` commands on this library. Open `sample.rs` first.
//!
//! This is not a client library for applications: it has no TLS, no retries and no streams.

#![forbid(unsafe_code)]

mod closed_loop;
mod connection;
mod curl;
mod discovery;
mod interface;
mod sample;
mod timed;

pub use closed_loop::{Level, Measurement, Protocol, Target, run_level};
pub use connection::grpc::{GrpcConnection, GrpcReply};
pub use connection::http::{HttpConnection, HttpReply};
pub use curl::curl;
pub use discovery::{interface, ready_models};
pub use interface::{Interface, TensorInterface};
pub use sample::{PREFIX_BYTES, Sample, SampleInput, Shapes, path_segment, with_prefix};
pub use timed::{TimedMeasurement, poisson, run_timed};
