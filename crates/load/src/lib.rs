//! Code shared by programs that send requests to servers: it builds requests from a model's
//! interface, sends them over connections, and counts the results.
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

pub use closed_loop::{LoadLevel, LoadMeasurement, Protocol, Target, run_closed_loop};
pub use connection::grpc::{GrpcConnection, GrpcReply};
pub use connection::http::{HttpConnection, HttpReply};
pub use curl::curl_command;
pub use discovery::{fetch_model_interface, ready_models};
pub use interface::{ServedModelInterface, TensorInterface};
pub use sample::{
    InputShapes, PREFIX_BYTES, SampleInput, SampleRequest, encode_path_segment, frame_grpc_message,
};
pub use timed::{OpenLoopMeasurement, poisson_arrivals, run_open_loop};
