//! Encoders and decoders of the inference protocol: HTTP bodies with JSON and
//! binary tensors, and gRPC messages, to and from the types of `galatea-infer`.
//! Start with [`http::decode_infer`] and `grpc/request.rs`.
//!
//! Every item is a function from bytes to values or back. The crate has no
//! socket, runtime, clock or thread. A number that a client sent never decides
//! an allocation: sizes are compared with the received bytes and with
//! [`Limits`](crate::limits::Limits) first. Binary tensors of a request stay slices of its body.
//! Binary tensors of a response are sent without a copy.
//!
//! The crate does not know models. Admission, behind the doors, checks whether a
//! request fits its model.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation))]

mod charged_vec;
pub mod classification;
pub mod compression;
pub mod forward;
pub mod grpc;
pub mod http;
pub mod limits;
mod numbers;
pub mod regions;
mod trace_fields;
