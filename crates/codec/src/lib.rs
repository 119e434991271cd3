//! The parts that the HTTP and gRPC codecs share: limits with their errors, compression, classes,
//! tensors in regions, raw inputs, forwarded headers, and the JSON of metadata and statistics,
//! which C programs also receive. Start with [`limits`] and [`documents`].
//!
//! Every item is a function from bytes to values or back. The crate has no sockets, runtime, clock
//! or threads. A number sent by a client never determines the size of an allocation: sizes are
//! first compared with the received bytes and with [`MessageLimits`](crate::limits::MessageLimits).
//!
//! The crate knows neither protocol: `galatea-codec-http` and `galatea-codec-grpc` read and write
//! requests and responses. It does not know models either: admission, behind the doors, checks
//! whether a request fits its model.

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
