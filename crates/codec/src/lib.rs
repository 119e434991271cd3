//! The wire forms of inference requests and responses: HTTP bodies with JSON
//! and binary tensors, and gRPC messages, to and from the vocabulary of
//! `galatea-infer`.
//!
//! Everything here is a function from bytes to values or back. There is no
//! socket, runtime, clock or thread, and nothing is allocated on the word of
//! a number that a client sent: sizes are compared with the bytes at hand
//! and with [`limits::Limits`] first. Tensors that arrive in binary form stay
//! slices of the body; tensors that leave in binary form are handed on as
//! they are.
//!
//! What this is not: models are not known here. Whether a request fits its
//! model is decided at admission, behind the doors.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation))]

pub mod classification;
pub mod forward;
pub mod grpc;
pub mod http;
pub mod limits;
