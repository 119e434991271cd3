//! Tests of the crate with a stand-in for NVIDIA's driver (tests/devices), which simulates devices
//! in memory, performs work late, and causes failures and device losses.
//!
//! Each test runs in its own process with the environment that it requires. A test fails if the
//! stand-in detects a violated rule or a leaked resource.

#![allow(clippy::unwrap_used, reason = "these are tests")]
#![allow(clippy::disallowed_methods, reason = "a test's process knows itself by a variable")]

mod copies;
mod failures;
mod finding;
mod memory;
mod support;
