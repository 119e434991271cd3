//! Parts of the codecs of HTTP and gRPC that are the same in both: limits with their errors,
//! compression, classes, tensors in regions, raw inputs, forwarded headers, and the JSON of
//! metadata and statistics, which C programs get too. Start with [`limits`] and [`documents`].
//!
//! Every item is a function from bytes to values or back. The crate has no
//! socket, runtime, clock or thread. A number that a client sent never decides
//! an allocation: sizes are compared with the received bytes and with
//! [`Limits`](crate::limits::Limits) first.
//!
//! The crate knows neither protocol: requests and responses are read and written in
//! `galatea-codec-http` and `galatea-codec-grpc`. It does not know models. Admission, behind
//! the doors, checks whether a request fits its model.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation))]

pub mod charged_vec;
pub mod classification;
pub mod compression;
pub mod documents;
pub mod forward;
pub mod json;
pub mod limits;
pub mod numbers;
pub mod raw;
pub mod regions;
mod statistics;
pub mod trace_fields;

pub use numbers::parse_version;
