//! The parts that every network front end needs, regardless of its protocol.
//!
//! A door listens on a port and assigns each connection to one of the I/O threads that it is given,
//! where the connection stays. This crate contains the parts that don't depend on the meaning of
//! the bytes: the accept loop, the phases in which a door stops, the count of connections that a
//! drain waits for, TLS ([`tls`]), and small tools for protocols, such as threads for blocking work
//! and for documents that take long to render.
//!
//! Out of scope: the crate doesn't read or write protocol bytes, know requests or own threads.
//!
//! Start with [`DoorBuilder`] (`door.rs`). A front end implements [`ConnectionHandler`]:
//!
//! ```
//! use std::sync::Arc;
//!
//! use galatea_door::{Connection, ConnectionHandler, DoorBuilder};
//! use tokio::io::AsyncWriteExt;
//!
//! struct Greeter;
//!
//! impl ConnectionHandler for Greeter {
//!     async fn serve(self: Arc<Self>, mut connection: Connection) {
//!         let _ = connection.stream.write_all(b"hello").await;
//!     }
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let workers = [runtime.handle().clone()];
//! let door = DoorBuilder::new().listen(&workers, listener, Arc::new(Greeter))?;
//! // Later, when the server stops:
//! door.begin_drain();
//! runtime.block_on(door.drained());
//! door.close();
//! # Ok(())
//! # }
//! ```
//!
//! # Stopping
//!
//! A door has two transitions, [`RunningDoor::begin_drain`] and [`RunningDoor::close`]. In
//! between, [`RunningDoor::drained`] waits for the connections that were opened before the first
//! transition. The port stays open until the second, so that new clients learn why they are not
//! served. In the meantime, the protocol decides which connections end: `grpc` connections end
//! after their calls, while `http` connections are served until their clients close them.
//! `crates/galatea/src/shutdown.rs` stops the whole server.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]

mod activity;
mod blocking;
mod completion;
mod connections;
mod door;
mod in_progress;
mod limit;
mod panic;
mod phase;
mod places;
mod refusal;
mod rendering;
mod scarcity;
mod stream;
pub mod tls;
mod watch;

pub use activity::{
    AwaitedClientStep, ClientTimedOut, ClientTimeouts, ConnectionActivity, UptimeSeconds,
};
pub use blocking::{BlockingPermit, BlockingPermits, RepositoryPermits};
pub use completion::{CompletionQueue, CompletionQueues};
pub use connections::CountedConnection;
pub use door::{Connection, ConnectionHandler, DoorBuilder, DoorOptions, RunningDoor};
pub use limit::ConnectionLimit;
pub use panic::{Panicked, catch_panic};
pub use phase::{DoorPhase, PhaseWatch};
pub use rendering::CoalescingRenderer;
pub use stream::{ConnectionStream, StreamReadHalf, StreamWriteHalf};
pub use watch::WatchedConnectionGuard;
