//! The crate against a driver that stands in for NVIDIA's (tests/devices): devices simulated in
//! memory, work that is done late, failures and lost devices.
//!
//! Each test runs in a process of its own with the environment that it needs. It fails if the
//! stand-in saw a rule broken or something left behind.

#![allow(clippy::unwrap_used, reason = "these are tests")]
#![allow(clippy::disallowed_methods, reason = "a test's process knows itself by a variable")]

mod copies;
mod failures;
mod finding;
mod memory;
mod support;
