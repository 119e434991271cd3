//! The door over real sockets, with a service and a control that the tests
//! steer. Clients are plain blocking sockets, so that what goes over the
//! wire is exactly what a test says.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod bodies;
mod endpoints;
mod fake;
mod harness;
mod hostile;
mod inference;
mod metrics;
mod plain;
mod stopping;
