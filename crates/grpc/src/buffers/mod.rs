//! Memory between sockets and messages.
//!
//! Two things make a message expensive: touching memory that is not in the caches or has never been
//! used, and small system calls. An idle connection, on the other hand, should hold no memory. So
//! buffers are shared, and held only while there are bytes:
//!
//! ```text
//! socket ── ReadAhead ──► h2 ── frames ──► MessageReader, MessageSplitter ──► PartialMessage
//!              │ StagingBuffer                                                   │ MessagePool
//! socket ◄── GatheringSocket ◄── h2 ◄── Outgoing
//!              │ StagingBuffer
//! ```
//!
//! - [`GatheringSocket`] is the socket as `h2` sees it. It gathers small writes until the task
//!   of the connection flushes ([`Flusher`]), and reads ahead when frames are short. Both use
//!   a [`StagingBuffer`](staging), one of a few that the connections of a worker share
//!   ([`StagingPool`]).
//! - Frames are tracked by their heads ([`FrameCounts`]), because `h2` does not report pings.
//! - A message in a single frame is not copied. A message in several frames is assembled in a
//!   [`PartialMessage`], whose memory follows the bytes that have arrived. The memory of long
//!   messages is kept for the next ones ([`MessagePool`]).
//!
//! The bytes of tensors are slices of their message; large outputs are written from the
//! memory of the batch.

mod frames;
mod gather;
mod message_pool;
mod read_ahead;
mod staging;

pub(crate) use frames::FrameCounts;
pub(crate) use gather::{Flusher, GatheringSocket, gather};
pub(crate) use message_pool::{MessageMemory, MessagePool, PartialMessage};
pub(crate) use staging::StagingPool;
