//! The memory between sockets and messages.
//!
//! Two things make a message expensive: small system calls, and touching memory that is not in the
//! caches or has never been used. An idle connection, on the other hand, should hold no memory.
//! Buffers are therefore shared, and held only while they contain bytes:
//!
//! ```text
//! socket ── ReadAhead ──► h2 ── frames ──► MessageReader, MessageSplitter ──► PartialMessage
//!              │ StagingBuffer                                                   │ MessagePool
//! socket ◄── GatheringSocket ◄── h2 ◄── Outgoing
//!              │ StagingBuffer
//! ```
//!
//! - [`GatheringSocket`] is the socket that `h2` uses. It gathers small writes until the
//!   connection's task flushes ([`Flusher`]), and reads ahead when frames are short. For either
//!   purpose it uses a [`StagingBuffer`](staging), one of a few that a worker's connections share
//!   ([`StagingPool`]).
//! - Frames are tracked by their headers ([`FrameCounts`]), because `h2` does not report pings.
//! - A message in a single frame is not copied. A message in several frames is assembled in a
//!   [`PartialMessage`], whose memory grows with the received bytes. The memory of long messages is
//!   kept for later ones ([`MessagePool`]).
//!
//! Tensor bytes are slices of their message; large outputs are written from the batch's memory.

mod frames;
mod gather;
mod message_pool;
mod read_ahead;
mod staging;

pub(crate) use frames::FrameCounts;
pub(crate) use gather::{Flusher, GatheringSocket, gather};
pub(crate) use message_pool::{MessageMemory, MessagePool, PartialMessage};
pub(crate) use staging::StagingPool;
