//! Keeping connections alive, and ending those that their clients would keep open.
//!
//! The decisions are values without a clock, like those of `policy`: they take observations and the
//! time, and return actions. Their rules are those of gRPC's own servers, whose flags Triton has.
//!
//! - [`PingPolice`]: the end of connections whose clients ping too often
//! - [`Upkeep`]: pings to the client, the age of a connection, and an end for connections whose
//!   client is silent while the door drains
//!
//! A connection reads no clock for them while bytes flow. [`Upkeep`] runs from the timer of
//! the connection, and [`PingPolice`] when pings have arrived.

mod lifetime;
mod pings;

pub(crate) use lifetime::{Observed, Upkeep, UpkeepAction};
pub(crate) use pings::{PingPolice, PingVerdict};
