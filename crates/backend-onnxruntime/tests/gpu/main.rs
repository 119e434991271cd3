//! Models on GPUs. Stand-ins replace ONNX Runtime with CUDA and the driver (tests/onnxruntime_gpu,
//! tests/devices). The library stand-in computes on the CPU, with the data that the driver's copies
//! have delivered.
//!
//! Each test runs in its own process, with the environment that it needs. It fails if a stand-in
//! detects a violated rule or a leak.

#![allow(clippy::unwrap_used, reason = "a test may panic, and its helpers too")]
#![allow(clippy::disallowed_methods, reason = "a test's process knows itself by a variable")]

#[path = "../support/mod.rs"]
mod support;

mod failures;
mod inputs;
mod sessions;
mod stand_ins;
mod states;
