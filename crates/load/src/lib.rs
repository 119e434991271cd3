//! What sends requests to servers has in common: requests that are made from a model's
//! interface, connections that send them, and counts of what became of them.
//!
//! The program of this crate mixes good requests with hostile ones; the server's program makes
//! its commands `serve` and `bench` of this library. Open `sample.rs` first.
//!
//! What this is not: a client for applications. It has no TLS, no retries and no streams.

#![forbid(unsafe_code)]

mod curl;
mod interface;
mod sample;

pub use curl::curl;
pub use interface::{Interface, TensorInterface};
pub use sample::{PREFIX_BYTES, Sample, SampleInput, Shapes, path_segment, with_prefix};
