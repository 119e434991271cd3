//! Models on GPUs: ONNX Runtime with CUDA and the driver are stand-ins (tests/onnxruntime_gpu,
//! tests/devices). The library computes on the CPU, with the data that the driver's copies
//! delivered.
//!
//! Each test runs in a process of its own with the environment that it needs. It fails if a
//! stand-in saw a rule broken or something left behind.

#![allow(clippy::unwrap_used, reason = "a test may panic, and its helpers too")]
#![allow(clippy::disallowed_methods, reason = "a test's process knows itself by a variable")]

#[path = "../support/mod.rs"]
mod support;

mod failures;
mod inputs;
mod sessions;
mod stand_ins;
mod states;
