//! Caller rights and memory charges: the checks that every door makes before it collects, decodes
//! or forwards anything.
//!
//! This crate only decides. It reads no sockets, knows no protocol, and has no threads, clocks or
//! I/O.
//!
//! - [`access`]: access control for each API
//! - [`ledger`]: the total number of bytes held by requests and responses

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod access;
pub mod ledger;
pub mod text;
