//! Converts gRPC messages of the inference protocol to and from requests and responses.
//!
//! Inference messages bypass the generated types. [`InferRequestMessage`] parses a `ModelInferRequest`
//! directly from its wire form. [`encode_infer_response`] writes a `ModelInferResponse` without
//! copying its large tensors, and [`stream`] does the same for stream responses. All other messages
//! use the generated types, which [`control`] fills.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation))]

pub mod control;
pub mod log;
pub mod stream;

mod contents;
mod infer_message;
mod message;
mod parameters;
mod parse_error;
mod request;
mod response;
mod status;
mod trace;
mod wire;

#[cfg(test)]
mod differential_tests;
#[cfg(test)]
mod request_tests;

pub use infer_message::InferRequestMessage;
pub use message::{
    COMPRESSED, MESSAGE_BYTES_MAX, MESSAGE_PREFIX_BYTES, MessageChunks, frame_message,
};
pub use response::encode_infer_response;
pub use status::{GrpcCode, grpc_code};
pub use trace::{parse_trace_change, trace_settings_response};
