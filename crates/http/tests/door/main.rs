//! The door over real sockets, with a service and a control that the tests steer. Clients are
//! blocking sockets, so a test determines every byte on the wire.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod bodies;
mod cloud_harness;
mod cloud_rules;
mod clouds;
mod compression;
mod dashboard;
mod endpoints;
mod generate;
mod harness;
mod hostile;
mod inference;
mod memory;
mod metrics;
mod openai;
mod patience;
mod plain;
mod scraping;
mod stopping;
