//! OpenAI's API as Triton's frontend speaks it: requests, chat templates, what a model gets and what
//! becomes of its outputs.
//!
//! Out of scope: the crate opens no file and no socket, reads no clock, and knows no backend. What
//! the backends vLLM and TensorRT-LLM expect is a description like any other.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)
)]
#![allow(dead_code, unused_imports, reason = "the parts that use the rest follow")]

mod calendar;
mod failure;
mod json;
mod request;
mod schema;

pub use failure::{Failure, detail_document, error_document};
pub use json::{Object, Value};
pub use request::{
    Capabilities, CompletionRequest, ContentType, Generation, NamedTool, parsed_size, read_body,
};
pub use schema::ErrorList;
