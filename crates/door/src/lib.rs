//! The parts that every network front end needs, independent of the protocol.
//!
//! A door listens on a port and hands each connection to one of the I/O threads that it is given,
//! where the connection stays. This crate has the parts that don't depend on the meaning of the
//! bytes: the accept loop, the phases in which a door stops, the count of connections that a drain
//! waits for, TLS ([`tls`]), and small tools for protocols: threads for work that blocks, and for
//! documents that take long to render.
//!
//! Not its part: it reads and writes no byte of a protocol, knows no request and owns no
//! thread.
//!
//! Start with [`Door`] (`door.rs`). A front end implements [`Protocol`]:
//!
//! ```
//! use std::sync::Arc;
//!
//! use galatea_door::{Connection, Door, Protocol};
//! use tokio::io::AsyncWriteExt;
//!
//! struct Greeter;
//!
//! impl Protocol for Greeter {
//!     async fn serve(self: Arc<Self>, mut connection: Connection) {
//!         let _ = connection.stream.write_all(b"hello").await;
//!     }
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let workers = [runtime.handle().clone()];
//! let door = Door::new().listen(&workers, listener, Arc::new(Greeter))?;
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
//! A door has two transitions, [`RunningDoor::stop_accepting`] and [`RunningDoor::close`]; in
//! between, [`RunningDoor::drained`] waits for the connections that were made before the first. The
//! port stays open until the second, so that new clients can be told why they are not served. In
//! the meantime the protocol decides which connections end: those of `grpc` end after their calls,
//! those of `http` are served until their clients close them. The stop of the whole server is in
//! `crates/galatea/src/shutdown.rs`.

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

pub use activity::{Activity, AwaitedStep, Overdue, Tick, Timeouts};
pub use blocking::{BlockingPermit, BlockingPermits, RepositoryPermits};
pub use completion::{CompletionQueue, CompletionQueues};
pub use connections::CountedConnection;
pub use door::{Connection, Door, DoorOptions, Protocol, RunningDoor};
pub use limit::ConnectionLimit;
pub use panic::{Panicked, catch_panic};
pub use phase::{DoorPhase, PhaseWatch};
pub use rendering::Renderer;
pub use stream::{Stream, StreamReadHalf, StreamWriteHalf};
pub use watch::ConnectionPlace;
