//! Tests of models that ONNX Runtime executes.

#![allow(clippy::unwrap_used, reason = "a test may panic, and its helpers too")]

#[path = "../support/mod.rs"]
mod support;

mod batches;
mod completion;
mod datatypes;
mod failures;
mod memory;
mod op_libraries;
mod ragged;
mod refusals;
mod refusals_added;
mod sequences;
mod settings;
mod shapes;
mod waking;
