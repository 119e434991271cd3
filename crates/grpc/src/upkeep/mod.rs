//! Keeping a connection alive, and ending one that its client would keep.
//!
//! The decisions are values without a clock, like those of `policy`: they take what was
//! observed and the time, and return what is to be done. Their rules are those of gRPC's own
//! servers, whose flags Triton has.
//!
//! - [`PingPolice`]: a client that pings too often is sent away
//! - [`Upkeep`]: pings for the client, the age of a connection, and an end for connections
//!   whose client is silent while the door drains
//!
//! A connection reads no clock for them while bytes flow. [`Upkeep`] runs from the timer of
//! the connection, and [`PingPolice`] when pings have arrived.

mod lifetime;
mod pings;

pub(crate) use lifetime::{Observed, Upkeep, UpkeepAction};
pub(crate) use pings::{PingPolice, PingVerdict};
