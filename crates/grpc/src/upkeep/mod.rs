//! Keeps connections alive, and ends those that clients would otherwise keep open.
//!
//! Like those in `policy`, the decisions read no clock: they take observations and the time, and
//! return actions. The rules are those of gRPC's own servers, whose flags Triton adopts.
//!
//! - [`PingPolice`] ends connections whose clients ping too often
//! - [`Upkeep`] pings the client, limits the connection's age, and ends connections whose clients
//!   are silent while the door drains
//!
//! A connection reads no clock for these decisions while bytes flow. [`Upkeep`] runs from the
//! connection's timer, and [`PingPolice`] runs when pings have arrived.

mod lifetime;
mod pings;

pub(crate) use lifetime::{Observed, Upkeep, UpkeepAction};
pub(crate) use pings::{PingPolice, PingVerdict};
